//! A relay that is handed from the log to polling and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use semel_core::{Event, Limit, Outcome, Settlement, Source};
use tokio::time::timeout;

/// Reads as an engine does: when it is woken, and every 100 ms. Counts how often it changed from one
/// way to the other.
pub(crate) async fn read_through_hand_overs<S: Source>(
    mut source: S,
    is_tailing: fn(&S) -> bool,
    stop: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
) -> Vec<Event> {
    let (mut delivered, mut tailed) = (Vec::new(), false);
    loop {
        let was_over = stop.load(Ordering::Relaxed);
        let batch = source.next_batch(Limit { events: 50, ..Limit::default() }).await.unwrap();
        changes.fetch_add(u64::from(is_tailing(&source) != tailed), Ordering::Relaxed);
        tailed = is_tailing(&source);
        if was_over && batch.deliveries.is_empty() && !batch.more {
            return delivered;
        }
        let settlements: Vec<_> = batch
            .deliveries
            .iter()
            .map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered })
            .collect();
        delivered.extend(batch.deliveries.iter().map(|got| Event::clone(&got.message.event)));
        if !settlements.is_empty() {
            assert!(source.settle(&settlements).await.unwrap().is_held());
        }
        if !batch.more {
            drop(timeout(Duration::from_millis(100), source.wakeup()).await);
        }
    }
}
