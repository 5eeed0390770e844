//! Why relays cannot reach their sinks, kept where everybody looks.

use semel_core::Failure;
use semel_core::insight::{Outage, OutageView};

use super::error::failure;
use super::store::PostgresStore;
use super::types::Stamp;
use crate::applied::if_allowed;

const LIST: &str = "\
select relay, sink, code, error, fix, since from semel.outages
where pipeline = $1 and seen_at >= now() - make_interval(secs => $2)
order by since, relay limit 100";

const TELL: &str = "\
insert into semel.outages (pipeline, relay, sink, code, error, fix) values ($1, $2, $3, $4, $5, $6)
on conflict (pipeline, relay) do update set sink = excluded.sink, code = excluded.code,
    error = excluded.error, fix = excluded.fix, seen_at = excluded.seen_at,
    since = case when outages.seen_at >= now() - make_interval(secs => $7) then outages.since
        else excluded.since end";

/// With what others left behind.
const FORGET: &str = "\
delete from semel.outages
where pipeline = $1 and (relay = $2 or seen_at < now() - make_interval(secs => $3))";

impl PostgresStore {
    pub(super) async fn outages_of(&self, pipeline: &str) -> Result<Vec<OutageView>, Failure> {
        type Row = (String, Option<String>, String, String, Option<String>, Stamp);
        let query = sqlx::query_as(LIST).bind(pipeline).bind(Outage::HOLDS.as_secs_f64());
        let rows = query.fetch_all(self.once()).await.map_err(failure("look at the outages"));
        let rows: Vec<Row> = if_allowed(rows)?;
        let view = |(relay, sink, code, error, fix, Stamp(since)): Row| OutageView {
            relay,
            outage: Outage { sink, code, error, fix },
            since,
        };
        Ok(rows.into_iter().map(view).collect())
    }

    pub(super) async fn write_outage(
        &self,
        pipeline: &str,
        relay: &str,
        outage: Option<&Outage>,
    ) -> Result<(), Failure> {
        // PostgreSQL stores no NUL characters in text.
        let readable = |text: &String| text.replace('\0', "\u{fffd}");
        let query = match outage {
            None => sqlx::query(FORGET).bind(pipeline).bind(relay),
            Some(Outage { sink, code, error, fix }) => sqlx::query(TELL)
                .bind(pipeline)
                .bind(relay)
                .bind(sink.as_ref().map(readable))
                .bind(code)
                .bind(readable(error))
                .bind(fix.as_ref().map(readable)),
        };
        let written = query.bind(Outage::HOLDS.as_secs_f64()).execute(self.once()).await;
        written.map(drop).map_err(failure("tell of an outage"))
    }
}
