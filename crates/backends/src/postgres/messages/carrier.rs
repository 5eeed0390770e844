//! The task that carries messages from the log into the outbox.
//!
//! The slot is confirmed up to a commit when all messages of it are in the outbox. What comes again
//! after a crash is there already, known by its id, and left alone.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use pgwire_replication::{Lsn, ReplicationClient};
use semel_core::{Event, Failure, telemetry};
use sqlx::error::DatabaseError;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::super::error::failure;
use super::super::outbox::insert_new;
use super::super::pooler::LASTING;
use super::super::store::PostgresStore;
use super::super::tail::{config, keep_little, of_session, refused};
use super::alive::{Session, look};
use super::format;
use super::page::{Page, received};
use super::patience::Patience;
use super::slot::{self, PUBLICATION, Slot};
use crate::tailing::Up;

/// Carries messages until it is dropped. Made by [`PostgresStore::carry_messages`].
#[derive(Debug)]
#[must_use = "carrying ends when this is dropped"]
pub struct Carrying {
    store: PostgresStore,
    slot: String,
    /// How many events this process has added to the outbox.
    added: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Carrying {
    pub(super) fn start(store: PostgresStore, pipeline: &str, slot: String) -> Self {
        let (pipeline, added) = (pipeline.to_owned(), Arc::<AtomicU64>::default());
        let carrier = Carrier {
            store: store.clone(),
            slot: slot.clone(),
            pipeline,
            added: Arc::clone(&added),
            up: None,
        };
        Self { store, slot, added, task: tokio::spawn(carrier.run()) }
    }

    /// Waits until all that is committed now is in the outbox, whoever carries it.
    ///
    /// # Errors
    /// `Unavailable` when nothing is carried for a minute, `Misconfigured` when the slot is gone.
    pub async fn caught_up(&self) -> Result<(), Failure> {
        const NOW: &str = "select pg_current_wal_lsn()::text";
        const PASSED: &str = "select coalesce(confirmed_flush_lsn >= $2::text::pg_lsn, false),
            confirmed_flush_lsn::text from pg_replication_slots where slot_name = $1";
        const EVERY: Duration = Duration::from_millis(20);
        let failed = || failure("look how far messages were carried");
        let pool = self.store.pool();
        let now: String = sqlx::query_scalar(NOW).fetch_one(pool).await.map_err(failed())?;
        let mut patience = Patience::new();
        loop {
            let passed = sqlx::query_as(PASSED).bind(&self.slot).bind(&now);
            let passed: Option<(bool, Option<String>)> =
                passed.fetch_optional(pool).await.map_err(failed())?;
            match passed {
                Some((true, _)) => return Ok(()),
                // A large transaction is confirmed when all of it is in the outbox.
                Some((_, place)) => {
                    if patience.is_over((place, self.added.load(Ordering::Relaxed))) {
                        return Err(refused("no message was carried for a minute"));
                    }
                }
                None => return Slot::look(pool).await?.check(),
            }
            sleep(EVERY).await;
        }
    }
}

struct Carrier {
    store: PostgresStore,
    slot: String,
    pipeline: String,
    added: Arc<AtomicU64>,
    /// None while somebody else carries: then this one need not.
    up: Option<Up>,
}

impl Carrier {
    /// Somebody else carries.
    const TURN: Duration = Duration::from_millis(500);
    const PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);
    /// How long a session lasts that was no failure from the beginning.
    const WHILE: Duration = Duration::from_secs(10);

    async fn run(mut self) {
        let (mut pause, mut told) = (Self::PAUSE, None);
        loop {
            let began = Instant::now();
            let Err(failure) = contained(self.turn()).await else {
                self.up = None;
                sleep(Self::TURN).await;
                continue;
            };
            let had_carried = self.is_up(false);
            if told != Some(failure.code()) || had_carried {
                let (pipeline, code) = (&self.pipeline, failure.code());
                let fix = failure.fix().unwrap_or_default();
                tracing::warn!(pipeline, code, fix, "messages wait in the log: {failure}");
                told = Some(code);
            }
            if began.elapsed() > Self::WHILE {
                pause = Self::PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Self::LONGEST_PAUSE);
        }
    }

    /// Whether this one carries, from now on; says whether it did.
    fn is_up(&mut self, now: bool) -> bool {
        let metric = telemetry::MESSAGES_CARRIED;
        self.up.get_or_insert_with(|| Up::of(metric, &self.pipeline)).is(now)
    }

    /// Carries until something ends it; at once where somebody else does.
    async fn turn(&mut self) -> Result<(), Failure> {
        let slot = look(self.store.pool()).await?;
        slot.check()?;
        if slot.is_read {
            return Ok(());
        }
        if !slot.has_publication {
            slot::create(self.store.pool()).await?;
        }
        self.is_up(false);
        match self.carry(&slot).await? {}
    }

    async fn carry(&mut self, slot: &Slot) -> Result<Infallible, Failure> {
        const CONFIRM: Duration = Duration::from_millis(100);
        /// What waits in the client is bounded by its number alone, however large messages are.
        const AHEAD: usize = 16;
        let mut config = config(&self.store.pool().connect_options(), &self.slot, PUBLICATION)?;
        config.application_name = Some("semel carrier".into());
        config.options = Some("-c wal_sender_timeout=60s".into());
        config.status_interval = CONFIRM;
        config.buffer_events = AHEAD;
        let connected = ReplicationClient::connect(config).await;
        let mut client = connected.map_err(|error| of_session(&error))?;
        let log_end = Lsn::from_u64(slot.log_end.unsigned_abs());
        let (mut session, mut page) = (Session::begin(), Page::default());
        let mut keeping_little = pin!(keep_little(self.store.pool().clone(), &slot.name));
        loop {
            let turning = async {
                page.fill(&mut client).await?;
                self.put_down_and_read_on(&page, &mut client, slot.is_unicode).await
            };
            let next = tokio::select! {
                biased;
                next = turning => next?,
                never = &mut keeping_little => match never {},
                failure = session.gone(self.store.pool()) => {
                    // Dropped, it might wait for the server for ever.
                    client.abort();
                    return Err(failure);
                }
            };
            client.update_applied_lsn(page.carried);
            // A session alone says nothing: the first message may be refused again and again.
            if page.shows_progress(log_end) && !self.is_up(true) {
                tracing::info!(pipeline = self.pipeline, "messages are carried from the log");
            }
            page = next;
        }
    }

    /// Puts down a page while the next one fills, so that few are large rather than many small.
    async fn put_down_and_read_on(
        &self,
        page: &Page,
        client: &mut ReplicationClient,
        is_unicode: bool,
    ) -> Result<Page, Failure> {
        let mut next = page.following();
        let mut putting = pin!(self.put_down(page, is_unicode));
        loop {
            tokio::select! {
                biased;
                put = &mut putting => return put.map(|()| next),
                event = client.recv(), if !next.is_full() => next.take(received(event)?),
            }
        }
    }

    /// Puts the messages of a page into the outbox.
    async fn put_down(&self, page: &Page, is_unicode: bool) -> Result<(), Failure> {
        let mut events = Vec::with_capacity(page.messages.len());
        for (lsn, content) in &page.messages {
            match self.read(content, is_unicode).await? {
                Ok(event) => events.push(event),
                Err(failure) => {
                    let code = failure.code();
                    tracing::error!(code, %lsn, "a message is left out: {failure}");
                }
            }
        }
        if !events.is_empty() {
            self.insert(&events).await?;
            self.store.notify();
        }
        Ok(())
    }

    /// The event of a message, or why it is none. The log of a database that is not in UTF-8 has text as
    /// the database does.
    async fn read(
        &self,
        content: &[u8],
        is_unicode: bool,
    ) -> Result<Result<Event, Failure>, Failure> {
        const TRANSLATE: &str = "select convert_from($1, getdatabaseencoding())";
        if is_unicode || content.is_ascii() {
            return Ok(format::decode(content));
        }
        let translate = sqlx::query_scalar(TRANSLATE).bind(content);
        match translate.fetch_one(self.store.pool()).await {
            Ok(text) => Ok(format::decode(String::as_bytes(&text))),
            Err(error) if is_of_an_event(&error) => Ok(Err(format::wrong(error))),
            Err(error) => Err(failure("translate a message")(error)),
        }
    }

    async fn insert(&self, events: &[Event]) -> Result<(), Failure> {
        let mut tx = self.store.begin_as(LASTING).await?;
        let inserted = match insert_new(&mut tx, events).await {
            Ok(inserted) => {
                tx.commit().await.map_err(failure("carry messages"))?;
                self.count(&inserted);
                inserted
            }
            // The keys of a partitioned outbox are in another table, whose refusal ends everything;
            // and one event that cannot be stored would hold back all others, and the log.
            Err(error) if is_duplicate(&error) || is_of_an_event(&error) => {
                drop(tx);
                self.insert_each(events).await?
            }
            Err(error) => return Err(failure("carry messages")(error)),
        };
        if inserted.len() < events.len() {
            self.flush().await?;
        }
        self.tell_duplicates(events, &inserted).await
    }

    /// What was there already may be of a commit that nobody waited for. With this one it is on the
    /// disk, before the log is let go that has it too.
    async fn flush(&self) -> Result<(), Failure> {
        const RECORD: &str = "select pg_logical_emit_message(true, 'semel.carried', '')";
        let failed = || failure("have what was carried before on the disk");
        let mut tx = self.store.begin_as(LASTING).await?;
        sqlx::query(RECORD).execute(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())
    }

    /// Those that are there now, or were told to be left out.
    async fn insert_each(&self, events: &[Event]) -> Result<Vec<Uuid>, Failure> {
        let mut inserted = Vec::new();
        for event in events {
            let mut tx = self.store.begin_as(LASTING).await?;
            match insert_new(&mut tx, std::slice::from_ref(event)).await {
                Ok(one) => {
                    tx.commit().await.map_err(failure("carry a message"))?;
                    self.count(&one);
                    inserted.extend(one);
                }
                Err(error) if is_duplicate(&error) => {}
                Err(error) if is_of_an_event(&error) => {
                    let (id, why) = (&event.id, failure("carry a message")(error));
                    let code = why.code();
                    tracing::error!(code, %id, "a message is left out: {why}");
                    inserted.push(*id.as_uuid());
                }
                Err(error) => return Err(failure("carry a message")(error)),
            }
        }
        Ok(inserted)
    }

    fn count(&self, added: &[Uuid]) {
        self.added.fetch_add(added.len() as u64, Ordering::Relaxed);
    }

    /// Nobody could refuse a key that exists already when the message was written.
    async fn tell_duplicates(&self, events: &[Event], inserted: &[Uuid]) -> Result<(), Failure> {
        const KNOWN: &str = "select id from semel.outbox where id = any ($1)";
        let is_left =
            |event: &&Event| event.custom_key.is_some() && !inserted.contains(event.id.as_uuid());
        let left: Vec<&Event> = events.iter().filter(is_left).collect();
        if left.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = left.iter().map(|event| *event.id.as_uuid()).collect();
        let known: Vec<Uuid> = sqlx::query_scalar(KNOWN)
            .bind(ids)
            .fetch_all(self.store.pool())
            .await
            .map_err(failure("look for messages that were carried before"))?;
        for event in left.iter().filter(|event| !known.contains(event.id.as_uuid())) {
            let (id, key) = (&event.id, event.idempotency_key());
            tracing::warn!(%id, %key, "a message is left out: an event with its key exists already");
        }
        Ok(())
    }
}

/// Nobody would hear of a task that panics, and messages would wait for ever.
async fn contained(turn: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let turned = AssertUnwindSafe(turn).catch_unwind().await;
    turned.unwrap_or_else(|_| Err(refused("the carrier panicked")))
}

fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

/// Whether the table has no room for what is in an event, and so never will. A constraint or a trigger
/// is somebody's own, who can take it back: until then messages wait.
fn is_of_an_event(error: &sqlx::Error) -> bool {
    /// A text, number or time that is too large, a character that the database does not have.
    const NO_ROOM: [&str; 5] = ["22001", "22003", "22008", "22021", "22P05"];
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| NO_ROOM.contains(&&*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_that_panics_has_failed() {
        let turned = contained(async { panic!("shorter than it says") }).await;
        assert_eq!(turned.unwrap_err().code(), "E-TAIL-LOST");
        assert!(contained(async { Ok(()) }).await.is_ok());
    }
}
