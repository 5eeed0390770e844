//! [`Marks`]: how far each consumer got.

use async_trait::async_trait;
use semel_core::marks::Step;
use semel_core::{Failure, Marks};
use sqlx::{Sqlite, Transaction};

use super::error::failure;
use crate::letters::{implement_marks, stored};

/// The table `semel_marks`. Made by [`SqliteStore::marks`](super::SqliteStore::marks).
#[derive(Clone, Copy, Debug)]
pub struct SqliteMarks(pub(super) ());

const MARK: &str = "select position from semel_marks where consumer = ?1 and scope = ?2";

const ADVANCE: &str = "insert into semel_marks as m (consumer, scope, position) values (?1, ?2, ?3) \
    on conflict (consumer, scope) do update set position = excluded.position \
    where m.position < excluded.position";

const STEP: &str = "update semel_marks set position = ?1 \
    where consumer = ?2 and scope = ?3 and position = ?4";

implement_marks!(SqliteMarks, Sqlite, beside_inbox: false);

async fn step_all(
    tx: &mut Transaction<'static, Sqlite>,
    consumer: &str,
    steps: &[Step<'_>],
) -> Result<Vec<bool>, Failure> {
    let mut moved = Vec::with_capacity(steps.len());
    for Step { scope, from, to } in steps {
        let step =
            sqlx::query(STEP).bind(stored(*to)).bind(consumer).bind(*scope).bind(stored(*from));
        let step = step.execute(&mut **tx).await.map_err(failure("move a mark"))?;
        moved.push(step.rows_affected() > 0);
    }
    Ok(moved)
}
