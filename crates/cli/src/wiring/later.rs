//! A sink that is connected when there is something to send: for who must not wait for one that is away.

use std::sync::Arc;

use async_trait::async_trait;
use semel_core::{Failure, Message, Published, Sink};
use tokio::sync::OnceCell;

use super::ConnectSink;

/// Away for as long as it cannot be connected.
pub(super) struct Later {
    connect: ConnectSink,
    sink: OnceCell<Arc<dyn Sink>>,
}

impl Later {
    pub(super) fn new(connect: ConnectSink) -> Self {
        Self { connect, sink: OnceCell::new() }
    }

    async fn sink(&self) -> Result<&Arc<dyn Sink>, Failure> {
        self.sink.get_or_try_init(|| self.connect.connect()).await
    }
}

#[async_trait]
impl Sink for Later {
    async fn publish(&self, batch: &[Message]) -> Published {
        match self.sink().await {
            Ok(sink) => sink.publish(batch).await,
            Err(failure) => Published::None(failure),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        self.sink().await?.check().await
    }
}
