//! Looking into the inbox: who has applied what, and when.

use semel_core::inbox::Applied;
use semel_core::insight::EffectView;
use semel_core::{EventId, Failure};
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::error::failure;
use super::store::{PostgresStore, count};
use crate::applied::{effect, implement_applied};
use crate::row::timestamp;

const NEXT: &str = "select consumer from semel.inbox where consumer > $1 order by consumer limit 1";

const APPLIED: &str = "\
select message_id, (extract(epoch from processed_at) * 1000000)::bigint
from semel.inbox where consumer = $1 and message_id >= $2 order by message_id limit $3";

implement_applied!(PostgresStore);

async fn look(store: &PostgresStore) -> Result<Transaction<'static, Postgres>, Failure> {
    store.begin().await
}

async fn applied(
    connection: &mut PgConnection,
    consumer: &str,
    from: EventId,
    limit: usize,
) -> Result<Vec<Applied>, Failure> {
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(APPLIED)
        .bind(consumer)
        .bind(*from.as_uuid())
        .bind(count(limit))
        .fetch_all(connection)
        .await
        .map_err(failure("look into the inbox"))?;
    Ok(rows
        .into_iter()
        .map(|(id, at)| Applied { id: EventId::from_uuid(id), at: timestamp(at) })
        .collect())
}
