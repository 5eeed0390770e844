//! What became of deliveries, on its way into the tables.

use semel_core::{Failure, Holding, Outcome, Settlement};
use sqlx::MySqlConnection;

use super::error::failure;
use super::parking::Aside;
use super::poll::MysqlSource;
use crate::settle::Outcomes;

/// How many seconds apart the progress is recorded: how exact the time of publishing is known.
const RECORD_EVERY_SECONDS: i64 = 1;

/// Not on a server that the memory does not speak of, or that has gone back behind it.
const MOVE: &str = "UPDATE semel_cursor SET position = ?, ahead = ?, handed_out = ?, \
    moved_at = utc_timestamp(6) WHERE pipeline = ? AND share = ? AND epoch = ? \
    AND @@server_id = ? AND (SELECT last FROM semel_counter WHERE name = 'position') >= ?";

const RECORD: &str = "INSERT IGNORE INTO semel_progress (pipeline, share, position, passed_at) \
    SELECT pipeline, share, position, moved_at FROM semel_cursor \
    WHERE pipeline = ? AND share = ? AND epoch = ?";

impl MysqlSource {
    /// Nothing is changed in memory until all of it is stored.
    pub(super) async fn settle_all(
        &mut self,
        settlements: &[Settlement],
    ) -> Result<Holding, Failure> {
        let aside = |outcome: &Outcome| Aside::failed(outcome, &*self.store.clock);
        let outcomes = Outcomes::sorted(settlements, &self.watermark, &self.taken, aside);
        let mut finished = outcomes.finished(&self.watermark);
        if outcomes.concern_the_cursor_only() && !self.is_time_to_record() {
            finished.sort_unstable();
            let mut connection = self.store.pool().acquire().await.map_err(failure("settle"))?;
            let held = self.move_cursor(&mut connection, &finished).await?;
            if held.is_held() {
                self.forget(&outcomes, &finished);
            }
            return Ok(held);
        }
        let mut tx = self.store.begin_brief().await?;
        if !self.owns(&mut tx).await? {
            return Ok(Holding::Lost);
        }
        let followed = self.store_outcomes(&mut tx, &outcomes).await?;
        finished.extend(&followed);
        finished.sort_unstable();
        if self.is_time_to_record() {
            self.record_progress(&mut tx).await?;
        }
        let held = self.move_cursor(&mut tx, &finished).await?;
        if !held.is_held() {
            return Ok(held);
        }
        tx.commit().await.map_err(failure("settle"))?;
        self.forget(&outcomes, &finished);
        let still_free = |position: &&u64| finished.binary_search(position).is_err();
        self.again.extend(outcomes.released.iter().filter(still_free));
        Ok(held)
    }

    /// Everything but the cursor. Returns the released events that wait in the parked table now.
    async fn store_outcomes(
        &self,
        connection: &mut MySqlConnection,
        outcomes: &Outcomes<Aside>,
    ) -> Result<Vec<u64>, Failure> {
        let parking = self.parking();
        let failed: Vec<_> =
            outcomes.failed.iter().map(|(position, aside)| (*position, aside)).collect();
        parking.put(connection, &failed).await?;
        parking.delivered(connection, &outcomes.delivered_parked).await?;
        parking.released(connection, &outcomes.released_parked).await?;
        let followed = parking.follow(connection, &outcomes.released).await?;
        let mut touched: Vec<u64> = failed.iter().map(|(position, _)| *position).collect();
        touched.extend(&outcomes.delivered_parked);
        touched.extend(&followed);
        parking.promote(connection, &touched).await?;
        Ok(followed)
    }

    /// One UPDATE, which checks that the cursor is still ours.
    pub(super) async fn move_cursor(
        &self,
        connection: &mut MySqlConnection,
        finished: &[u64],
    ) -> Result<Holding, Failure> {
        let frontier = self.watermark.frontier(finished);
        // Numbers always make JSON.
        let ahead = serde_json::to_string(&frontier.ahead).unwrap_or_else(|_| "[]".into());
        let moved = sqlx::query(MOVE)
            .bind(frontier.position)
            .bind(ahead)
            .bind(self.watermark.read())
            .bind(&self.pipeline)
            .bind(self.share.number)
            .bind(self.epoch)
            .bind(self.server)
            .bind(self.watermark.read())
            .execute(connection)
            .await
            .map_err(failure("move the cursor"))?;
        Ok(if moved.rows_affected() == 1 { Holding::Held } else { Holding::Lost })
    }

    fn is_time_to_record(&self) -> bool {
        let now = self.store.clock.now();
        let since = |last| now.duration_since(last).as_secs();
        self.recorded_at.is_none_or(|last| !(0..RECORD_EVERY_SECONDS).contains(&since(last)))
    }

    /// Notes when the cursor came to where it is, before it moves on.
    async fn record_progress(&mut self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        sqlx::query(RECORD)
            .bind(&self.pipeline)
            .bind(self.share.number)
            .bind(self.epoch)
            .execute(connection)
            .await
            .map_err(failure("record the progress"))?;
        self.recorded_at = Some(self.store.clock.now());
        Ok(())
    }

    fn forget(&mut self, outcomes: &Outcomes<Aside>, finished: &[u64]) {
        outcomes.forget(finished, &mut self.watermark, &mut self.again, &mut self.taken);
    }
}
