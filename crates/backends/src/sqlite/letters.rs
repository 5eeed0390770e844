//! [`DeadLetters`]: what a consumer could not take effect for.

use std::collections::HashSet;

use async_trait::async_trait;
use semel_core::letters::{
    DeadLetters, Letter, LetterBook, Numbered, Standing, from_stored, to_stored,
};
use semel_core::{Event, EventId, Failure, InboxStore, Message};
use sqlx::{Sqlite, Transaction};

use super::error::failure;
use super::store::SqliteStore;
use crate::letters::{self, implement_letters};

/// The table `semel_letters`. Made by [`SqliteStore::letters`].
///
/// No two transactions that write run at the same time, so nothing is locked.
#[derive(Clone, Debug)]
pub struct SqliteLetters {
    store: SqliteStore,
}

impl SqliteLetters {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self { store }
    }
}

const ANY: &str = "select seq from semel_letters where consumer = ?1 limit 1";

const LANE: &str = "select lane from semel_letters where consumer = ?1 and message_id = ?2";

const LANE_OF: &str = "select lane from semel_letters where consumer = ?1 and message_id = ?2";

/// The first of a lane, which nobody changes until this transaction ends.
const HEAD: &str = "select seq from semel_letters where consumer = ?1 and lane = ?2 and state <> 'held' \
    order by place, seq limit 1";

const PROMOTE: &str = "update semel_letters set state = 'due' where seq = (\
    select seq from semel_letters where consumer = ?1 and lane = ?2 and state <> 'held' \
    order by place, seq limit 1) and state = 'behind'";

const PUT: &str = "insert into semel_letters (consumer, message_id, lane, place, state, until, attempts, error, \
    message, changed_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, cast(unixepoch('subsec') * 1000000 as integer)) \
    on conflict (consumer, message_id) do update set state = excluded.state, \
    until = excluded.until, attempts = excluded.attempts, error = excluded.error, \
    changed_at = excluded.changed_at";

const REMOVE: &str = "delete from semel_letters where consumer = ?1 and message_id = ?2";

const RELEASE: &str = "update semel_letters set state = 'behind', until = null \
    where consumer = ?1 and lane = ?2 and place = ?3 and state = 'held'";

const OVERDUE: &str = "select distinct lane from semel_letters \
    where consumer = ?1 and state = 'held' and until <= ?2";

/// The first of a lane, whoever changes it just now.
const FIRST: &str = "select seq from semel_letters where consumer = ?1 and lane = ?2 and state <> 'held' \
    order by place, seq limit 1";

/// Nobody else can have it: this transaction is the only one.
const LOCK_IF_FREE: &str = "select seq from semel_letters where seq = ?1";

const RELEASE_OVERDUE: &str = "update semel_letters set state = 'behind', until = null \
    where consumer = ?1 and lane = ?2 and state = 'held' and until <= ?3";

const DUE: &str = "select message from semel_letters where consumer = ?1 and state = 'due' \
    order by seq limit ?2";

const PAGE: &str = "select seq, state, until, attempts, error, message from semel_letters \
    where consumer = ?1 and seq > ?2 order by seq limit ?3";

const FIND: &str = "select seq, state, until, attempts, error, message from semel_letters where consumer = ?1 and message_id = ?2";

const RETRY: &str = "update semel_letters set state = 'behind' \
    where consumer = ?1 and message_id = ?2 and state = 'dead'";

/// Which of many, given as pairs of id and lane, are letters, or have some in their lanes; what is
/// held back counts here.
const CONCERNED: &str = "select asked.key from json_each(?2) as asked where \
    exists (select 1 from semel_letters where consumer = ?1 \
    and message_id = json_extract(asked.value, '$[0]')) or \
    exists (select 1 from semel_letters where consumer = ?1 \
    and lane = json_extract(asked.value, '$[1]'))";

async fn concerned(
    tx: &mut Transaction<'static, Sqlite>,
    consumer: &str,
    events: &[&Event],
) -> Result<Vec<bool>, Failure> {
    let pair = |event: &&Event| format!("[\"{}\",{}]", stored_id(event.id), letters::lane(event));
    let pairs = events.iter().map(pair).collect::<Vec<_>>().join(",");
    let found = sqlx::query_scalar(CONCERNED).bind(consumer).bind(format!("[{pairs}]"));
    let places: Vec<i64> =
        found.fetch_all(&mut **tx).await.map_err(failure("look for letters of lanes"))?;
    let places: HashSet<_> = places.into_iter().collect();
    Ok((0..).zip(events).map(|(place, _)| places.contains(&place)).collect())
}

fn stored_id(id: EventId) -> String {
    id.to_string()
}

implement_letters!(SqliteLetters, Sqlite, stored_id);
