//! The log for a collector: one JSON object for each line.
//!
//! Every line has `ts`, `level` and `msg`. Where they mean something it has `code` (of the failure, for
//! `semel explain`), `pipeline`, `event_id` and `trace_id` too, and whatever else belongs to it.

use std::fmt::{self, Debug};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes what happens as JSON.
pub(crate) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut ts = String::new();
        SystemTime.format_time(&mut Writer::new(&mut ts))?;
        let level = event.metadata().level();
        let msg = Value::from(fields.message);
        write!(writer, "{{\"ts\":\"{ts}\",\"level\":\"{level}\",\"msg\":{msg}")?;
        for (name, value) in fields.others {
            write!(writer, ",{}:{value}", Value::from(name))?;
        }
        writeln!(writer, "}}")
    }
}

/// What a line is made of.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn keep(&mut self, field: &Field, value: impl Into<Value>) {
        // Where libraries of the older facade say where in their code they are.
        if !field.name().starts_with("log.") {
            self.others.insert(field.name().to_owned(), value.into());
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.keep(field, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.keep(field, value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Whatever is in it, a line is one line, and reads back as what was said.
    #[test]
    fn a_line_is_an_object_whatever_is_in_it() {
        let paper = Paper::default();
        let writer = paper.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(JsonLines)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let none: Option<&str> = None;
            let awkward = "\"quoted\",\n\\ and {braced}";
            tracing::warn!(
                code = "E-TEST",
                events = 3_u64,
                up = true,
                trace_id = none,
                "{awkward}"
            );
            tracing::info!(why = %awkward, "plain");
        });
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [first, second] = &lines[..] else { panic!("{text}") };
        assert_eq!((&first["level"], &first["code"]), (&"WARN".into(), &"E-TEST".into()));
        assert_eq!(first["msg"], "\"quoted\",\n\\ and {braced}");
        assert_eq!((&first["events"], &first["up"]), (&3.into(), &true.into()));
        assert!(first.get("trace_id").is_none(), "{first}");
        assert_eq!((&second["msg"], &second["why"]), (&"plain".into(), &first["msg"]));
        assert!(first["ts"].as_str().unwrap().ends_with('Z'), "{first}");
    }
}
