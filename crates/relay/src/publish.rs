//! One publish call: its time limit, its panics, and what a time-out means.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::{Failure, Message, Published, Sink};
use tokio::time::{Instant, timeout};

use crate::lanes::Group;

/// A publish call that ended.
pub(crate) struct Finished {
    pub(crate) group: Group,
    pub(crate) published: Published,
    pub(crate) took: Duration,
}

/// Publishes a group. Whatever the sink does, the group comes back.
pub(crate) async fn publish(sink: Arc<dyn Sink>, group: Group, limit: Duration) -> Finished {
    let start = Instant::now();
    let call = AssertUnwindSafe(send(&*sink, &group.messages)).catch_unwind();
    let published = match timeout(limit, call).await {
        Ok(Ok(published)) => published,
        Ok(Err(_)) => Published::None(panicked()),
        Err(_) => Published::None(judge_timeout(sink, limit).await),
    };
    Finished { group, published, took: start.elapsed() }
}

/// Publishes; where it is this sink that sends, with a span for each message that has a trace.
pub(crate) async fn send<S: Sink + ?Sized>(sink: &S, batch: &[Message]) -> Published {
    #[cfg(feature = "trace")]
    let spans = crate::spans::Sending::begin(sink.system(), batch);
    let published = sink.publish(batch).await;
    #[cfg(feature = "trace")]
    spans.end(&published);
    published
}

/// Asks whether the sink can be reached. A probe that hangs means that it cannot.
pub(crate) async fn probe(sink: Arc<dyn Sink>, limit: Duration) -> Result<(), Failure> {
    let call = AssertUnwindSafe(sink.check()).catch_unwind();
    match timeout(limit, call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(panicked()),
        Err(_) => Err(Failure::unavailable(
            "E-SINK-TIMEOUT",
            format!("the sink did not answer a probe within {limit:?}"),
        )),
    }
}

/// A call that took too long is an outage if the sink cannot be reached, and otherwise the fault of
/// the events in it: they are tried again, and counted.
async fn judge_timeout(sink: Arc<dyn Sink>, limit: Duration) -> Failure {
    let slow = format!("the sink did not confirm within {limit:?}");
    match probe(sink, limit).await {
        Ok(()) => Failure::transient("E-SINK-TIMEOUT", slow),
        Err(failure) => failure,
    }
}

fn panicked() -> Failure {
    Failure::transient("E-SINK-PANIC", "the sink panicked; see the log for where")
}
