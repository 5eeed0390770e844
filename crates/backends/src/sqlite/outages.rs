//! Why relays cannot reach their sinks, kept where everybody looks.

use semel_core::Failure;
use semel_core::insight::{Outage, OutageView};

use super::error::failure;
use super::store::{SqliteStore, timestamp};

const LIST: &str = "SELECT relay, sink, code, error, fix, since FROM semel_outages \
    WHERE pipeline = ?1 AND seen_at >= ?2 ORDER BY since, relay LIMIT 100";

const TELL: &str = "INSERT INTO semel_outages \
        (pipeline, relay, since, seen_at, sink, code, error, fix) \
    VALUES (?1, ?2, ?4, ?4, ?5, ?6, ?7, ?8) \
    ON CONFLICT (pipeline, relay) DO UPDATE SET sink = excluded.sink, code = excluded.code, \
        error = excluded.error, fix = excluded.fix, seen_at = excluded.seen_at, \
        since = iif(seen_at >= ?3, since, excluded.since)";

/// With what others left behind.
const FORGET: &str =
    "DELETE FROM semel_outages WHERE pipeline = ?1 AND (relay = ?2 OR seen_at < ?3)";

impl SqliteStore {
    pub(super) async fn outages_of(&self, pipeline: &str) -> Result<Vec<OutageView>, Failure> {
        type Row = (String, Option<String>, String, String, Option<String>, i64);
        let query = sqlx::query_as(LIST).bind(pipeline).bind(self.before(Outage::HOLDS));
        let rows: Vec<Row> =
            query.fetch_all(&self.readers).await.map_err(failure("look at the outages"))?;
        let view = |(relay, sink, code, error, fix, since): Row| {
            let since = timestamp(since);
            OutageView { relay, outage: Outage { sink, code, error, fix }, since }
        };
        Ok(rows.into_iter().map(view).collect())
    }

    pub(super) async fn write_outage(
        &self,
        pipeline: &str,
        relay: &str,
        outage: Option<&Outage>,
    ) -> Result<(), Failure> {
        let failed = || failure("tell of an outage");
        let query = sqlx::query(if outage.is_some() { TELL } else { FORGET });
        let mut query = query.bind(pipeline).bind(relay).bind(self.before(Outage::HOLDS));
        if let Some(Outage { sink, code, error, fix }) = outage {
            query = query.bind(self.now()).bind(sink).bind(code).bind(error).bind(fix);
        }
        let mut tx = self.begin().await?;
        query.execute(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())
    }
}
