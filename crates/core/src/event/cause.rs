//! What an event follows from: the event in whose handler it is made.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use super::{Event, Headers};

thread_local! {
    /// What the present handler handles. Few handlers make events, so nothing is taken from it
    /// before one does.
    static CAUSE: RefCell<Option<Arc<Event>>> = const { RefCell::new(None) };
}

impl Event {
    /// Says that this event follows from `cause`: its id becomes the causation id, and its
    /// correlation id and trace context are taken over where this event has none. An event without
    /// a correlation id is where a story begins, so its own id is taken for one.
    ///
    /// [`Event::new`] does it by itself in a handler of a consumer.
    ///
    /// ```
    /// # use semel_core::{Event, Headers};
    /// let placed = Event::new("order", "42", "OrderPlaced");
    /// let paid = Event::new("payment", "7", "PaymentTaken").caused_by(&placed);
    /// let posted = Event::new("parcel", "1", "ParcelPosted").caused_by(&paid);
    /// let header = |name| posted.headers.get(name).unwrap().to_owned();
    /// assert_eq!(header(Headers::CAUSATION_ID), paid.id.to_string());
    /// assert_eq!(header(Headers::CORRELATION_ID), placed.id.to_string());
    /// ```
    #[must_use]
    pub fn caused_by(mut self, cause: &Event) -> Self {
        hand_down(cause, &mut self.headers);
        self
    }
}

/// Runs `future` as the handler of `cause`: every event that [`Event::new`] makes inside, on the
/// same task, is [caused by](Event::caused_by) it.
///
/// ```
/// # use semel_core::{Event, Headers, event::within};
/// # use std::sync::Arc;
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let placed = Arc::new(Event::new("order", "42", "OrderPlaced"));
/// let paying = async { Event::new("payment", "7", "PaymentTaken") };
/// let paid = within(Arc::clone(&placed), paying).await;
/// assert_eq!(paid.headers.get(Headers::CAUSATION_ID), Some(&*placed.id.to_string()));
/// # });
/// ```
pub async fn within<F: Future>(cause: Arc<Event>, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cause = Some(cause);
    poll_fn(move |context| {
        let _entered = Entered::enter(&mut cause);
        future.as_mut().poll(context)
    })
    .await
}

/// Adds what the present handler hands down, if there is one.
pub(super) fn capture(headers: &mut Headers) {
    CAUSE.with_borrow(|cause| {
        if let Some(cause) = cause {
            hand_down(cause, headers);
        }
    });
}

/// The handler is at work on this thread, until this is dropped.
struct Entered<'a> {
    own: &'a mut Option<Arc<Event>>,
    outer: Option<Arc<Event>>,
}

impl<'a> Entered<'a> {
    fn enter(own: &'a mut Option<Arc<Event>>) -> Self {
        let outer = CAUSE.replace(own.take());
        Self { own, outer }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        *self.own = CAUSE.replace(self.outer.take());
    }
}

fn hand_down(cause: &Event, to: &mut Headers) {
    let id = cause.id.to_string();
    if to.get(Headers::CORRELATION_ID).is_none() {
        let correlation = cause.headers.get(Headers::CORRELATION_ID).unwrap_or(&id);
        to.set(Headers::CORRELATION_ID, correlation);
    }
    to.set(Headers::CAUSATION_ID, id);
    // A state belongs to the parent it came with.
    if to.get(Headers::TRACEPARENT).is_some() {
        return;
    }
    for name in [Headers::TRACEPARENT, Headers::TRACESTATE] {
        if let Some(value) = cause.headers.get(name) {
            to.set(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn made() -> Event {
        Event::new("payment", "7", "PaymentTaken")
    }

    #[tokio::test]
    async fn handlers_that_take_turns_keep_their_causes_apart() {
        let causes = [1, 2].map(|_| made().with_header("traceparent", TRACE));
        let handle = |cause: Event| async move {
            let cause = Arc::new(cause);
            let headers = within(Arc::clone(&cause), async {
                tokio::task::yield_now().await;
                made().headers
            })
            .await;
            assert_eq!(headers.get(Headers::CAUSATION_ID), Some(&*cause.id.to_string()));
            assert_eq!(headers.get(Headers::TRACEPARENT), Some(TRACE));
        };
        let [first, second] = causes.map(handle);
        futures_util::future::join(first, second).await;
        assert!(made().headers.is_empty(), "outside again");
    }

    #[tokio::test]
    async fn a_cause_ends_with_its_handler_also_when_that_panics() {
        use futures_util::FutureExt;
        let handler = within(Arc::new(made()), async { panic!("as the test wants") });
        let ended = std::panic::AssertUnwindSafe(handler).catch_unwind().await;
        assert!(ended.is_err() && made().headers.is_empty());
    }

    #[test]
    fn what_the_event_says_itself_stays() {
        let cause = made().with_header("traceparent", TRACE).with_header("tracestate", "a=b");
        let event = made()
            .with_header("traceparent", "another")
            .with_header("correlation_id", "mine")
            .caused_by(&cause);
        let all: Vec<_> = event.headers.iter().collect();
        let id = cause.id.to_string();
        let expected =
            [("traceparent", "another"), ("correlation_id", "mine"), ("causation_id", &id)];
        assert_eq!(all, expected);
    }
}
