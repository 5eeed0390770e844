//! Old events go, and what is left of them elsewhere.

use std::time::Duration;

use semel_core::Failure;

use super::admin::SqliteAdmin;
use super::error::failure;
use super::parking::json;
use super::row::{position, stored};

/// Deletes events that all pipelines passed before `?1`, and that are parked nowhere, or finished
/// there before `?1`.
const CLEAN: &str = "DELETE FROM semel_outbox WHERE seq IN (SELECT o.seq FROM semel_outbox o \
    WHERE o.seq <= (SELECT min(iif(c.moved_at < ?1, c.position, coalesce(\
        (SELECT g.position FROM semel_progress g WHERE g.pipeline = c.pipeline AND g.at < ?1 \
         ORDER BY g.at DESC LIMIT 1), 0))) FROM semel_cursor c) \
    AND NOT EXISTS (SELECT 1 FROM semel_cursor c \
        CROSS JOIN semel_parked p ON p.pipeline = c.pipeline AND p.seq = o.seq \
        WHERE p.state NOT IN ('published', 'discarded') OR p.changed_at >= ?1) \
    ORDER BY o.seq LIMIT ?2) RETURNING seq";

const FORGET_PARKED: &str = "DELETE FROM semel_parked WHERE seq IN (SELECT value FROM json_each(?1)) \
     AND pipeline IN (SELECT pipeline FROM semel_cursor)";

/// Nothing that is there needs a note from before the first event.
const FORGET_PROGRESS: &str = "DELETE FROM semel_progress WHERE position < coalesce(\
    (SELECT min(seq) FROM semel_outbox), \
    (SELECT seq + 1 FROM sqlite_sequence WHERE name = 'semel_outbox'), 0)";

/// However long an event stays, its notes do not become more and more: of those from before `?1`, the
/// last of each minute is enough, and of those from before `?2`, by when events are old, the last of all.
const THIN_OUT_PROGRESS: &str = "DELETE FROM semel_progress WHERE (pipeline, position) IN (\
    SELECT g.pipeline, g.position FROM semel_progress g WHERE g.at < ?1 AND EXISTS (\
        SELECT 1 FROM semel_progress n WHERE n.pipeline = g.pipeline AND n.at > g.at \
            AND n.at < max(?2, (g.at / 60000000 + 1) * 60000000)) \
    LIMIT ?3)";

/// For so long it is known to the second when an event was published, and to the minute after that.
const EXACT: Duration = Duration::from_secs(3600);

/// How many notes go at once; the rest with the next call.
const NOTES: i64 = 10_000;

impl SqliteAdmin {
    pub(super) async fn delete_old(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let failed = || failure("delete old events");
        let mut tx = self.store.begin().await?;
        let deleted: Vec<i64> = sqlx::query_scalar(CLEAN)
            .bind(self.store.before(age))
            .bind(stored(limit as u64))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let seqs: Vec<u64> = deleted.into_iter().map(position).collect();
        sqlx::query(FORGET_PARKED).bind(json(&seqs)).execute(&mut *tx).await.map_err(failed())?;
        if seqs.len() < limit {
            sqlx::query(FORGET_PROGRESS).execute(&mut *tx).await.map_err(failed())?;
            sqlx::query(THIN_OUT_PROGRESS)
                .bind(self.store.before(EXACT))
                .bind(self.store.before(age))
                .bind(NOTES)
                .execute(&mut *tx)
                .await
                .map_err(failed())?;
        }
        tx.commit().await.map_err(failed())?;
        Ok(seqs.len())
    }
}
