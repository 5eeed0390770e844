//! Waking relays of other processes early: NOTIFY after the commit, never inside it.
//!
//! A NOTIFY inside the writer's transaction would make all commits of the server that notify wait
//! for each other. Here it is a transaction of its own, for any number of commits, that nobody waits
//! for. One that is lost costs a delay: relays look at their poll interval all the same.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use semel_core::Failure;
use sqlx::Executor;
use sqlx::postgres::PgListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::error::failure;
use super::store::PostgresStore;

const NOTIFY: &str = "notify semel_outbox";
const CHANNEL: &str = "semel_outbox";

/// A connection that says nothing for so long is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// Whether a NOTIFY is on its way, and whether something was committed since it went.
#[derive(Debug, Default)]
pub(super) struct Notifying(AtomicU8);

const IDLE: u8 = 0;
const SENDING: u8 = 1;
const WANTED: u8 = 2;

impl Notifying {
    /// Says whether the caller is to send: nobody else is.
    fn starts(&self) -> bool {
        let next = |state| Some(if state == IDLE { SENDING } else { WANTED });
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before.unwrap_or_else(|state| state) == IDLE
    }

    /// One was sent; says whether another one is to follow.
    fn goes_on(&self) -> bool {
        let next = |state| Some(if state == WANTED { SENDING } else { IDLE });
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before.unwrap_or_else(|state| state) == WANTED
    }
}

/// Listens for notifications until it is dropped. Made by [`PostgresStore::listen`].
#[derive(Debug)]
#[must_use = "listening ends when this is dropped"]
pub struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PostgresStore {
    /// Wakes relays early, here and in other processes that [`listen`](Self::listen). To be called
    /// after the commit of a transaction that appended events.
    ///
    /// It returns at once, cannot fail and takes no part in any transaction: a NOTIFY is sent in the
    /// background on a connection of the pool. However many commits there are, one is on its way at
    /// most, and one more follows it. A writer that is not in Rust runs `NOTIFY semel_outbox` after
    /// its commit.
    ///
    /// ```no_run
    /// use semel_backends::postgres::PostgresConfig;
    /// use semel_core::Event;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
    /// let mut tx = store.begin().await?;
    /// store.outbox().append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
    /// tx.commit().await?;
    /// store.notify();
    /// # Ok(()) }
    /// ```
    pub fn notify(&self) {
        self.announce_change();
        let Ok(runtime) = Handle::try_current() else { return };
        if self.notifying.starts() {
            let store = self.clone();
            runtime.spawn(async move {
                loop {
                    if let Err(error) = store.pool().execute(NOTIFY).await {
                        tracing::debug!(%error, "relays were not notified; they look by themselves");
                    }
                    if !store.notifying.goes_on() {
                        break;
                    }
                }
            });
        }
    }

    /// Wakes the sources of this store whenever another process calls [`notify`](Self::notify), as
    /// long as the result lives. It takes one connection of the pool for itself. When that is lost
    /// it is opened anew; meanwhile relays look at their poll interval, as always.
    ///
    /// # Errors
    /// `Misconfigured` behind a pooler, which has no connection that could be kept; `Unavailable`
    /// when the server cannot be reached.
    ///
    /// ```no_run
    /// use semel_backends::postgres::PostgresConfig;
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
    /// let listening = store.listen().await?;
    /// let source = store.source("orders").await?;
    /// # Ok(()) }
    /// ```
    pub async fn listen(&self) -> Result<Listening, Failure> {
        if self.is_pooled() {
            return Err(behind_pooler());
        }
        let listener = self.listener().await.map_err(failure("listen for notifications"))?;
        Ok(Listening(tokio::spawn(self.clone().pass_on(listener))))
    }

    async fn pass_on(self, first: PgListener) {
        let mut listener = Some(first);
        loop {
            if let Some(mut listening) = listener.take() {
                // Whatever came while nobody listened.
                self.announce_change();
                let error = self.pass_on_until_lost(&mut listening).await;
                tracing::warn!(%error, "notifications are lost for a while; relays look by themselves");
            }
            sleep(PAUSE).await;
            listener = self.listener().await.ok();
        }
    }

    async fn pass_on_until_lost(&self, listener: &mut PgListener) -> sqlx::Error {
        let gone = || sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into());
        loop {
            match timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(_))) => self.announce_change(),
                Ok(Ok(None)) => return gone(),
                Ok(Err(error)) => return error,
                Err(_) => match timeout(ANSWER, listener.execute("select 1")).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => return error,
                    Err(_) => return gone(),
                },
            }
        }
    }

    async fn listener(&self) -> Result<PgListener, sqlx::Error> {
        let mut listener = PgListener::connect_with(self.pool()).await?;
        listener.listen(CHANNEL).await?;
        Ok(listener)
    }
}

fn behind_pooler() -> Failure {
    Failure::misconfigured(
        "E-POSTGRES-POOLER",
        "PostgreSQL: notifications cannot be listened for through a pooler",
    )
    .with_fix(
        "connect to the server itself, or do without notify: relays look at their poll interval",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_commits_one_is_sent_and_one_follows() {
        let notifying = Notifying::default();
        assert!(notifying.starts());
        for _ in 0..100 {
            assert!(!notifying.starts(), "one is on its way");
        }
        assert!(notifying.goes_on(), "what was committed since it went");
        assert!(!notifying.goes_on());
        assert!(notifying.starts());
        assert!(!notifying.goes_on());
    }
}
