//! What happens, on standard error: as text or JSON; and as traces to a collector, where one is
//! named by the usual variables of OpenTelemetry.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};

#[cfg(not(feature = "otlp"))]
use semel_core::Failure;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::exit::Problem;
use crate::json_lines::JsonLines;

/// One of the client libraries would print what is told anyway.
const USUAL: &str = "info,pgwire_replication=off";

/// Whoever asks for more does not get it of these: one prints the events that a broker gives back, one
/// passwords, and one what it does not know of a URL, such as a password whose name is misspelt.
const DISCREET: [&str; 3] =
    ["lapin::returned_messages=error", "async_nats=info", "sqlx_postgres::options::parse=off"];

/// Ends with the command: what is not exported yet is exported then.
pub(crate) struct Logging {
    #[cfg(feature = "otlp")]
    _exporting: Option<otlp::Exporting>,
}

impl Logging {
    /// Standard output belongs to the events, so that all goes to standard error.
    pub(crate) fn start() -> Result<Self, Problem> {
        #[cfg(feature = "otlp")]
        let (exporting, traces) = otlp::start()?.unzip();
        #[cfg(not(feature = "otlp"))]
        let traces = no_traces()?;
        tracing_subscriber::registry().with(traces).with(log()).init();
        #[cfg(feature = "otlp")]
        let logging = Self { _exporting: exporting };
        #[cfg(not(feature = "otlp"))]
        let logging = Self {};
        Ok(logging)
    }
}

/// Whether `NO_COLOR` leaves colours alone: by its convention one that is empty says nothing.
pub(crate) fn wants_colours(no_color: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty)
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

fn log<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let mut filter = EnvFilter::try_from_env("SEMEL_LOG").unwrap_or_else(|_| EnvFilter::new(USUAL));
    for discreet in DISCREET.into_iter().filter_map(|directive| directive.parse().ok()) {
        filter = filter.add_directive(discreet);
    }
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && wants_colours(env::var_os("NO_COLOR").as_deref()))
        .with_target(false);
    match env::var("SEMEL_LOG_FORMAT").as_deref() {
        Ok("json") => lines.event_format(JsonLines).with_filter(filter).boxed(),
        _ => lines.with_filter(filter).boxed(),
    }
}

/// A collector that was named and is never told anything would be a riddle.
#[cfg(not(feature = "otlp"))]
fn no_traces() -> Result<Option<AnyLayer>, Problem> {
    match ENDPOINTS.into_iter().find(|name| env::var_os(name).is_some()) {
        None => Ok(None),
        Some(name) => Err(Problem::new(
            Failure::misconfigured("E-TRACES-BUILD", "this program was built without traces")
                .with_fix(format!("unset {name}, or build with --features otlp")),
            name,
            "no event is lost: nothing was started",
        )),
    }
}

#[cfg(feature = "otlp")]
mod otlp {
    //! Traces by OTLP over HTTP.

    use std::env;

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use semel_core::Failure;
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::{LevelFilter, Targets};

    use super::{AnyLayer, ENDPOINTS};
    use crate::exit::Problem;

    /// Which encoding to use; the first that is set holds.
    const PROTOCOLS: [&str; 2] =
        ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

    pub(super) struct Exporting(SdkTracerProvider);

    /// Nothing where no collector is named.
    pub(super) fn start() -> Result<Option<(Exporting, AnyLayer)>, Problem> {
        let Some(named) = ENDPOINTS.into_iter().find(|name| env::var_os(name).is_some()) else {
            return Ok(None);
        };
        let exporter = SpanExporter::builder().with_http().with_protocol(protocol()?);
        let exporter = exporter.build().map_err(|error| wrong(named, &error.to_string()))?;
        let resource = match env::var_os("OTEL_SERVICE_NAME") {
            Some(_) => Resource::builder(),
            None => Resource::builder().with_service_name("semel"),
        };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        // Only what belongs to a message: the spans of client libraries are theirs.
        let ours = Targets::new().with_target("semel_trace", LevelFilter::DEBUG);
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("semel"))
            .with_location(false)
            .with_threads(false)
            .with_filter(ours);
        Ok(Some((Exporting(provider), Box::new(layer))))
    }

    /// Protobuf, as the specification has it; the library would take JSON.
    fn protocol() -> Result<Protocol, Problem> {
        let said = |name: &'static str| {
            env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value))
        };
        match PROTOCOLS.into_iter().find_map(said) {
            None => Ok(Protocol::HttpBinary),
            Some((_, value)) if value == "http/protobuf" => Ok(Protocol::HttpBinary),
            Some((_, value)) if value == "http/json" => Ok(Protocol::HttpJson),
            Some((name, value)) => {
                let what = format!("{value:?} is neither \"http/protobuf\" nor \"http/json\"");
                Err(wrong(name, &what))
            }
        }
    }

    fn wrong(variable: &str, what: &str) -> Problem {
        let failure = Failure::misconfigured("E-TRACES", format!("no traces: {what}"))
            .with_fix("correct it, or unset it: traces are not needed to publish");
        Problem::new(failure, variable, "no event is lost: nothing was started")
    }

    impl Drop for Exporting {
        fn drop(&mut self) {
            if let Err(error) = self.0.shutdown() {
                tracing::warn!(%error, "the last traces were not exported");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_no_color_is_none() {
        for (value, wants) in
            [(None, true), (Some(""), true), (Some("1"), false), (Some("0"), false)]
        {
            assert_eq!(wants_colours(value.map(OsStr::new)), wants, "{value:?}");
        }
    }
}
