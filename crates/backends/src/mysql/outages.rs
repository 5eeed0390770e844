//! Why relays cannot reach their sinks, kept where everybody looks.

use semel_core::Failure;
use semel_core::insight::{Outage, OutageView};

use super::error::failure;
use super::row::as_micros;
use super::store::{MysqlStore, timestamp};
use crate::applied::if_allowed;

const LIST: &str = concat!(
    "SELECT relay, sink, code, error, fix, ",
    as_micros!("since"),
    " FROM semel_outages WHERE pipeline = ? AND seen_at >= utc_timestamp(6) - INTERVAL ? SECOND \
      ORDER BY since, relay LIMIT 100"
);

/// It keeps since when, unless nobody has said it for long: `seen_at` is still the one of before where
/// it is asked.
const TELL: &str = "INSERT INTO semel_outages (since, seen_at, pipeline, relay, sink, code, error, fix) \
    VALUES (utc_timestamp(6), utc_timestamp(6), ?, ?, ?, ?, ?, ?) \
    ON DUPLICATE KEY UPDATE \
        since = if(seen_at >= utc_timestamp(6) - INTERVAL ? SECOND, since, VALUES(since)), \
        seen_at = VALUES(seen_at), sink = VALUES(sink), code = VALUES(code), \
        error = VALUES(error), fix = VALUES(fix)";

/// With what others left behind.
const FORGET: &str = "DELETE FROM semel_outages \
    WHERE pipeline = ? AND (relay = ? OR seen_at < utc_timestamp(6) - INTERVAL ? SECOND)";

impl MysqlStore {
    pub(super) async fn outages_of(&self, pipeline: &str) -> Result<Vec<OutageView>, Failure> {
        type Row = (String, Option<String>, String, String, Option<String>, i64);
        let query = sqlx::query_as(LIST).bind(pipeline).bind(Outage::HOLDS.as_secs());
        let rows = query.fetch_all(self.pool()).await.map_err(failure("look at the outages"));
        let rows: Vec<Row> = if_allowed(rows)?;
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
        let query = match outage {
            None => sqlx::query(FORGET).bind(pipeline).bind(relay),
            Some(Outage { sink, code, error, fix }) => {
                let query = sqlx::query(TELL).bind(pipeline).bind(relay);
                query.bind(sink).bind(code).bind(error).bind(fix)
            }
        };
        let written = query.bind(Outage::HOLDS.as_secs()).execute(self.pool()).await;
        written.map(drop).map_err(failure("tell of an outage"))
    }
}
