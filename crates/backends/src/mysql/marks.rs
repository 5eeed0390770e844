//! [`Marks`]: how far each consumer got.

use async_trait::async_trait;
use semel_core::marks::Step;
use semel_core::{Failure, Marks};
use sqlx::{MySql, Transaction};

use super::error::{check_consumer, check_scope, failure};
use crate::letters::stored;

/// The table `semel_marks`. Made by [`MysqlStore::marks`](super::MysqlStore::marks).
#[derive(Clone, Copy, Debug)]
pub struct MysqlMarks(pub(super) ());

const MARK: &str = "select position from semel_marks where consumer = ? and scope = ? for update";

const RAISE: &str =
    "update semel_marks set position = ? where consumer = ? and scope = ? and position < ?";

const STEP: &str =
    "update semel_marks set position = ? where consumer = ? and scope = ? and position = ?";

const BEGIN: &str = "insert ignore into semel_marks (consumer, scope, position) values (?, ?, ?)";

/// A mark whose name was cut would be found under another, and never below what is to come.
fn check(consumer: &str, scope: &str) -> Result<(), Failure> {
    check_consumer(consumer)?;
    check_scope(scope)
}

#[async_trait]
impl Marks<Transaction<'static, MySql>> for MysqlMarks {
    async fn mark(
        &self,
        tx: &mut Transaction<'static, MySql>,
        consumer: &str,
        scope: &str,
    ) -> Result<Option<u64>, Failure> {
        check(consumer, scope)?;
        let mark: Option<i64> = sqlx::query_scalar(MARK)
            .bind(consumer)
            .bind(scope)
            .fetch_optional(&mut **tx)
            .await
            .map_err(failure("read a mark"))?;
        Ok(mark.map(i64::unsigned_abs))
    }

    async fn advance(
        &self,
        tx: &mut Transaction<'static, MySql>,
        consumer: &str,
        scope: &str,
        to: u64,
    ) -> Result<bool, Failure> {
        check(consumer, scope)?;
        let to = stored(to);
        // A row may be made by somebody else between the two.
        for _ in 0..2 {
            let raised = sqlx::query(RAISE).bind(to).bind(consumer).bind(scope).bind(to);
            let raised = raised.execute(&mut **tx).await.map_err(failure("raise a mark"))?;
            if raised.rows_affected() > 0 {
                return Ok(true);
            }
            let begun = sqlx::query(BEGIN).bind(consumer).bind(scope).bind(to);
            let begun = begun.execute(&mut **tx).await.map_err(failure("raise a mark"))?;
            if begun.rows_affected() > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn step_all(
        &self,
        tx: &mut Transaction<'static, MySql>,
        consumer: &str,
        steps: &[Step<'_>],
    ) -> Result<Vec<bool>, Failure> {
        steps.iter().try_for_each(|step| check(consumer, step.scope))?;
        let mut moved = Vec::with_capacity(steps.len());
        for Step { scope, from, to } in steps {
            let step =
                sqlx::query(STEP).bind(stored(*to)).bind(consumer).bind(*scope).bind(stored(*from));
            let step = step.execute(&mut **tx).await.map_err(failure("move a mark"))?;
            moved.push(step.rows_affected() > 0);
        }
        Ok(moved)
    }
}
