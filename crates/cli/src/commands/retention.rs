//! Old events go while the relay runs. Whatever goes wrong here is told and tried again: it never
//! stops a relay.

use std::time::{Duration, Instant};

use semel_core::{AdminStore, Failure};
use tokio::time::{sleep, timeout};

use super::clean::delete_old;
use crate::config::{Deletion, Retention};

/// Far more than deleting a chunk takes; a server that hangs must not end the upkeep for ever.
const PATIENCE: Duration = Duration::from_secs(600);

/// Deletes what a pipeline is done with, again and again.
pub(super) async fn keep(pipeline: String, store: Box<dyn AdminStore>, retention: Retention) {
    let Retention { keep, when, chunk } = retention;
    loop {
        let began = Instant::now();
        match within(store.upkeep(keep)).await {
            Ok(0) => {}
            Ok(dropped) => tracing::info!(pipeline, dropped, "dropped old partitions"),
            Err(failure) => warn(&pipeline, "drop old partitions", &failure),
        }
        let deleted = within(delete_old(store.as_ref(), keep, chunk, usize::MAX)).await;
        tell(&pipeline, keep, when, &deleted);
        sleep(pause(when, deleted.unwrap_or(0), began.elapsed())).await;
    }
}

async fn within(
    upkeep: impl Future<Output = Result<usize, Failure>> + Send,
) -> Result<usize, Failure> {
    timeout(PATIENCE, upkeep).await.unwrap_or_else(|_| Err(too_slow()))
}

/// How long nothing is deleted.
fn pause(when: Deletion, deleted: usize, took: Duration) -> Duration {
    /// What is published meanwhile goes together, in few transactions.
    const GATHERING: Duration = Duration::from_millis(100);
    const IDLE: Duration = Duration::from_millis(500);
    /// Looking takes time where much is kept, such as behind dead letters: the relay comes first.
    const LEISURE: u32 = 9;
    match when {
        Deletion::Every(every) => every,
        Deletion::OnPublish if deleted > 0 => GATHERING.max(took),
        Deletion::OnPublish => IDLE.max(took * LEISURE),
    }
}

fn tell(pipeline: &str, keep: Duration, when: Deletion, deleted: &Result<usize, Failure>) {
    match (deleted, when) {
        (Ok(0), _) => tracing::debug!(pipeline, "no event is old enough to be deleted"),
        (Ok(deleted), Deletion::OnPublish) => {
            tracing::debug!(pipeline, deleted, "deleted published events");
        }
        (Ok(deleted), Deletion::Every(_)) => {
            let age = humantime::format_duration(keep);
            tracing::info!(pipeline, deleted, "deleted events older than {age}");
        }
        (Err(failure), _) => warn(pipeline, "delete old events", failure),
    }
}

fn warn(pipeline: &str, what: &str, failure: &Failure) {
    let (code, fix) = (failure.code(), failure.fix().unwrap_or("nothing"));
    tracing::warn!(pipeline, code, fix, "cannot {what}, will try again: {failure}");
}

fn too_slow() -> Failure {
    let what = format!("not done after {}", humantime::format_duration(PATIENCE));
    Failure::transient("E-RETENTION-SLOW", what)
        .with_fix("look for locks on the outbox, or make chunk of [retention] smaller")
}
