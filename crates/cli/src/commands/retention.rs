//! Old events go while the relay runs. Whatever goes wrong here is told and tried again: it never
//! stops a relay.

use std::time::Duration;

use semel_core::{AdminStore, Failure};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::clean::delete_old;
use crate::config::Retention;

/// Far more than deleting a chunk takes; a server that hangs must not end the upkeep for ever.
const PATIENCE: Duration = Duration::from_secs(600);

/// Deletes what a pipeline is done with, again and again.
pub(super) async fn keep(pipeline: String, store: Box<dyn AdminStore>, retention: Retention) {
    let Retention { keep, every, chunk } = retention;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let deleted = timeout(PATIENCE, delete_old(store.as_ref(), keep, chunk, usize::MAX)).await;
        match deleted.unwrap_or_else(|_| Err(too_slow())) {
            Ok(0) => tracing::debug!(pipeline, "no event is old enough to be deleted"),
            Ok(deleted) => {
                let age = humantime::format_duration(keep);
                tracing::info!(pipeline, deleted, "deleted events older than {age}");
            }
            Err(failure) => {
                let (code, fix) = (failure.code(), failure.fix().unwrap_or("nothing"));
                tracing::warn!(
                    pipeline,
                    code,
                    fix,
                    "cannot delete old events, will try again: {failure}"
                );
            }
        }
    }
}

fn too_slow() -> Failure {
    let what = format!("not done after {}", humantime::format_duration(PATIENCE));
    Failure::transient("E-RETENTION-SLOW", what)
        .with_fix("look for locks on the outbox, or make chunk of [retention] smaller")
}
