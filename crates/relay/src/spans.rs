//! Spans for messages, in the traces they carry: one for each sending, one for the effect.
//!
//! They follow the conventions of OpenTelemetry for messaging (1.37, in development). What a message
//! carries is the context in which its event was made, and nobody on the way changes it. So every
//! span *links* to it, as the conventions ask for, and is a child of it besides, as they allow where
//! a span is about one message: from the request to the effect it is one trace.
//!
//! Their target is `semel_trace`, so that a subscriber can export them without logging them. A
//! message without a trace gets none.

use semel_core::{Failure, Headers, Message, Published, Verdict};
use tracing::Span;

/// The names that the conventions for messaging give to attributes.
macro_rules! span {
    ($message:ident, $system:expr, $operation:literal, $kind:literal) => {{
        let event = &$message.event;
        let span = tracing::debug_span!(
            target: "semel_trace",
            $operation,
            otel.name = format!(concat!($operation, " {}"), $message.topic),
            otel.kind = $kind,
            otel.status_code = tracing::field::Empty,
            otel.status_description = tracing::field::Empty,
            error.r#type = tracing::field::Empty,
            messaging.system = $system,
            messaging.operation.name = $operation,
            messaging.operation.r#type = $operation,
            messaging.destination.name = $message.topic.as_str(),
            messaging.message.id = %event.id,
            semel.event.r#type = event.event_type,
            semel.attempt = $message.attempt,
        );
        if event.headers.continue_trace(&span) {
            event.headers.link_trace(&span);
            span
        } else {
            Span::none()
        }
    }};
}

/// The sending of messages: a span for each that belongs to a trace.
pub(crate) struct Sending(Vec<(usize, Span)>);

impl Sending {
    /// Nothing without a system: then whoever is asked to publish does not send.
    pub(crate) fn begin(system: Option<&'static str>, messages: &[Message]) -> Self {
        let Some(system) = system else { return Self(Vec::new()) };
        let traced = messages.iter().enumerate().filter(|(_, message)| is_traced(message));
        // A client and no producer: the context that readers get is that of the event's making.
        let begun =
            traced.map(|(place, message)| (place, span!(message, system, "send", "client")));
        Self(begun.collect())
    }

    pub(crate) fn end(mut self, published: &Published) {
        for (place, span) in self.0.drain(..) {
            match published {
                Published::None(failure) => fail(&span, failure),
                Published::Each(verdicts) => {
                    if let Some(Verdict::Failed(failure)) = verdicts.get(place) {
                        fail(&span, failure);
                    }
                }
                Published::All => {}
            }
        }
    }
}

impl Drop for Sending {
    /// Of a call that did not end: it took too long, or panicked.
    fn drop(&mut self) {
        for (_, span) in self.0.drain(..) {
            let what = "the call was given up before the sink answered";
            fail(&span, &Failure::transient("E-SINK-TIMEOUT", what));
        }
    }
}

/// In which an effect takes place, so that what it does and appends belongs to the trace.
pub(crate) fn processing(message: &Message) -> Span {
    if !is_traced(message) {
        return Span::none();
    }
    // What comes from a consumer's own letters has lost its name.
    let system = message.system.unwrap_or("_OTHER");
    span!(message, system, "process", "consumer")
}

/// Says in a span that it failed.
pub(crate) fn fail(span: &Span, failure: &Failure) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", failure.to_string());
    span.record("error.type", failure.code());
}

/// Asked first, because to make a span costs more than the rest of a message.
fn is_traced(message: &Message) -> bool {
    message.event.headers.get(Headers::TRACEPARENT).is_some()
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanKind, Status, TracerProvider};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
    use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
    use semel_core::{Event, OutboxWriter, Sink};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::{Consumer, Fanout, Relay, Routed, Stop, handler_fn};

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn placed() -> Event {
        Event::new("order", "42", "OrderPlaced").with_header("traceparent", PARENT)
    }

    /// Runs `work` and gives the spans that ended in it.
    async fn spans_of(work: impl Future<Output = ()>) -> Vec<SpanData> {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        let _collecting = tracing::subscriber::set_default(subscriber);
        work.await;
        exporter.get_finished_spans().unwrap()
    }

    /// From the request that wrote the first event to what the consumer of it writes: one trace.
    #[tokio::test]
    async fn sending_and_effect_belong_to_the_trace_of_the_request() {
        let (orders, payments, broker) =
            (MemoryDatabase::new(), MemoryDatabase::new(), MemoryBroker::new());
        let spans = spans_of(async {
            let mut tx = orders.begin().await;
            orders.append(&mut tx, &[placed()]).await.unwrap();
            tx.commit();
            let relay = Relay::new("orders", orders.source(), broker.clone());
            relay.drain(Stop::never()).await.unwrap();

            let outbox = payments.clone();
            let charge = handler_fn(move |tx: &mut MemoryTx, _: &Message| {
                let outbox = outbox.clone();
                Box::pin(async move {
                    let charged = Event::new("payment", "7", "Charged");
                    outbox.append(tx, &[charged]).await.unwrap();
                    Ok(bytes::Bytes::new())
                })
            });
            let consumer = Consumer::new("payments", payments.clone(), charge);
            let relay = Relay::new("payments", broker.subscribe("payments", &[]), consumer);
            relay.drain(Stop::never()).await.unwrap();
            let relay = Relay::new("payments", payments.source(), broker.clone());
            relay.drain(Stop::never()).await.unwrap();
        })
        .await;

        let of = |name: &str, kind: SpanKind| {
            let mut found =
                spans.iter().filter(|span| span.name.starts_with(name) && span.span_kind == kind);
            found.next().unwrap_or_else(|| panic!("{name}: {spans:?}"))
        };
        let request = "b7ad6b7169203331";
        let effect = of("process", SpanKind::Consumer);
        assert_eq!(effect.parent_span_id.to_string(), request);
        let sent: Vec<_> = spans.iter().filter(|span| span.name.starts_with("send")).collect();
        assert_eq!(sent.len(), 2, "what a consumer gets is not sent to it");
        assert_eq!(sent[0].parent_span_id.to_string(), request);
        assert_eq!(sent[1].parent_span_id, effect.span_context.span_id(), "what the handler wrote");
        for span in &spans {
            assert_eq!(span.span_context.trace_id().to_string(), &PARENT[3..35]);
        }
    }

    /// Fails whatever it gets.
    struct Broken;

    #[async_trait::async_trait]
    impl Sink for Broken {
        async fn publish(&self, _: &[Message]) -> Published {
            Published::None(Failure::refused("E-TOO-LARGE", "too large"))
        }

        async fn check(&self) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_failure_is_seen_in_the_span_and_without_a_trace_there_is_none() {
        let spans = spans_of(async {
            let messages = [placed(), Event::new("order", "43", "OrderPlaced")]
                .map(|event| Message::first("order.events", event));
            crate::publish::send(&Broken, &messages).await;
        })
        .await;
        let [span] = &spans[..] else { panic!("{spans:?}") };
        assert!(
            matches!(&span.status, Status::Error { description } if description.contains("too large"))
        );
        assert_eq!(span.name, "send order.events");
        assert_eq!(attribute(span, "error.type"), "E-TOO-LARGE");
        assert_eq!(attribute(span, "messaging.system"), "_OTHER", "nobody named it");
    }

    #[tokio::test]
    async fn a_span_is_about_the_topic_and_the_sink_that_a_message_goes_to() {
        let spans = spans_of(async {
            let both = Fanout::new().with("one", MemoryBroker::new()).with("two", Broken);
            let routed = Routed::new(both, "{aggregate_type}.events".parse().unwrap());
            crate::publish::send(&routed, &[Message::first("outbox", placed())]).await;
        })
        .await;
        let mut told: Vec<_> = spans
            .iter()
            .map(|span| (span.name.to_string(), attribute(span, "messaging.system")))
            .collect();
        told.sort_unstable();
        let send = |system: &str| ("send order.events".to_owned(), system.to_owned());
        assert_eq!(told, [send("_OTHER"), send("memory")], "one for each sink, none for the route");
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_has_failed() {
        let spans = spans_of(async {
            drop(Sending::begin(Some("memory"), &[Message::first("order.events", placed())]));
        })
        .await;
        let [span] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(attribute(span, "error.type"), "E-SINK-TIMEOUT");
    }

    fn attribute(span: &SpanData, name: &str) -> String {
        let mut found = span.attributes.iter().filter(|pair| pair.key.as_str() == name);
        found.next().map_or_else(String::new, |pair| pair.value.to_string())
    }
}
