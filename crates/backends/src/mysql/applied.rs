//! Looking into the inbox: who has applied what, and when.

use semel_core::inbox::Applied;
use semel_core::insight::EffectView;
use semel_core::{EventId, Failure};
use sqlx::{MySql, MySqlConnection, Transaction};
use uuid::Uuid;

use super::error::failure;
use super::store::{MysqlStore, count, timestamp};
use crate::applied::{effect, implement_applied};

const NEXT: &str = "SELECT consumer FROM semel_inbox WHERE consumer > ? ORDER BY consumer LIMIT 1";

const APPLIED: &str = "SELECT message_id, timestampdiff(MICROSECOND, '1970-01-01', processed_at) \
    FROM semel_inbox WHERE consumer = ? AND message_id >= ? ORDER BY message_id LIMIT ?";

implement_applied!(MysqlStore);

async fn look(store: &MysqlStore) -> Result<Transaction<'static, MySql>, Failure> {
    store.begin().await
}

async fn applied(
    connection: &mut MySqlConnection,
    consumer: &str,
    from: EventId,
    limit: usize,
) -> Result<Vec<Applied>, Failure> {
    let rows: Vec<(Vec<u8>, i64)> = sqlx::query_as(APPLIED)
        .bind(consumer)
        .bind(from.as_uuid().as_bytes().as_slice())
        .bind(count(limit))
        .fetch_all(connection)
        .await
        .map_err(failure("look into the inbox"))?;
    let ours = rows.into_iter().filter_map(|(id, at)| Some((Uuid::from_slice(&id).ok()?, at)));
    Ok(ours.map(|(id, at)| Applied { id: EventId::from_uuid(id), at: timestamp(at) }).collect())
}
