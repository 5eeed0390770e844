//! How much log the server keeps for a slot that is read.
//!
//! The server moves a slot on where its log has a list of the transactions that run. It writes one every fifteen
//! seconds, beside every checkpoint, for whoever may ask for it (from PostgreSQL 16 on), and whenever a slot is made.
//! So where others write much it is asked, or a slot is made and dropped at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use super::heard::Heard;
use super::refusal::{over_budget, refused};
use super::session::random_end;

const EVERY: Duration = Duration::from_secs(5);
/// How often it is looked where much is written.
const SOON: Duration = Duration::from_secs(1);
const MUCH: i64 = 4 * 1024 * 1024;
/// One look does not tell: a slot moves on from time to time.
const TOO_LONG: Duration = Duration::from_secs(15);

/// Keeps what is held back little, and ends the session when it is more than it may be nevertheless: somebody
/// keeps a transaction open.
pub(super) async fn watch(pool: PgPool, slot: String, budget: u64, heard: Arc<Heard>) {
    let (mut too_much_since, mut mover) = (None, Mover::default());
    loop {
        sleep(mover.pause()).await;
        let held = match look(&pool, &slot).await {
            Ok(Some(held)) => held,
            Ok(None) => return heard.end(refused("the server does not know of the slot any more")),
            // During an outage there is nothing to be found out, and the session ends by itself.
            Err(_) => Held::default(),
        };
        let now = Instant::now();
        let is_much = held.bytes.unsigned_abs() > budget;
        too_much_since = too_much_since.or(Some(now)).filter(|_| is_much);
        if too_much_since.is_some_and(|since| now - since >= TOO_LONG) {
            return heard.end(over_budget(budget));
        }
        mover.see_to(&pool, &held).await;
    }
}

/// Keeps what is held back little, as long as somebody reads the slot.
pub(in super::super) async fn keep_little(pool: PgPool, slot: &str) -> Infallible {
    let mut mover = Mover::default();
    loop {
        sleep(mover.pause()).await;
        if let Ok(Some(held)) = look(&pool, slot).await {
            mover.see_to(&pool, &held).await;
        }
    }
}

/// What a slot holds back.
#[derive(Debug, Default)]
struct Held {
    bytes: i64,
    /// Where the log ends, as a number.
    log_end: i64,
    /// Whether this user may have the list written.
    may_ask: bool,
}

async fn look(pool: &PgPool, slot: &str) -> Result<Option<Held>, sqlx::Error> {
    const LOOK: &str = "\
        select coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
            pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,
            coalesce(has_function_privilege(
                to_regprocedure('pg_log_standby_snapshot()'), 'execute'), false)
        from pg_replication_slots where slot_name = $1";
    let held: Option<(i64, i64, bool)> =
        sqlx::query_as(LOOK).bind(slot).fetch_optional(pool).await?;
    Ok(held.map(|(bytes, log_end, may_ask)| Held { bytes, log_end, may_ask }))
}

/// Has slots moved on, at most once in so much log, and less often where it is of no use: a transaction that
/// somebody keeps open holds them all.
#[derive(Debug, Default)]
struct Mover {
    is_busy: bool,
    looked_at: i64,
    moved_at: i64,
    held_from: i64,
    in_vain: u32,
}

impl Mover {
    /// A slot moves on by the list before the last one.
    const MOVES_BY: u32 = 2;
    const RAREST: u32 = 6;

    /// Until the next look.
    fn pause(&self) -> Duration {
        if self.is_busy { SOON } else { EVERY }
    }

    async fn see_to(&mut self, pool: &PgPool, held: &Held) {
        if self.is_due(held) {
            let (pool, may_ask) = (pool.clone(), held.may_ask);
            // In a task of its own: whoever is dropped half-way would leave a transaction open.
            let moved = tokio::spawn(async move { have_slots_moved(&pool, may_ask).await }).await;
            if let Ok(Err(error)) = moved {
                tracing::debug!(%error, "slots move on when the server has them do so");
            }
        }
    }

    fn is_due(&mut self, held: &Held) -> bool {
        let is_much = held.bytes > MUCH;
        self.is_busy = is_much || held.log_end - self.looked_at > MUCH / 4;
        self.looked_at = held.log_end;
        let rarely = self.in_vain.saturating_sub(Self::MOVES_BY).min(Self::RAREST);
        if !is_much || held.log_end - self.moved_at <= MUCH << rarely {
            return false;
        }
        let held_from = held.log_end - held.bytes;
        self.in_vain = if held_from == self.held_from { self.in_vain + 1 } else { 0 };
        (self.moved_at, self.held_from) = (held.log_end, held_from);
        true
    }
}

/// Where a slot is made, the list is written before the server waits for the transactions in it, which it need not
/// do for long.
async fn have_slots_moved(pool: &PgPool, may_ask: bool) -> Result<(), sqlx::Error> {
    const ASK: &str = "select pg_log_standby_snapshot()";
    const MOVE: &str = "\
        select pg_drop_replication_slot(slot_name)
        from pg_create_logical_replication_slot($1, 'pgoutput', true)";
    if may_ask {
        return sqlx::query(ASK).execute(pool).await.map(drop);
    }
    let mut tx = pool.begin().await?;
    sqlx::query("set local statement_timeout = 500").execute(&mut *tx).await?;
    sqlx::query(MOVE).bind(format!("semel_moves_{}", random_end())).execute(&mut *tx).await?;
    tx.rollback().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_ever_more_seldom() {
        let mut mover = Mover::default();
        let mut due_at = Vec::new();
        for mebibytes in 1..=100 {
            let log_end = mebibytes * 1024 * 1024;
            // Held from the beginning until 50 MiB, and from 4 MiB back afterwards.
            let bytes = if mebibytes <= 50 { log_end - 1 } else { 5 * 1024 * 1024 };
            if mover.is_due(&Held { bytes, log_end, may_ask: true }) {
                due_at.push(mebibytes);
            }
        }
        assert_eq!(due_at, [5, 10, 15, 20, 29, 46, 79, 84, 89, 94, 99]);
        assert_eq!(mover.pause(), SOON);
        assert!(!mover.is_due(&Held::default()));
        assert_eq!(mover.pause(), EVERY);
    }
}
