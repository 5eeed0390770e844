//! A source that fails.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::{Batch, Failure, Guarantees, Holding, Limit, Settlement, Source};

use super::Chaos;
use super::chaos::Mishap;

/// A source whose calls fail, dawdle, and settle without saying so.
#[derive(Debug)]
pub struct FaultySource<S> {
    inner: S,
    chaos: Arc<Chaos>,
}

impl<S: Source> FaultySource<S> {
    /// Wraps a source.
    pub fn new(inner: S, chaos: Arc<Chaos>) -> Self {
        Self { inner, chaos }
    }
}

#[async_trait]
impl<S: Source> Source for FaultySource<S> {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.chaos.dawdle().await;
        if self.chaos.mishap() == Mishap::Fail {
            return Err(unreachable_source());
        }
        let batch = self.inner.next_batch(limit).await;
        self.chaos.dawdle().await;
        batch
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.inner.wakeup()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.chaos.dawdle().await;
        match self.chaos.mishap() {
            Mishap::Fail => return Err(unreachable_source()),
            Mishap::Lie | Mishap::Hang => {
                let _unreported = self.inner.settle(settlements).await?;
                return Err(unreachable_source());
            }
            Mishap::Double => {
                let _first = self.inner.settle(settlements).await?;
            }
            Mishap::None => {}
        }
        let holding = self.inner.settle(settlements).await;
        self.chaos.dawdle().await;
        holding
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

fn unreachable_source() -> Failure {
    Failure::unavailable("E-CHAOS", "the source is out of reach")
}
