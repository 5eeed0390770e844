//! Old events go, and what is left of them elsewhere.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use semel_core::Failure;

use super::admin::{MysqlAdmin, ROWS};
use super::error::failure;
use super::row::{as_micros, json, listed};
use super::store::{count, micros};

const LOCK_ALL: &str = "SELECT pipeline FROM semel_cursor ORDER BY pipeline, share FOR UPDATE";

/// Events that all pipelines passed so long ago, and that are parked nowhere, or finished there so
/// long ago. Takes the age three times.
const OLD: &str = "SELECT o.position FROM semel_outbox o FORCE INDEX (semel_outbox_position) \
    WHERE o.position > 0 AND o.position <= (\
        SELECT coalesce(min(if(c.moved_at < utc_timestamp(6) - INTERVAL ? MICROSECOND, c.position, \
            coalesce((SELECT max(g.position) FROM semel_progress g WHERE g.pipeline = c.pipeline \
                AND g.share = c.share AND g.passed_at < utc_timestamp(6) - INTERVAL ? MICROSECOND), 0))), 0) \
        FROM semel_cursor c) \
    AND NOT EXISTS (SELECT 1 FROM semel_cursor c \
        JOIN semel_parked p ON p.pipeline = c.pipeline AND p.position = o.position \
        WHERE p.state NOT IN ('published', 'discarded') \
            OR p.changed_at >= utc_timestamp(6) - INTERVAL ? MICROSECOND) \
    ORDER BY o.position LIMIT ?";

/// The events and what is left of them elsewhere. Each takes the list.
const DELETE: &[&str] = &[
    concat!(
        "DELETE p FROM ",
        listed!(),
        " STRAIGHT_JOIN semel_cursor c STRAIGHT_JOIN semel_parked p \
         ON p.pipeline = c.pipeline AND p.position = j.position"
    ),
    concat!(
        "DELETE o FROM ",
        listed!(),
        " STRAIGHT_JOIN semel_outbox o FORCE INDEX (semel_outbox_position) ON o.position = j.position"
    ),
];

/// Up to which position the notes of a share's progress have been thinned out.
pub(super) type Thinned = HashMap<(String, u32), u64>;

const NOTED: &str = "SELECT DISTINCT pipeline, share FROM semel_progress";

/// Before this, nothing that is there needs a note: there is no event, or a later note says that it is
/// old enough to go.
const NEEDED_FROM: &str = "SELECT cast(greatest(\
        coalesce((SELECT min(o.position) FROM semel_outbox o WHERE o.position > 0), \
            (SELECT last + 1 FROM semel_counter WHERE name = 'position'), 0), \
        coalesce((SELECT max(g.position) FROM semel_progress g WHERE g.pipeline = ? AND g.share = ? \
            AND g.passed_at < utc_timestamp(6) - INTERVAL ? MICROSECOND), 0)) AS UNSIGNED)";

const FORGET: &str = "DELETE FROM semel_progress \
    WHERE pipeline = ? AND share = ? AND position < ? ORDER BY position LIMIT ?";

const OLD_NOTES: &str = concat!(
    "SELECT position, ",
    as_micros!("passed_at"),
    " FROM semel_progress WHERE pipeline = ? AND share = ? AND position >= ? \
        AND passed_at < utc_timestamp(6) - INTERVAL ? MICROSECOND ORDER BY position LIMIT ?"
);

const THIN: &str = concat!(
    "DELETE g FROM ",
    listed!(),
    " STRAIGHT_JOIN semel_progress g ON g.pipeline = ? AND g.share = ? AND g.position = j.position"
);

/// For so long it is known to the second when an event was published, and to the minute after that.
const EXACT: Duration = Duration::from_secs(3600);

impl MysqlAdmin {
    pub(super) async fn delete_old(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let (failed, span) = (|| failure("delete old events"), micros(age));
        let mut tx = self.store.begin_brief().await?;
        sqlx::query(LOCK_ALL).fetch_all(&mut *tx).await.map_err(failed())?;
        let old = sqlx::query_scalar(OLD).bind(span).bind(span).bind(span).bind(count(limit));
        let positions: Vec<u64> = old.fetch_all(&mut *tx).await.map_err(failed())?;
        for part in positions.chunks(ROWS) {
            for sql in DELETE {
                sqlx::query(*sql).bind(json(part)).execute(&mut *tx).await.map_err(failed())?;
            }
        }
        tx.commit().await.map_err(failed())?;
        if positions.len() < limit {
            self.thin_out_progress(age).await?;
        }
        Ok(positions.len())
    }

    /// However long an event stays, its notes do not become more and more. Only so many at once; the
    /// rest with the next call.
    async fn thin_out_progress(&self, age: Duration) -> Result<(), Failure> {
        let failed = || failure("forget old progress");
        let noted: Vec<(String, u32)> =
            sqlx::query_as(NOTED).fetch_all(self.store.pool()).await.map_err(failed())?;
        for (pipeline, share) in noted {
            let needed_from: u64 = sqlx::query_scalar(NEEDED_FROM)
                .bind(&pipeline)
                .bind(share)
                .bind(micros(age.max(EXACT)))
                .fetch_one(self.store.pool())
                .await
                .map_err(failed())?;
            sqlx::query(FORGET)
                .bind(&pipeline)
                .bind(share)
                .bind(needed_from)
                .bind(count(ROWS))
                .execute(self.store.pool())
                .await
                .map_err(failed())?;
            self.thin_out(pipeline, share).await?;
        }
        Ok(())
    }

    /// Leaves one note of each minute, the last.
    async fn thin_out(&self, pipeline: String, share: u32) -> Result<(), Failure> {
        let failed = || failure("forget old progress");
        let thinned = || self.thinned.lock().unwrap_or_else(PoisonError::into_inner);
        let from = thinned().get(&(pipeline.clone(), share)).copied().unwrap_or(0);
        let notes: Vec<(u64, i64)> = sqlx::query_as(OLD_NOTES)
            .bind(&pipeline)
            .bind(share)
            .bind(from)
            .bind(micros(EXACT))
            .bind(count(ROWS))
            .fetch_all(self.store.pool())
            .await
            .map_err(failed())?;
        let needless = all_but_the_last_of_each_minute(&notes);
        if !needless.is_empty() {
            let thin = sqlx::query(THIN).bind(json(&needless)).bind(&pipeline).bind(share);
            thin.execute(self.store.pool()).await.map_err(failed())?;
        }
        if let Some((last, _)) = notes.last() {
            thinned().insert((pipeline, share), *last);
        }
        Ok(())
    }
}

/// The positions of notes that another one of the same minute follows.
fn all_but_the_last_of_each_minute(notes: &[(u64, i64)]) -> Vec<u64> {
    let minute = |(_, at): (u64, i64)| at.div_euclid(60_000_000);
    let followed = notes.windows(2).filter(|pair| minute(pair[0]) == minute(pair[1]));
    followed.map(|pair| pair[0].0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_note_of_each_minute_stays() {
        const SECOND: i64 = 1_000_000;
        let notes =
            [(1, 0), (5, 59 * SECOND), (6, 60 * SECOND), (9, 61 * SECOND), (10, 200 * SECOND)];
        assert_eq!(all_but_the_last_of_each_minute(&notes), [1, 6]);
        assert!(all_but_the_last_of_each_minute(&notes[..1]).is_empty());
    }
}
