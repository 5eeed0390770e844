//! The shared suite, for each format.

use semel_backends::webhook::WebhookSink;
use semel_core::wire::Format;
use semel_core::{Event, Message};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::sink_suite;
use semel_testkit::suites::sink::SinkProbe;

use super::endpoint::{Endpoint, plain, status};

struct Webhook<const FORMAT: usize> {
    endpoint: Endpoint,
    proxy: Proxy,
    sink: WebhookSink,
}

impl<const FORMAT: usize> Probe for Webhook<FORMAT> {
    const BACKEND: &'static str = "webhook";

    async fn fresh() -> Option<Self> {
        let endpoint = Endpoint::start(|seen| {
            let refused = seen.event().headers.get("refuse").is_some();
            status(if refused { 422 } else { 204 })
        })
        .await;
        let proxy = Proxy::start(endpoint.address.to_string()).await;
        let config = plain(&format!("http://{}/hooks", proxy.address()));
        let (_, format) = Format::NAMES[FORMAT];
        let sink = config.format(format).connect().await.unwrap();
        Some(Self { endpoint, proxy, sink })
    }
}

impl<const FORMAT: usize> SinkProbe for Webhook<FORMAT> {
    type Sink = WebhookSink;

    fn sink(&self) -> &WebhookSink {
        &self.sink
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        let taken = self.endpoint.seen().into_iter().filter(|seen| seen.status < 300);
        Ok(taken.map(|seen| seen.event()).collect())
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        Ok(Message::first(self.topic(), event.with_header("refuse", "yes")))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

mod plain_format {
    use super::*;
    sink_suite!(Webhook<0>);
}

mod cloudevents_binary {
    use super::*;
    sink_suite!(Webhook<1>);
}

mod cloudevents_structured {
    use super::*;
    sink_suite!(Webhook<2>);
}
