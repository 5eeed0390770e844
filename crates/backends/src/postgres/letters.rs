//! [`DeadLetters`]: what a consumer could not take effect for.

use std::collections::HashSet;

use async_trait::async_trait;
use semel_core::letters::{
    DeadLetters, Letter, LetterBook, Numbered, Standing, from_stored, to_stored,
};
use semel_core::{Event, EventId, Failure, InboxStore, Message};
use sqlx::{Postgres, Transaction};

use super::error::failure;
use super::store::PostgresStore;
use crate::letters::{self, implement_letters};

/// The table `semel.letters`. Made by [`PostgresStore::letters`].
///
/// The first letter of a lane is the lock of the lane.
#[derive(Clone, Debug)]
pub struct PostgresLetters {
    store: PostgresStore,
}

impl PostgresLetters {
    pub(super) fn new(store: PostgresStore) -> Self {
        Self { store }
    }
}

const ANY: &str = "select seq from semel.letters where consumer = $1 limit 1";

const LANE: &str = "select lane from semel.letters where consumer = $1 and message_id = $2";

const LANE_OF: &str =
    "select lane from semel.letters where consumer = $1 and message_id = $2 for update";

/// The first of a lane, which nobody changes until this transaction ends.
const HEAD: &str = "select seq from semel.letters where consumer = $1 and lane = $2 and state <> 'held' \
    order by place, seq limit 1 for update";

const PROMOTE: &str = "update semel.letters set state = 'due' where seq = (\
    select seq from semel.letters where consumer = $1 and lane = $2 and state <> 'held' \
    order by place, seq limit 1) and state = 'behind'";

const PUT: &str = "insert into semel.letters (consumer, message_id, lane, place, state, until, attempts, error, \
    message, changed_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp()) \
    on conflict (consumer, message_id) do update set state = excluded.state, \
    until = excluded.until, attempts = excluded.attempts, error = excluded.error, \
    changed_at = excluded.changed_at";

const REMOVE: &str = "delete from semel.letters where consumer = $1 and message_id = $2";

const RELEASE: &str = "update semel.letters set state = 'behind', until = null \
    where consumer = $1 and lane = $2 and place = $3 and state = 'held'";

const OVERDUE: &str = "select distinct lane from semel.letters \
    where consumer = $1 and state = 'held' and until <= $2";

/// The first of a lane, whoever changes it just now.
const FIRST: &str = "select seq from semel.letters where consumer = $1 and lane = $2 and state <> 'held' \
    order by place, seq limit 1";

/// Nothing if another transaction has it, or had.
const LOCK_IF_FREE: &str = "select seq from semel.letters where seq = $1 for update skip locked";

const RELEASE_OVERDUE: &str = "update semel.letters set state = 'behind', until = null \
    where consumer = $1 and lane = $2 and state = 'held' and until <= $3";

const DUE: &str = "select message from semel.letters where consumer = $1 and state = 'due' \
    order by seq limit $2";

const PAGE: &str = "select seq, state, until, attempts, error, message from semel.letters \
    where consumer = $1 and seq > $2 order by seq limit $3";

const FIND: &str = "select seq, state, until, attempts, error, message from semel.letters where consumer = $1 and message_id = $2";

const RETRY: &str = "update semel.letters set state = 'behind' \
    where consumer = $1 and message_id = $2 and state = 'dead'";

/// Which of many are letters, or have some in their lanes; what is held back counts here.
const CONCERNED: &str = "select asked.number from unnest($2::uuid[], $3::bigint[]) \
    with ordinality as asked (id, lane, number) where \
    exists (select 1 from semel.letters where consumer = $1 and message_id = asked.id) or \
    exists (select 1 from semel.letters where consumer = $1 and lane = asked.lane)";

async fn concerned(
    tx: &mut Transaction<'static, Postgres>,
    consumer: &str,
    events: &[&Event],
) -> Result<Vec<bool>, Failure> {
    let ids: Vec<_> = events.iter().map(|event| stored_id(event.id)).collect();
    let lanes: Vec<_> = events.iter().map(|event| letters::lane(event)).collect();
    let found = sqlx::query_scalar(CONCERNED).bind(consumer).bind(ids).bind(lanes);
    let numbers: Vec<i64> =
        found.fetch_all(&mut **tx).await.map_err(failure("look for letters of lanes"))?;
    let numbers: HashSet<_> = numbers.into_iter().collect();
    Ok((1..).zip(events).map(|(number, _)| numbers.contains(&number)).collect())
}

fn stored_id(id: EventId) -> sqlx::types::Uuid {
    *id.as_uuid()
}

implement_letters!(PostgresLetters, Postgres, stored_id);
