//! Looking into the inbox: who has applied what, and when.

use semel_core::inbox::Applied;
use semel_core::insight::EffectView;
use semel_core::{EventId, Failure};
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection};

use super::error::failure;
use super::store::{SqliteStore, timestamp};
use crate::applied::{effect, implement_applied};

const NEXT: &str = "SELECT consumer FROM semel_inbox WHERE consumer > ?1 ORDER BY consumer LIMIT 1";

const APPLIED: &str = "SELECT message_id, processed_at FROM semel_inbox \
    WHERE consumer = ?1 AND message_id >= ?2 ORDER BY message_id LIMIT ?3";

implement_applied!(SqliteStore);

async fn look(store: &SqliteStore) -> Result<PoolConnection<Sqlite>, Failure> {
    store.readers.acquire().await.map_err(failure("look into the inbox"))
}

async fn applied(
    connection: &mut SqliteConnection,
    consumer: &str,
    from: EventId,
    limit: usize,
) -> Result<Vec<Applied>, Failure> {
    let rows: Vec<(String, i64)> = sqlx::query_as(APPLIED)
        .bind(consumer)
        .bind(from.to_string())
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await
        .map_err(failure("look into the inbox"))?;
    // Ids that are none were not written by us, and belong to no event of ours.
    let ours = rows.into_iter().filter_map(|(id, at)| Some((id.parse().ok()?, at)));
    Ok(ours.map(|(id, at)| Applied { id, at: timestamp(at) }).collect())
}
