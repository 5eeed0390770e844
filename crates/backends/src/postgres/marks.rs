//! [`Marks`]: how far each consumer got.

use async_trait::async_trait;
use semel_core::marks::Step;
use semel_core::{Failure, Marks};
use sqlx::{Postgres, Transaction};

use super::error::failure;
use crate::letters::{implement_marks, stored};

/// The table `semel.marks`. Made by [`PostgresStore::marks`](super::PostgresStore::marks).
#[derive(Clone, Copy, Debug)]
pub struct PostgresMarks(pub(super) ());

const MARK: &str = "select position from semel.marks where consumer = $1 and scope = $2 for update";

const ADVANCE: &str = "insert into semel.marks as m (consumer, scope, position) values ($1, $2, $3) \
    on conflict (consumer, scope) do update set position = excluded.position \
    where m.position < excluded.position";

const STEP: &str = "update semel.marks set position = $4 \
    where consumer = $1 and scope = $2 and position = $3";

const STEP_ALL: &str = "update semel.marks m set position = s.to_ \
    from unnest($2::text[], $3::bigint[], $4::bigint[]) as s (scope, from_, to_) \
    where m.consumer = $1 and m.scope = s.scope and m.position = s.from_ returning m.scope";

implement_marks!(PostgresMarks, Postgres, beside_inbox: true);

async fn step_all(
    tx: &mut Transaction<'static, Postgres>,
    consumer: &str,
    steps: &[Step<'_>],
) -> Result<Vec<bool>, Failure> {
    if let [Step { scope, from, to }] = steps {
        let moved = sqlx::query(STEP).bind(consumer).bind(*scope);
        let moved = moved.bind(stored(*from)).bind(stored(*to)).execute(&mut **tx).await;
        return Ok(vec![moved.map_err(failure("move a mark"))?.rows_affected() > 0]);
    }
    let moved: Vec<String> = sqlx::query_scalar(STEP_ALL)
        .bind(consumer)
        .bind(steps.iter().map(|step| step.scope).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| stored(step.from)).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| stored(step.to)).collect::<Vec<_>>())
        .fetch_all(&mut **tx)
        .await
        .map_err(failure("move marks"))?;
    Ok(steps.iter().map(|step| moved.iter().any(|scope| scope == step.scope)).collect())
}
