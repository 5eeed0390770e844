//! Spans for messages, in the traces they carry: one for the sending, one for the effect.
//!
//! Their target is `semel_trace`, so that a subscriber can export them without logging them. A
//! message without a trace gets none.

use semel_core::{Failure, Headers, Message, Published, Sink, Verdict};
use tracing::Span;

/// The names that the conventions for messaging give to attributes.
macro_rules! span {
    ($message:ident, $operation:literal, $kind:literal) => {{
        let event = &$message.event;
        let span = tracing::debug_span!(
            target: "semel_trace",
            $operation,
            otel.name = format!(concat!($operation, " {}"), $message.topic),
            otel.kind = $kind,
            otel.status_code = tracing::field::Empty,
            otel.status_description = tracing::field::Empty,
            messaging.operation.name = $operation,
            messaging.destination.name = $message.topic.as_str(),
            messaging.message.id = %event.id,
            semel.event.r#type = event.event_type,
            semel.attempt = $message.attempt,
        );
        if event.headers.continue_trace(&span) { span } else { Span::none() }
    }};
}

/// The sending of messages: a span for each that belongs to a trace.
pub(crate) struct Sending(Vec<(usize, Span)>);

impl Sending {
    pub(crate) fn begin(sink: &dyn Sink, messages: &[Message]) -> Self {
        let sent = if sink.is_effect() { &[] } else { messages };
        let traced = sent.iter().enumerate().filter(|(_, message)| is_traced(message));
        Self(traced.map(|(place, message)| (place, span!(message, "send", "producer"))).collect())
    }

    pub(crate) fn end(self, published: &Published) {
        for (place, span) in self.0 {
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

/// In which an effect takes place, so that what it does and appends belongs to the trace.
pub(crate) fn processing(message: &Message) -> Span {
    if is_traced(message) { span!(message, "process", "consumer") } else { Span::none() }
}

/// Says in a span that it failed.
pub(crate) fn fail(span: &Span, failure: &Failure) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", failure.to_string());
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
    use semel_core::{Event, OutboxWriter};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::{Consumer, Relay, Stop, handler_fn};

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
            let sending = Sending::begin(&Broken, &messages);
            sending.end(&Broken.publish(&messages).await);
        })
        .await;
        let [span] = &spans[..] else { panic!("{spans:?}") };
        assert!(
            matches!(&span.status, Status::Error { description } if description.contains("too large"))
        );
        assert_eq!(span.name, "send order.events");
    }
}
