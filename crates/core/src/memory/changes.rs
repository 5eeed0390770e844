//! Tells sources that something was committed or published.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

/// A counter of changes that can be waited for. Waiters wake in the order they began to wait, so
/// that simulated runs repeat exactly.
#[derive(Debug, Default)]
pub(super) struct Changes {
    count: AtomicU64,
    notify: Notify,
}

impl Changes {
    pub(super) fn announce(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Resolves when there were changes after the first `seen`.
    pub(super) fn after(self: Arc<Self>, seen: u64) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            loop {
                let mut change = std::pin::pin!(self.notify.notified());
                change.as_mut().enable();
                if self.count() > seen {
                    return;
                }
                change.await;
            }
        })
    }
}
