//! How long a consumer waits for its store.
//!
//! The handler has a limit of its own. Whatever else the store is asked for has `publish_timeout`: a
//! store that says nothing is an outage, and the messages come again. So do those that wait for
//! another process that has their ids or their mark, until it is found dead.

use std::future::Future;
use std::time::Duration;

use semel_core::{Failure, HandlerError, InboxStore};
use tokio::time::timeout;

use super::{Parts, Trouble};

/// How long a rollback is waited for.
const UNDOING: Duration = Duration::from_secs(2);

const SILENCE: &str = "E-CONSUMER-TIMEOUT";

impl<S: InboxStore, H> Parts<S, H> {
    /// What the store answers, if it does in time. What became of a call that is given up is
    /// unknown, and its transaction is fit only for undoing.
    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        in_time(self.options.settings.publish_timeout, call).await
    }

    /// Rolls back. A statement that hangs leaves a connection that answers when the statement ends,
    /// whenever that is.
    pub(super) async fn undo(&self, tx: S::Tx<'static>) {
        if timeout(UNDOING, self.store.rollback(tx)).await.is_err() {
            let consumer = &self.name;
            tracing::warn!(consumer, "a transaction ends only when the database lets it");
        }
    }
}

pub(super) async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    timeout(limit, call).await.unwrap_or_else(|_| {
        let what = format!("the database of the consumer did not answer within {limit:?}");
        Err(Failure::unavailable(SILENCE, what).with_fix(
            "see to the database, and to transactions that hold locks there; if it is only slow, \
             raise `publish_timeout` of the consumer's settings",
        ))
    })
}

impl From<HandlerError> for Trouble {
    fn from(error: HandlerError) -> Self {
        match error {
            HandlerError::Failed(failure) if failure.code() == SILENCE => Self::Silence(failure),
            error => Self::Message(error),
        }
    }
}
