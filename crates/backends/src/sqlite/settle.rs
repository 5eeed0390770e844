//! What became of deliveries, on its way into the tables.

use std::collections::BTreeSet;

use semel_core::{Failure, Holding, Settlement};
use sqlx::SqliteConnection;

use super::error::failure;
use super::parking::{Aside, FreeLanes, OwnedLane};
use super::poll::{RECORD_EVERY_MICROS, SqliteSource};
use super::row::stored;
use crate::settle::Outcomes;

impl SqliteSource {
    /// Nothing is changed in memory until all of it is stored.
    pub(super) async fn settle_all(
        &mut self,
        settlements: &[Settlement],
    ) -> Result<Holding, Failure> {
        let outcomes = Outcomes::sorted(settlements, &self.watermark, &self.taken, Aside::failed);
        let mut finished = outcomes.finished(&self.watermark);
        let mut again = BTreeSet::new();
        let held = if outcomes.concern_the_cursor_only() {
            finished.sort_unstable();
            self.move_cursor_alone(&finished).await?
        } else {
            let mut tx = self.store.begin().await?;
            again = self.store_outcomes(&mut tx, &outcomes, &mut finished).await?;
            finished.sort_unstable();
            let held = self.move_cursor(&mut tx, &finished).await?;
            if held.is_held() {
                tx.commit().await.map_err(failure("settle"))?;
            }
            held
        };
        if held.is_held() {
            outcomes.forget(&finished, &mut self.watermark, &mut self.again, &mut self.taken);
            self.again.extend(again);
        }
        Ok(held)
    }

    /// Everything but the cursor. Adds to `finished` the released events that wait in the parked
    /// table now; returns the others.
    async fn store_outcomes(
        &self,
        connection: &mut SqliteConnection,
        outcomes: &Outcomes<Aside>,
        finished: &mut Vec<u64>,
    ) -> Result<BTreeSet<u64>, Failure> {
        let parking = self.parking();
        let mut lanes = BTreeSet::<OwnedLane>::new();
        for (seq, aside) in &outcomes.failed {
            lanes.extend(parking.put(connection, *seq, aside).await?);
        }
        lanes.extend(parking.delivered(connection, &outcomes.delivered_parked).await?);
        parking.released(connection, &outcomes.released_parked).await?;
        let mut again: BTreeSet<u64> = outcomes.released.iter().copied().collect();
        for (lane, seq) in
            parking.follow(connection, &outcomes.released, FreeLanes::LeaveOut).await?
        {
            again.remove(&seq);
            finished.push(seq);
            lanes.insert(lane);
        }
        parking.promote_all(connection, &lanes).await?;
        Ok(again)
    }

    /// The usual case: one UPDATE, which is its own transaction; once a second, two statements.
    async fn move_cursor_alone(&mut self, finished: &[u64]) -> Result<Holding, Failure> {
        if self.is_time_to_record() {
            let mut tx = self.store.begin().await?;
            let held = self.move_cursor(&mut tx, finished).await?;
            tx.commit().await.map_err(failure("settle"))?;
            return Ok(held);
        }
        let mut writer = self.store.writer.acquire().await.map_err(failure("settle"))?;
        self.update_cursor(&mut writer, finished).await
    }

    async fn move_cursor(
        &mut self,
        connection: &mut SqliteConnection,
        finished: &[u64],
    ) -> Result<Holding, Failure> {
        if self.is_time_to_record() {
            self.record_progress(connection).await?;
        }
        self.update_cursor(connection, finished).await
    }

    async fn update_cursor(
        &self,
        connection: &mut SqliteConnection,
        finished: &[u64],
    ) -> Result<Holding, Failure> {
        let frontier = self.watermark.frontier(finished);
        // Numbers always make JSON.
        let ahead = serde_json::to_string(&frontier.ahead).unwrap_or_else(|_| "[]".into());
        let moved = sqlx::query(
            "UPDATE semel_cursor SET position = ?3, ahead = ?4, handed_out = ?5, moved_at = ?6 \
             WHERE pipeline = ?1 AND epoch = ?2",
        )
        .bind(&self.pipeline)
        .bind(self.epoch)
        .bind(stored(frontier.position))
        .bind(ahead)
        .bind(stored(self.watermark.read()))
        .bind(self.store.now())
        .execute(connection)
        .await
        .map_err(failure("move the cursor"))?;
        Ok(if moved.rows_affected() == 1 { Holding::Held } else { Holding::Lost })
    }

    fn is_time_to_record(&self) -> bool {
        self.store.now() >= self.recorded_at.saturating_add(RECORD_EVERY_MICROS)
    }

    /// Notes when the cursor came to where it is, before it moves on.
    async fn record_progress(&mut self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        sqlx::query(
            "INSERT INTO semel_progress (pipeline, position, at) \
             SELECT pipeline, position, moved_at FROM semel_cursor \
             WHERE pipeline = ?1 AND epoch = ?2 ON CONFLICT DO NOTHING",
        )
        .bind(&self.pipeline)
        .bind(self.epoch)
        .execute(connection)
        .await
        .map_err(failure("record the progress"))?;
        self.recorded_at = self.store.now();
        Ok(())
    }
}
