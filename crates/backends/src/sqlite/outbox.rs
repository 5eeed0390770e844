//! [`OutboxWriter`]: events into the caller's own transaction.

use semel_core::event::EventLimits;
use semel_core::outbox::{AppendError, OutboxWriter};
use semel_core::{Event, Payload, Timestamp};
use sqlx::{Connection, QueryBuilder, Sqlite, SqliteConnection, Transaction};

use super::error::failure;
use super::store::SqliteStore;

/// Appends events to `semel_outbox`. Made by [`SqliteStore::outbox`].
///
/// It works on any transaction of the same file; one that [`SqliteStore::begin`] opened, or that
/// begins with `BEGIN IMMEDIATE`, never fails for want of the lock in the middle.
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::Event;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// store.migrate().await?;
/// let outbox = store.outbox();
///
/// let mut tx = store.begin().await?;
/// let event = Event::new("order", "42", "OrderPlaced").with_idempotency_key("order-42");
/// outbox.append(&mut tx, event.clone()).await?;
/// assert!(outbox.append(&mut tx, event).await.is_err(), "the key is taken");
/// tx.commit().await?;
/// outbox.committed();
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// Without a transaction it does not compile:
///
/// ```compile_fail,E0308
/// # async fn run(store: semel_backends::sqlite::SqliteStore) {
/// # use semel_core::Event;
/// store.outbox().append(store.pool(), Event::new("order", "42", "OrderPlaced")).await;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOutbox {
    store: SqliteStore,
    limits: EventLimits,
}

impl SqliteOutbox {
    /// The most rows of one statement: its parameters stay well below SQLite's limit of 32,766.
    const ROWS: usize = 500;

    pub(super) fn new(store: SqliteStore) -> Self {
        Self { store, limits: EventLimits::default() }
    }

    /// Other limits for names and sizes.
    #[must_use]
    pub fn with_limits(mut self, limits: EventLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Appends one event.
    ///
    /// # Errors
    /// [`AppendError`]; after any of them the transaction can go on.
    pub async fn append(
        &self,
        tx: &mut Transaction<'_, Sqlite>,
        event: Event,
    ) -> Result<(), AppendError> {
        self.append_all(tx, &[event]).await
    }

    /// Appends all events, or none.
    ///
    /// # Errors
    /// [`AppendError`]; after any of them the transaction can go on.
    pub async fn append_all(
        &self,
        tx: &mut Transaction<'_, Sqlite>,
        events: &[Event],
    ) -> Result<(), AppendError> {
        events
            .iter()
            .try_for_each(|event| event.check(&self.limits))
            .map_err(AppendError::Invalid)?;
        let inserted = if events.len() <= Self::ROWS {
            insert(tx, events).await
        } else {
            insert_in_parts(tx, events).await
        };
        match inserted {
            Ok(()) => Ok(()),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                let key = find_duplicate(tx, events).await;
                Err(AppendError::Duplicate { key, transaction_usable: true })
            }
            Err(error) => Err(AppendError::Store(failure("append to the outbox")(error))),
        }
    }

    /// Tells the relays of this process that a transaction with events has committed, so that they
    /// look at once. Without it, and in other processes, they look again at their poll interval.
    ///
    /// ```
    /// use semel_backends::sqlite::SqliteConfig;
    /// use semel_core::memory::MemoryBroker;
    /// use semel_core::Event;
    /// use semel_relay::{Relay, Settings, Stop};
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite://{}/shop.db", folder.path().display());
    /// let store = SqliteConfig::new(&url)?.connect().await?;
    /// store.migrate().await?;
    /// let (source, broker) = (store.source("orders").await?, MemoryBroker::new());
    /// let seldom = Settings { poll_interval: Duration::from_secs(3600), ..Settings::default() };
    /// let (stopper, stop) = Stop::new();
    /// let relay = Relay::new("orders", source, broker.clone()).with_settings(seldom);
    /// let running = tokio::spawn(relay.run(stop));
    ///
    /// let mut tx = store.begin().await?;
    /// store.outbox().append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
    /// tx.commit().await?;
    /// store.outbox().committed(); // the relay need not wait for an hour
    /// while broker.is_empty() {
    ///     tokio::task::yield_now().await;
    /// }
    /// stopper.stop();
    /// assert_eq!(running.await??.published, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn committed(&self) {
        self.store.announce_change();
    }
}

impl OutboxWriter for SqliteOutbox {
    type Tx<'c> = Transaction<'c, Sqlite>;

    async fn append(&self, tx: &mut Self::Tx<'_>, events: &[Event]) -> Result<(), AppendError> {
        self.append_all(tx, events).await
    }
}

/// One statement: SQLite undoes all of it when one row is refused.
async fn insert(connection: &mut SqliteConnection, events: &[Event]) -> Result<(), sqlx::Error> {
    if events.is_empty() {
        return Ok(());
    }
    let mut insert = QueryBuilder::new(
        "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, \
         content_type, headers, idempotency_key, created_at, available_at) ",
    );
    insert.push_values(events, |mut row, event| {
        row.push_bind(event.id.to_string())
            .push_bind(event.aggregate_type.as_str())
            .push_bind(event.aggregate_id.as_str())
            .push_bind(event.event_type.as_str());
        match readable(&event.payload) {
            Some(text) => row.push_bind(text),
            None => row.push_bind(event.payload.bytes().as_ref()),
        };
        row.push_bind(event.payload.content_type())
            .push_bind(headers(event))
            .push_bind(event.custom_key.as_deref())
            .push_bind(event.created_at.as_microsecond())
            .push_bind(event.available_at.map(Timestamp::as_microsecond));
    });
    // Only the statement for a single event is common enough to be kept prepared.
    insert.build().persistent(events.len() == 1).execute(connection).await.map(drop)
}

/// Several statements, undone together by a savepoint.
async fn insert_in_parts(
    connection: &mut SqliteConnection,
    events: &[Event],
) -> Result<(), sqlx::Error> {
    let mut savepoint = connection.begin().await?;
    for part in events.chunks(SqliteOutbox::ROWS) {
        insert(&mut savepoint, part).await?;
    }
    savepoint.commit().await
}

/// SQLite names the constraint that was violated, not the value: look for it.
async fn find_duplicate(connection: &mut SqliteConnection, events: &[Event]) -> Option<String> {
    for (position, event) in events.iter().enumerate() {
        let key = event.idempotency_key();
        let repeats = |earlier: &Event| earlier.id == event.id || earlier.idempotency_key() == key;
        let found: Option<i64> = sqlx::query_scalar(
            "SELECT seq FROM semel_outbox WHERE coalesce(idempotency_key, id) = ?1 OR id = ?2",
        )
        .bind(key.as_ref())
        .bind(event.id.to_string())
        .fetch_optional(&mut *connection)
        .await
        .ok()?;
        if found.is_some() || events[..position].iter().any(repeats) {
            return Some(key.into_owned());
        }
    }
    None
}

/// JSON is stored as text, so that people and SQLite's JSON functions can read it.
pub(super) fn readable(payload: &Payload) -> Option<&str> {
    if payload.is_json() { std::str::from_utf8(payload.bytes()).ok() } else { None }
}

pub(super) fn headers(event: &Event) -> String {
    if event.headers.is_empty() {
        return "{}".into();
    }
    // Strings always make JSON.
    serde_json::to_string(&event.headers).unwrap_or_else(|_| "{}".into())
}
