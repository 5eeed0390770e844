//! [`DeadLetters`]: what a consumer could not take effect for.

use std::collections::HashSet;

use async_trait::async_trait;
use semel_core::letters::{
    DeadLetters, Letter, LetterBook, Numbered, Standing, from_stored, to_stored,
};
use semel_core::{Event, EventId, Failure, InboxStore, Message};
use sqlx::{AssertSqlSafe, MySql, Transaction};

use super::error::failure;
use super::store::MysqlStore;
use crate::letters::{self, implement_letters};

/// The table `semel_letters`. Made by [`MysqlStore::letters`].
///
/// The first letter of a lane is the lock of the lane.
#[derive(Clone, Debug)]
pub struct MysqlLetters {
    store: MysqlStore,
}

impl MysqlLetters {
    pub(super) fn new(store: MysqlStore) -> Self {
        Self { store }
    }
}

const ANY: &str = "select seq from semel_letters where consumer = ? limit 1";

const LANE: &str = "select lane from semel_letters where consumer = ? and message_id = ?";

const LANE_OF: &str =
    "select lane from semel_letters where consumer = ? and message_id = ? for update";

/// The first of a lane, which nobody changes until this transaction ends.
const HEAD: &str = "select seq from semel_letters where consumer = ? and lane = ? and state <> 'held' \
    order by place, seq limit 1 for update";

const PROMOTE: &str = "update semel_letters set state = 'due' where seq = (select seq from (\
    select seq from semel_letters where consumer = ? and lane = ? and state <> 'held' \
    order by place, seq limit 1) as head) and state = 'behind'";

const PUT: &str = "insert into semel_letters (consumer, message_id, lane, place, state, until, attempts, error, \
    message, changed_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, utc_timestamp(6)) \
    on duplicate key update state = values(state), until = values(until), \
    attempts = values(attempts), error = values(error), changed_at = values(changed_at)";

const REMOVE: &str = "delete from semel_letters where consumer = ? and message_id = ?";

const RELEASE: &str = "update semel_letters set state = 'behind', until = null \
    where consumer = ? and lane = ? and place = ? and state = 'held'";

const OVERDUE: &str = "select distinct lane from semel_letters \
    where consumer = ? and state = 'held' and until <= ?";

/// The first of a lane, whoever changes it just now.
const FIRST: &str = "select seq from semel_letters where consumer = ? and lane = ? and state <> 'held' \
    order by place, seq limit 1";

/// Nothing if another transaction has it, or had.
const LOCK_IF_FREE: &str = "select seq from semel_letters where seq = ? for update skip locked";

const RELEASE_OVERDUE: &str = "update semel_letters set state = 'behind', until = null \
    where consumer = ? and lane = ? and state = 'held' and until <= ?";

const DUE: &str = "select message from semel_letters where consumer = ? and state = 'due' \
    order by seq limit ?";

const PAGE: &str = "select seq, state, until, attempts, error, message from semel_letters \
    where consumer = ? and seq > ? order by seq limit ?";

const FIND: &str = "select seq, state, until, attempts, error, message from semel_letters where consumer = ? and message_id = ?";

const RETRY: &str = "update semel_letters set state = 'behind' \
    where consumer = ? and message_id = ? and state = 'dead'";

/// How many events one statement asks for.
const MOST: usize = 512;

/// Which of many are letters, or have some in their lanes; what is held back counts here.
async fn concerned(
    tx: &mut Transaction<'static, MySql>,
    consumer: &str,
    events: &[&Event],
) -> Result<Vec<bool>, Failure> {
    let (mut ids, mut lanes) = (HashSet::new(), HashSet::new());
    for events in events.chunks(MOST) {
        // Few lengths, so that few statements are prepared; the last one is asked for again.
        let length = events.len().next_power_of_two();
        let padding = events.last().into_iter().cycle().take(length - events.len());
        let asked: Vec<_> = events.iter().chain(padding).collect();
        let marks = format!("?{}", ", ?".repeat(length - 1));
        let sql = format!(
            "select message_id, null as lane from semel_letters \
             where consumer = ? and message_id in ({marks}) \
             union all select null, lane from semel_letters \
             where consumer = ? and lane in ({marks}) group by lane"
        );
        let mut query = sqlx::query_as(AssertSqlSafe(sql)).bind(consumer);
        for event in &asked {
            query = query.bind(stored_id(event.id));
        }
        query = query.bind(consumer);
        for event in &asked {
            query = query.bind(letters::lane(event));
        }
        let found: Vec<(Option<Vec<u8>>, Option<i64>)> =
            query.fetch_all(&mut **tx).await.map_err(failure("look for letters of lanes"))?;
        ids.extend(found.iter().filter_map(|(id, _)| id.clone()));
        lanes.extend(found.iter().filter_map(|(_, lane)| *lane));
    }
    let is_concerned = |event: &&Event| {
        ids.contains(&stored_id(event.id)) || lanes.contains(&letters::lane(event))
    };
    Ok(events.iter().map(is_concerned).collect())
}

fn stored_id(id: EventId) -> Vec<u8> {
    id.as_uuid().as_bytes().to_vec()
}

implement_letters!(MysqlLetters, MySql, stored_id);
