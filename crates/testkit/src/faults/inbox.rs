//! An inbox that fails.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Opening, Seen, Tally};
use semel_core::{EventId, Failure, InboxStore};

use super::Chaos;
use super::chaos::Mishap;

/// An inbox whose calls fail, and whose commits happen and are reported as failed.
#[derive(Debug)]
pub struct FaultyInbox<S> {
    inner: S,
    chaos: Arc<Chaos>,
}

impl<S: InboxStore> FaultyInbox<S> {
    /// Wraps an inbox.
    pub fn new(inner: S, chaos: Arc<Chaos>) -> Self {
        Self { inner, chaos }
    }

    async fn may_fail(&self) -> Result<(), Failure> {
        self.chaos.dawdle().await;
        if self.chaos.is_out() || self.chaos.mishap() == Mishap::Fail {
            return Err(unreachable_inbox());
        }
        Ok(())
    }
}

impl<S: InboxStore> InboxStore for FaultyInbox<S> {
    type Tx<'c> = S::Tx<'c>;

    async fn begin(&self) -> Result<Self::Tx<'static>, Failure> {
        self.may_fail().await?;
        self.inner.begin().await
    }

    async fn begin_with(
        &self,
        consumer: &str,
        opening: Opening<'_>,
    ) -> Result<(Self::Tx<'static>, bool), Failure> {
        self.may_fail().await?;
        self.inner.begin_with(consumer, opening).await
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        self.may_fail().await?;
        self.inner.record(tx, consumer, id).await
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        self.may_fail().await?;
        self.inner.store_result(tx, consumer, id, result).await
    }

    async fn commit(&self, tx: Self::Tx<'static>) -> Result<(), Failure> {
        self.chaos.dawdle().await;
        match self.chaos.mishap() {
            Mishap::Fail => return Err(unreachable_inbox()),
            Mishap::Lie | Mishap::Hang | Mishap::Double => {
                self.inner.commit(tx).await?;
                return Err(unreachable_inbox());
            }
            Mishap::None => self.inner.commit(tx).await?,
        }
        self.chaos.dawdle().await;
        Ok(())
    }

    async fn rollback(&self, tx: Self::Tx<'static>) {
        self.inner.rollback(tx).await;
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.inner.forget(age, limit).await
    }

    async fn count(&self, consumer: &str, tally: Tally) -> Result<(), Failure> {
        self.inner.count(consumer, tally).await
    }
}

fn unreachable_inbox() -> Failure {
    Failure::unavailable("E-CHAOS", "the inbox is out of reach")
}
