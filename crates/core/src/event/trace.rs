//! The trace an event belongs to: taken from the span in which it is made, and given to the spans
//! in which it is sent and takes effect.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::Headers;

impl Headers {
    /// Makes `span` a part of the trace that these headers carry; says whether they carry one.
    ///
    /// ```
    /// # use semel_core::Headers;
    /// let mut headers = Headers::default();
    /// headers.set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    /// assert!(headers.continue_trace(&tracing::info_span!("process")));
    /// assert!(!Headers::default().continue_trace(&tracing::info_span!("process")));
    /// ```
    pub fn continue_trace(&self, span: &Span) -> bool {
        let Some(remote) = self.remote_span() else { return false };
        // Fails where nobody collects spans, and then there is nothing to do.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
        true
    }

    /// Makes `span` point to the trace that these headers carry, without being a part of it; says
    /// whether they carry one.
    ///
    /// ```
    /// # use semel_core::Headers;
    /// let mut first = Headers::default();
    /// first.set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    /// assert!(first.link_trace(&tracing::info_span!("replay")));
    /// ```
    pub fn link_trace(&self, span: &Span) -> bool {
        let remote = self.remote_span();
        let is_carried = remote.is_some();
        remote.into_iter().for_each(|remote| span.add_link(remote));
        is_carried
    }

    fn remote_span(&self) -> Option<SpanContext> {
        let (trace, id, flags) = self.get(Self::TRACEPARENT).and_then(parse)?;
        let state = self.get(Self::TRACESTATE).and_then(|state| state.parse::<TraceState>().ok());
        Some(SpanContext::new(trace, id, flags, true, state.unwrap_or_default()))
    }
}

/// A W3C trace parent. What later versions append is skipped, as they ask for.
fn parse(parent: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut parts = parent.split('-');
    let [version, trace, id, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    if [version, trace, id, flags].map(str::len) != [2, 32, 16, 2] || version == "ff" {
        return None;
    }
    let (trace, id) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(id).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    (trace != TraceId::INVALID && id != SpanId::INVALID).then_some((trace, id, flags))
}

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
    fn a_parent_that_is_none_starts_no_trace() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(parse(good).is_some());
        assert!(parse(&format!("{good}-later")).is_some());
        let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        for wrong in
            ["", "00", zero, &good[1..], &good.replace('a', "g"), &good.replace("00-", "ff-")]
        {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

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
