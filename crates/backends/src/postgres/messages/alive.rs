//! Whether the server is still there while a session with it says nothing.
//!
//! An idle server says nothing, and neither does one that lost its power, or whose address is that of
//! another by now. So it is asked, on a connection of the pool.

use std::time::Duration;

use semel_core::Failure;
use sqlx::PgPool;
use tokio::time::{Instant, sleep, timeout};

use super::super::tail::refused;
use super::slot::Slot;

const SILENCE: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(5);
const BEGINNING: Duration = Duration::from_secs(30);

/// The slot, of a server that answers.
pub(super) async fn look(pool: &PgPool) -> Result<Slot, Failure> {
    let looked = timeout(ANSWER, Slot::look(pool)).await;
    looked.unwrap_or_else(|_| Err(refused("the server does not answer")))
}

/// A session that the server may not know of yet: to log in can take long.
pub(super) struct Session {
    since: Instant,
    is_known: bool,
}

impl Session {
    pub(super) fn begin() -> Self {
        Self { since: Instant::now(), is_known: false }
    }

    /// Waits until the server is gone that it reads the slot of, and says so.
    pub(super) async fn gone(&mut self, pool: &PgPool) -> Failure {
        loop {
            sleep(SILENCE).await;
            match look(pool).await {
                Ok(slot) if slot.is_read => self.is_known = true,
                Ok(_) if !self.is_known && self.since.elapsed() < BEGINNING => {}
                Ok(_) => return refused("the server does not know of the session any more"),
                Err(failure) => return failure,
            }
        }
    }
}
