//! How many shares a pipeline has: making their cursors, and dividing a pipeline anew.
//!
//! A share is the lanes whose hash falls to it, so another number of shares gives most lanes to
//! another cursor. Positions are the same for all shares: the new cursors begin where the slowest of
//! the old ones is, and know which events beyond that are settled already. Nothing is moved but the
//! share of what is parked. Epochs are higher than any before: whoever owned an old share is fenced
//! off from all new ones.
//!
//! The row of share 0 is always there. Whoever has it locked is alone with the pipeline: everybody
//! locks the rows in their order.

use semel_core::Failure;
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::error::failure;
use super::row::share_of;
use super::store::count;
use super::view::Place;

const CURSORS: &str = "SELECT shares, epoch, position FROM semel_cursor \
    WHERE pipeline = ? ORDER BY share FOR UPDATE";

/// Waits for somebody else who does the same.
const BEGIN: &str = "INSERT INTO semel_cursor (pipeline, share, shares, position, ahead, epoch, \
        moved_at) \
    VALUES (?, 0, ?, 0, '[]', 0, utc_timestamp(6)) ON DUPLICATE KEY UPDATE epoch = epoch";

/// The row of share 0 once more, for another share.
const COPY: &str = "INSERT INTO semel_cursor (pipeline, share, shares, position, ahead, handed_out, \
        epoch, moved_at) \
    SELECT pipeline, ?, shares, position, ahead, handed_out, epoch, moved_at FROM semel_cursor \
    WHERE pipeline = ? AND share = 0";

const RESTART: &str = "UPDATE semel_cursor SET shares = ?, position = ?, ahead = ?, \
        handed_out = position, epoch = ?, moved_at = utc_timestamp(6) \
    WHERE pipeline = ? AND share = 0";

const END_OTHERS: &str = "DELETE FROM semel_cursor WHERE pipeline = ? AND share > 0";

/// When the old shares were where says nothing about the new ones.
const FORGET: &str = "DELETE FROM semel_progress WHERE pipeline = ?";

/// What is over stays as it was: most of it would be moved in vain.
const MOVE: &str = concat!(
    "UPDATE semel_parked o SET o.share = ",
    share_of!("?"),
    ", o.taken = 0 WHERE o.pipeline = ? AND o.state NOT IN ('published', 'discarded')"
);

/// More would take longer to list than others can wait.
const MOST_AHEAD: usize = 100_000;

/// A cursor that is there: shares, epoch, position.
type Old = (u32, u64, u64);

/// Lets the pipeline have so many shares, until the transaction ends with nobody else at it.
///
/// # Errors
/// `Misconfigured` when it has another number and one share is far behind the others.
pub(super) async fn divide(
    tx: &mut MySqlConnection,
    pipeline: &str,
    shares: u32,
) -> Result<(), Failure> {
    let failed = || failure("divide the pipeline");
    let mut old = cursors(tx, pipeline).await?;
    if old.is_empty() {
        let begin = sqlx::query(BEGIN).bind(pipeline).bind(shares);
        begin.execute(&mut *tx).await.map_err(failed())?;
        old = cursors(tx, pipeline).await?;
    }
    let Some((present, epoch, _)) = old.first() else {
        return Err(failed()(sqlx::Error::RowNotFound));
    };
    if *present != shares {
        return divide_anew(tx, pipeline, shares, &old).await;
    }
    // A pipeline that is new has the first of its rows.
    if *epoch == 0 && old.len() == 1 {
        copy(tx, pipeline, shares).await?;
    }
    Ok(())
}

async fn cursors(tx: &mut MySqlConnection, pipeline: &str) -> Result<Vec<Old>, Failure> {
    let cursors = sqlx::query_as(CURSORS).bind(pipeline).fetch_all(tx);
    cursors.await.map_err(failure("divide the pipeline"))
}

async fn copy(tx: &mut MySqlConnection, pipeline: &str, shares: u32) -> Result<(), Failure> {
    for share in 1..shares {
        let copy = sqlx::query(COPY).bind(share).bind(pipeline);
        copy.execute(&mut *tx).await.map_err(failure("divide the pipeline"))?;
    }
    Ok(())
}

async fn divide_anew(
    tx: &mut MySqlConnection,
    pipeline: &str,
    shares: u32,
    old: &[Old],
) -> Result<(), Failure> {
    let failed = || failure("divide the pipeline anew");
    let place = Place::stored(tx, pipeline).await?;
    let sql = format!(
        "SELECT o.position FROM semel_outbox o FORCE INDEX (semel_outbox_position) \
         WHERE o.position > ? AND {} ORDER BY o.position LIMIT ?",
        place.is_settled()
    );
    let ahead: Vec<u64> = sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(place.low())
        .bind(count(MOST_AHEAD + 1))
        .fetch_all(&mut *tx)
        .await
        .map_err(failed())?;
    if ahead.len() > MOST_AHEAD {
        return Err(too_far(pipeline, old.len(), shares));
    }
    let epoch = old.iter().map(|(_, epoch, _)| *epoch).max().unwrap_or(0) + 1;
    for sql in [END_OTHERS, FORGET] {
        sqlx::query(sql).bind(pipeline).execute(&mut *tx).await.map_err(failed())?;
    }
    // Numbers always make JSON.
    let spans = serde_json::to_string(&spans(&ahead)).unwrap_or_else(|_| "[]".into());
    let restart = sqlx::query(RESTART).bind(shares).bind(place.low()).bind(spans).bind(epoch);
    restart.bind(pipeline).execute(&mut *tx).await.map_err(failed())?;
    copy(tx, pipeline, shares).await?;
    let parked = sqlx::query(MOVE).bind(shares).bind(pipeline).execute(tx);
    parked.await.map_err(failed())?;
    let before = old.len();
    tracing::info!(pipeline, before, shares, "the pipeline has another number of shares");
    Ok(())
}

/// Numbers in ascending order as spans, first to last.
fn spans(positions: &[u64]) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for &position in positions {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == position => *last = position,
            _ => spans.push((position, position)),
        }
    }
    spans
}

fn too_far(pipeline: &str, before: usize, shares: u32) -> Failure {
    Failure::misconfigured(
        "E-SHARES",
        format!(
            "MySQL: pipeline {pipeline:?} has {before} shares, one of them more than {MOST_AHEAD} \
             events behind the others, too many to give it {shares} shares"
        ),
    )
    .with_fix(format!(
        "drain the pipeline first, then change shares: run `semel relay --drain` with {before}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_make_one_span() {
        assert_eq!(spans(&[]), []);
        assert_eq!(spans(&[3, 4, 5, 7, 9, 10]), [(3, 5), (7, 7), (9, 10)]);
    }
}
