//! Giving committed rows their position: the order in which every pipeline reads them.
//!
//! Auto-increment numbers are given out before the commit, so a row may appear behind others that
//! were read long ago. A position is given out afterwards, to rows that are committed, by one relay
//! at a time: whoever sees a position sees all before it.

use semel_core::Failure;

use super::error::failure;
use super::row::json;
use super::store::{MysqlStore, count};

/// The most rows that are numbered at once.
const ROWS: usize = 5_000;

/// Takes the lock.
const LAST: &str = "SELECT last FROM semel_counter WHERE name = 'position' FOR UPDATE";

/// Of one aggregate, whatever committed before another began has the smaller number. Both are in
/// this list or in an earlier one, because a statement sees everything that committed before it.
/// It reads without locks, and so never waits for a writer.
const COMMITTED: &str = "SELECT seq FROM semel_outbox FORCE INDEX (semel_outbox_position) \
    WHERE position = 0 ORDER BY seq LIMIT ?";

/// By the primary key, which locks these rows and no others.
const NUMBER: &str = "UPDATE JSON_TABLE(cast(? AS CHAR), '$[*]' COLUMNS (\
         place FOR ORDINALITY, seq BIGINT UNSIGNED PATH '$')) j \
         STRAIGHT_JOIN semel_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq \
     SET o.position = ? + j.place";

const ADVANCE: &str = "UPDATE semel_counter SET last = ? WHERE name = 'position'";

/// Numbers rows that have committed, oldest first; says whether there may be more of them.
pub(super) async fn number_committed(store: &MysqlStore, wanted: usize) -> Result<bool, Failure> {
    let failed = || failure("number new events");
    // A short backlog is numbered at once; of a long one each call does a part.
    let rows = wanted.clamp(1_000, ROWS);
    let mut tx = store.begin_brief().await?;
    let last: u64 = sqlx::query_scalar(LAST).fetch_one(&mut *tx).await.map_err(failed())?;
    let seqs: Vec<u64> = sqlx::query_scalar(COMMITTED)
        .bind(count(rows))
        .fetch_all(&mut *tx)
        .await
        .map_err(failed())?;
    if !seqs.is_empty() {
        let numbered = sqlx::query(NUMBER).bind(json(&seqs)).bind(last);
        numbered.execute(&mut *tx).await.map_err(failed())?;
        let last = last.saturating_add(count(seqs.len()));
        sqlx::query(ADVANCE).bind(last).execute(&mut *tx).await.map_err(failed())?;
    }
    tx.commit().await.map_err(failed())?;
    Ok(seqs.len() == rows)
}
