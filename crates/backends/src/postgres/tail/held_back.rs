//! How much log the server keeps for a session that tails.
//!
//! The server moves a slot on where its log has a list of the transactions that run. It writes one every fifteen
//! seconds, beside every checkpoint, and whenever a slot is made: so where others write much, one is made, and
//! dropped at once.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use super::heard::Heard;
use super::refusal::over_budget;
use super::session::random_end;

const EVERY: Duration = Duration::from_secs(5);
/// How often it is looked where much is written.
const SOON: Duration = Duration::from_secs(1);
const MUCH: i64 = 4 * 1024 * 1024;
/// One look does not tell: a slot moves on from time to time.
const TOO_LONG: Duration = Duration::from_secs(20);

/// Keeps what is held back little, and ends the session when it is more than it may be nevertheless: somebody
/// keeps a transaction open.
pub(super) async fn watch(pool: PgPool, slot: String, budget: u64, heard: Arc<Heard>) {
    const LOOK: &str = "\
        select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
            pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint
        from pg_replication_slots where slot_name = $1";
    let (mut too_much_since, mut moved_at, mut pause) = (None, 0, EVERY);
    loop {
        sleep(pause).await;
        let looked = sqlx::query_as(LOOK).bind(&slot).fetch_optional(&pool).await;
        // During an outage there is nothing to be found out, and the session ends by itself.
        let (held, end): (i64, i64) = looked.ok().flatten().unwrap_or((0, 0));
        let now = Instant::now();
        too_much_since = too_much_since.or(Some(now)).filter(|_| held.unsigned_abs() > budget);
        if too_much_since.is_some_and(|since| now - since >= TOO_LONG - EVERY) {
            return heard.end(over_budget(budget));
        }
        pause = if held > MUCH { SOON } else { EVERY };
        if held > MUCH && end - moved_at > MUCH {
            moved_at = end;
            let _ = have_slots_moved(&pool).await;
        }
    }
}

/// The list is written before the server waits for the transactions in it, which it need not do for long. Where
/// no slot is free, slots move when they do.
async fn have_slots_moved(pool: &PgPool) -> Result<(), sqlx::Error> {
    const MOVE: &str = "\
        select pg_drop_replication_slot(slot_name)
        from pg_create_logical_replication_slot($1, 'pgoutput', true)";
    let mut tx = pool.begin().await?;
    sqlx::query("set local statement_timeout = 500").execute(&mut *tx).await?;
    sqlx::query(MOVE).bind(format!("semel_moves_{}", random_end())).execute(&mut *tx).await?;
    tx.rollback().await
}
