//! What the client library says beside its answers.
//!
//! It connects again by itself and keeps waiting for answers that cannot come any more; and a
//! publish without the right to do so is never answered at all. Both are told as events.

use async_nats::{Event, ServerError};
use semel_core::Failure;
use tokio::sync::watch;

use super::error::{denied, down};

/// Tells events to whoever waits for an answer.
#[derive(Clone)]
pub(super) struct Bell(watch::Sender<Option<Failure>>);

impl Bell {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// To be called with every event of the client.
    pub(super) fn hear(&self, event: &Event) {
        let trouble = match event {
            Event::Disconnected | Event::Closed => Some(down("the connection was lost")),
            Event::ServerError(ServerError::AuthorizationViolation) => {
                Some(denied("the server refuses the user"))
            }
            // Neither subject nor text is structured: `Permissions Violation for Publish to "x"`.
            Event::ServerError(ServerError::Other(text))
                if text.to_lowercase().contains("permissions violation") =>
            {
                Some(denied(text))
            }
            _ => None,
        };
        if trouble.is_some() {
            self.0.send_replace(trouble);
        }
    }

    /// Waits for `work`, or for trouble that comes meanwhile.
    pub(super) async fn unless_trouble<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut trouble = self.0.subscribe();
        tokio::select! {
            biased;
            done = work => done,
            Ok(()) = trouble.changed() => {
                let failure = trouble.borrow().clone();
                Err(failure.unwrap_or_else(|| down("the connection was lost")))
            }
        }
    }
}
