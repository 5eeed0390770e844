//! The task that carries messages from the log into the outbox.
//!
//! The slot is confirmed up to a commit when all messages of it are in the outbox. What comes again
//! after a crash is there already, known by its id, and left alone.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use pgwire_replication::ReplicationClient;
use semel_core::{Event, Failure};
use sqlx::error::DatabaseError;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::super::error::failure;
use super::super::outbox::insert_new;
use super::super::store::PostgresStore;
use super::super::tail::{config, of_session, refused};
use super::format;
use super::page::{Page, received};
use super::slot::{self, PUBLICATION, Slot};
use crate::tailing::Up;

/// Carries messages until it is dropped. Made by [`PostgresStore::carry_messages`].
#[derive(Debug)]
#[must_use = "carrying ends when this is dropped"]
pub struct Carrying {
    store: PostgresStore,
    slot: String,
    task: JoinHandle<()>,
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Carrying {
    const PATIENCE: Duration = Duration::from_secs(60);

    pub(super) fn start(store: PostgresStore, pipeline: &str, slot: String) -> Self {
        let carrier = Carrier { store: store.clone(), slot: slot.clone(), up: Up::new(pipeline) };
        let task = tokio::spawn(carrier.run(pipeline.to_owned()));
        Self { store, slot, task }
    }

    /// Waits until all that is committed now is in the outbox, whoever carries it.
    ///
    /// # Errors
    /// `Unavailable` when it takes longer than a minute, `Misconfigured` when the slot is gone.
    pub async fn caught_up(&self) -> Result<(), Failure> {
        const NOW: &str = "select pg_current_wal_lsn()::text";
        const PASSED: &str = "select coalesce(confirmed_flush_lsn >= $2::text::pg_lsn, false)
            from pg_replication_slots where slot_name = $1";
        const EVERY: Duration = Duration::from_millis(20);
        let failed = || failure("look how far messages were carried");
        let pool = self.store.pool();
        let now: String = sqlx::query_scalar(NOW).fetch_one(pool).await.map_err(failed())?;
        let began = Instant::now();
        while began.elapsed() < Self::PATIENCE {
            let passed = sqlx::query_scalar(PASSED).bind(&self.slot).bind(&now);
            match passed.fetch_optional(pool).await.map_err(failed())? {
                Some(true) => return Ok(()),
                Some(false) => sleep(EVERY).await,
                None => return Slot::look(pool).await?.check(),
            }
        }
        Err(refused("messages were not carried within a minute"))
    }
}

struct Carrier {
    store: PostgresStore,
    slot: String,
    up: Up,
}

impl Carrier {
    /// Somebody else carries.
    const TURN: Duration = Duration::from_millis(500);
    const PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);
    /// How long a session lasts that was no failure from the beginning.
    const WHILE: Duration = Duration::from_secs(10);

    async fn run(self, pipeline: String) {
        let (mut pause, mut told) = (Self::PAUSE, None);
        loop {
            let began = Instant::now();
            match self.turn().await {
                Ok(()) => {
                    sleep(Self::TURN).await;
                    continue;
                }
                Err(failure) => {
                    if told != Some(failure.code()) || began.elapsed() > Self::WHILE {
                        let fix = failure.fix().unwrap_or_default();
                        let code = failure.code();
                        tracing::warn!(pipeline, code, fix, "messages wait in the log: {failure}");
                        told = Some(failure.code());
                    }
                }
            }
            if began.elapsed() > Self::WHILE {
                pause = Self::PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Self::LONGEST_PAUSE);
        }
    }

    /// Carries until something ends it; at once where somebody else does.
    async fn turn(&self) -> Result<(), Failure> {
        let slot = Slot::look(self.store.pool()).await?;
        slot.check()?;
        if slot.is_read {
            return Ok(());
        }
        if !slot.has_publication {
            slot::create(self.store.pool()).await?;
        }
        let _up = Carried::begin(&self.up);
        match self.carry(slot.is_unicode).await? {}
    }

    async fn carry(&self, is_unicode: bool) -> Result<Infallible, Failure> {
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
        let mut page = Page::default();
        loop {
            page.fill(&mut client).await?;
            let next = self.put_down_and_read_on(&page, &mut client, is_unicode).await?;
            client.update_applied_lsn(page.carried);
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
        let mut tx = self.store.begin().await?;
        let inserted = match insert_new(&mut tx, events).await {
            Ok(inserted) => {
                tx.commit().await.map_err(failure("carry messages"))?;
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
        self.tell_duplicates(events, &inserted).await
    }

    /// Those that are there now, or were told to be left out.
    async fn insert_each(&self, events: &[Event]) -> Result<Vec<Uuid>, Failure> {
        let mut inserted = Vec::new();
        for event in events {
            let mut tx = self.store.begin().await?;
            match insert_new(&mut tx, std::slice::from_ref(event)).await {
                Ok(one) => {
                    tx.commit().await.map_err(failure("carry a message"))?;
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

/// The gauge is up as long as this lives.
struct Carried<'a>(&'a Up);

impl<'a> Carried<'a> {
    fn begin(up: &'a Up) -> Self {
        up.turns(true);
        Self(up)
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        self.0.turns(false);
    }
}
