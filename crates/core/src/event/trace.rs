//! The trace an event belongs to, taken from the span in which it is made.

use opentelemetry::trace::TraceContextExt;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::Headers;

/// Adds the W3C trace context of the current span, if it belongs to a trace.
pub(super) fn capture(headers: &mut Headers) {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return;
    }
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    headers.set(Headers::TRACEPARENT, format!("00-{trace}-{id}-{flags:02x}"));
    let state = span.trace_state().header();
    if !state.is_empty() {
        headers.set(Headers::TRACESTATE, state);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::event::Event;

    #[test]
    fn an_event_belongs_to_the_trace_of_its_span() {
        let tracer = SdkTracerProvider::builder().build().tracer("test");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(Event::new("order", "42", "OrderPlaced").headers.len(), 0, "no span");
            let span = tracing::info_span!("place order");
            let _entered = span.enter();
            let context = span.context();
            let trace = context.span().span_context().trace_id().to_string();
            let event = Event::new("order", "42", "OrderPlaced");
            let parent = event.headers.get(Headers::TRACEPARENT).unwrap();
            let parts: Vec<_> = parent.split('-').collect();
            assert_eq!((parts[0], parts[1], parts[2].len(), parts[3]), ("00", &*trace, 16, "01"));
            let same = Event::with_id(event.id, "order", "42", "OrderPlaced");
            assert!(same.headers.is_empty(), "read back, not made");
        });
    }
}
