//! [`OutboxWriter`]: events written in the caller's transaction.

use semel_core::event::EventLimits;
use semel_core::outbox::{AppendError, OutboxWriter};
use semel_core::{Event, Headers, Timestamp};
use sqlx::error::DatabaseError;
use sqlx::{Connection, MySql, MySqlConnection, QueryBuilder, Transaction};

use super::error::failure;
use super::many;
use super::store::MysqlStore;

/// Appends events to `semel_outbox`. Made by [`MysqlStore::outbox`].
///
/// It works on any transaction of the same database, of any isolation level, also on one the
/// application opened on a pool of its own, and never begins or commits one. InnoDB undoes a refused
/// statement and nothing else, so the transaction can go on after a duplicate.
///
/// **Round trips.** One, once the connection has prepared the statement: up to 8 events have one for
/// each number of them, and all others share one. What is more than 4 MiB as it is sent is several
/// statements, undone together by a savepoint.
///
/// **Order.** Events of one aggregate are published in the order of their transactions' commits
/// when these exclude each other, as they do when each changes the aggregate's own row *before* it
/// appends. Two transactions that append to one aggregate at the same time without that have no
/// order to keep: theirs is that of the appends, or of the commits when a relay read in between.
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::Event;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
/// let outbox = store.outbox();
///
/// let mut tx = store.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (42)").execute(&mut *tx).await?;
/// outbox.append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
/// tx.commit().await?;
/// outbox.committed();
/// # Ok(()) }
/// ```
///
/// Without a transaction it does not compile:
///
/// ```compile_fail,E0308
/// # async fn run(store: semel_backends::mysql::MysqlStore) {
/// # use semel_core::Event;
/// store.outbox().append(store.pool(), Event::new("order", "42", "OrderPlaced")).await;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlOutbox {
    store: MysqlStore,
    limits: EventLimits,
}

/// The most bytes of one statement: well below the `max_allowed_packet` of 16 MiB or more that
/// servers have unless somebody lowered it.
const BYTES: usize = 4 * 1024 * 1024;

/// Up to so many events are rows with parameters of their own, a statement for each number of them:
/// cheaper for the server than to take JSON apart, and few enough to be kept prepared.
const FEW: usize = 8;

impl MysqlOutbox {
    pub(super) fn new(store: MysqlStore) -> Self {
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
    /// [`AppendError`]; after `Duplicate` and `Invalid` the transaction can go on.
    pub async fn append(
        &self,
        tx: &mut Transaction<'_, MySql>,
        event: Event,
    ) -> Result<(), AppendError> {
        self.append_all(tx, &[event]).await
    }

    /// Appends all events, or none, in one round trip; see [`MysqlOutbox`].
    ///
    /// # Errors
    /// [`AppendError`]; after `Duplicate` and `Invalid` the transaction can go on.
    pub async fn append_all(
        &self,
        tx: &mut Transaction<'_, MySql>,
        events: &[Event],
    ) -> Result<(), AppendError> {
        events
            .iter()
            .try_for_each(|event| event.check(&self.limits))
            .map_err(AppendError::Invalid)?;
        match insert_all(tx, events).await {
            Ok(()) => Ok(()),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                let key = duplicate_key(&*error, events);
                Err(AppendError::Duplicate { key, transaction_usable: true })
            }
            Err(error) => Err(AppendError::Store(failure("append to semel_outbox")(error))),
        }
    }

    /// Tells the relays of this process that a transaction with events has committed, so that they
    /// look at once. Without it, and in other processes, they look again at their poll interval.
    pub fn committed(&self) {
        self.store.announce_change();
    }
}

impl OutboxWriter for MysqlOutbox {
    type Tx<'c> = Transaction<'c, MySql>;

    async fn append(&self, tx: &mut Self::Tx<'_>, events: &[Event]) -> Result<(), AppendError> {
        self.append_all(tx, events).await
    }
}

/// What one statement inserts: the server numbers its rows in their order, and undoes all of it when
/// one row is refused.
enum Part<'e> {
    Few(&'e [Event]),
    /// So many of the events, as the parameter of [`many::INSERT`].
    Many(usize, String),
}

impl<'e> Part<'e> {
    /// As many of the events as one statement takes, from the first on: at least one, if there is
    /// any.
    fn first_of(events: &'e [Event]) -> Result<Self, sqlx::Error> {
        if events.len() > FEW {
            let encoded = many::encode(events, BYTES);
            let (json, count) = encoded.map_err(|error| sqlx::Error::Encode(error.into()))?;
            if count > FEW {
                return Ok(Self::Many(count, json));
            }
        }
        let (few, _) = events.split_at(fitting(events));
        Ok(Self::Few(few))
    }

    fn len(&self) -> usize {
        match self {
            Self::Few(events) => events.len(),
            Self::Many(count, _) => *count,
        }
    }

    async fn insert(self, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        match self {
            Self::Few([]) => Ok(()),
            Self::Few(events) => insert_few(connection, events).await,
            Self::Many(count, json) => {
                let done = sqlx::query(many::INSERT).bind(json).execute(connection).await?;
                let written = done.rows_affected();
                if usize::try_from(written) == Ok(count) {
                    return Ok(());
                }
                Err(sqlx::Error::Protocol(format!("{written} of {count} events were written")))
            }
        }
    }
}

/// How many of the events are rows of one statement.
fn fitting(events: &[Event]) -> usize {
    let mut bytes = 0;
    let fits = |event: &&Event| {
        bytes += event.size();
        bytes <= BYTES
    };
    let count = events.iter().take(FEW).take_while(fits).count();
    count.max(1).min(events.len())
}

async fn insert_all(connection: &mut MySqlConnection, events: &[Event]) -> Result<(), sqlx::Error> {
    let first = Part::first_of(events)?;
    if first.len() == events.len() {
        return first.insert(connection).await;
    }
    let mut savepoint = connection.begin().await?;
    if let Err(error) = insert_in_parts(&mut savepoint, first, events).await {
        savepoint.rollback().await?;
        return Err(error);
    }
    savepoint.commit().await
}

async fn insert_in_parts<'e>(
    connection: &mut MySqlConnection,
    mut part: Part<'e>,
    mut events: &'e [Event],
) -> Result<(), sqlx::Error> {
    loop {
        let (_, rest) = events.split_at(part.len());
        part.insert(&mut *connection).await?;
        if rest.is_empty() {
            return Ok(());
        }
        (part, events) = (Part::first_of(rest)?, rest);
    }
}

async fn insert_few(connection: &mut MySqlConnection, events: &[Event]) -> Result<(), sqlx::Error> {
    let mut insert = QueryBuilder::new(
        "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, \
         content_type, headers, idempotency_key, created_at, available_at) ",
    );
    insert.push_values(events, |mut row, event| {
        row.push_bind(event.id.to_string())
            .push_bind(event.aggregate_type.as_str())
            .push_bind(event.aggregate_id.as_str())
            .push_bind(event.event_type.as_str())
            .push_bind(event.payload.bytes().as_ref())
            .push_bind(event.payload.content_type())
            .push_bind(headers(&event.headers))
            .push_bind(event.custom_key.as_deref())
            .push("timestamp'1970-01-01 00:00:00' + INTERVAL ")
            .push_bind_unseparated(event.created_at.as_microsecond())
            .push_unseparated(" MICROSECOND")
            .push("timestamp'1970-01-01 00:00:00' + INTERVAL ")
            .push_bind_unseparated(event.available_at.map(Timestamp::as_microsecond))
            .push_unseparated(" MICROSECOND");
    });
    insert.build().execute(connection).await.map(drop)
}

/// Which key is taken: the server says the value in its message, cut off when it is long.
fn duplicate_key(error: &dyn DatabaseError, events: &[Event]) -> Option<String> {
    let (_, value) = error.message().split_once('\'')?;
    let (value, _) = value.rsplit_once("' for key")?;
    let is_it = |event: &&Event| event.idempotency_key() == value || event.id.to_string() == value;
    events.iter().find(is_it).map(|event| event.idempotency_key().into_owned())
}

pub(super) fn headers(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    // Strings always make JSON.
    serde_json::to_string(headers).ok()
}

#[cfg(test)]
mod tests {
    use semel_core::Payload;

    use super::*;

    fn sized(bytes: usize) -> Event {
        Event::new("order", "1", "T").with_bytes(Payload::JSON, vec![b' '; bytes])
    }

    #[test]
    fn rows_of_one_statement_are_bounded_by_number_and_bytes() {
        assert_eq!(fitting(&[]), 0);
        assert_eq!(fitting(&vec![sized(1); FEW + 1]), FEW);
        assert_eq!(fitting(&[sized(BYTES), sized(1)]), 1, "too large, and alone");
        assert_eq!(fitting(&[sized(BYTES / 2 - 1000), sized(BYTES / 2 - 1000), sized(9)]), 3);
        assert_eq!(fitting(&[sized(BYTES / 2), sized(BYTES / 2), sized(9)]), 1);
    }

    #[test]
    fn more_than_a_few_are_one_parameter_as_long_as_they_are_small() {
        let is_many = |events: &[Event], count: usize| {
            let part = Part::first_of(events).unwrap();
            assert_eq!(part.len(), count);
            matches!(part, Part::Many(..))
        };
        assert!(!is_many(&[], 0));
        assert!(!is_many(&vec![sized(9); FEW], FEW));
        assert!(is_many(&vec![sized(9); FEW + 1], FEW + 1));
        assert!(is_many(&vec![sized(9); 5_000], 5_000));
        assert!(!is_many(&vec![sized(BYTES / 4); 20], 3), "rows, without base64");
        let mut with_one_too_large = vec![sized(9); 20];
        with_one_too_large[10] = sized(BYTES);
        assert!(is_many(&with_one_too_large, 10));
    }
}
