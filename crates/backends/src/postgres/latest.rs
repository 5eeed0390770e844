//! The newest events of a pipeline, a page at a time, without a look at more of them than a page can
//! wait for.

use semel_core::Failure;
use semel_core::admin::{Cursor, Filter, Page, State};

use super::admin::{PostgresAdmin, list, matching, view};
use super::error::failure;
use super::row::{self, event_columns};
use super::store::count;

const NEWEST_FIRST: &str = list!("o.seq < $8 and o.seq >= $10", " order by o.seq desc limit $9");

/// The page is chosen where they are parked, before anything is known of the others.
const NEWEST_PARKED: &str = list!(
    concat!(
        "o.seq < $8 and o.seq >= $10 and o.seq = any (array(
            select p.seq from semel.parked p join semel.outbox o on o.seq = p.seq
            where p.pipeline = $1 and p.state = $2 and p.seq < $8 and not exists (
                select from semel.cursor c
                where c.pipeline = $1 and c.share = p.share and c.epoch = p.taken) and ",
        matching!(),
        " order by p.seq desc limit $9))"
    ),
    " order by o.seq desc limit $9"
);

const NEWEST_UNSETTLED: &str = list!(
    "o.seq < $8 and o.seq >= $10 and o.seq = any (array(select seq from semel.unsettled($1) union all
        select seq from semel.parked
        where pipeline = $1 and (state in ('scheduled', 'waiting') or taken is not null)))",
    " order by o.seq desc limit $9"
);

/// The first and the last number, and, if asked, whether few events are still to be published.
const SPAN: &str = "\
select coalesce((select seq from semel.outbox order by seq limit 1), 0),
    coalesce((select seq from semel.outbox order by seq desc limit 1), 0),
    case when $2 then
        (select count(*) from (select from semel.unsettled($1) limit 10001) first) <= 10000 end";

/// How many events one call looks at, where all of them have to be.
const LOOKED_AT: i64 = 100_000;

impl PostgresAdmin {
    pub(super) async fn newest(
        &self,
        filter: &Filter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let failed = || failure("list events");
        let is_waiting = matches!(filter.state, Some(State::Pending | State::Publishing));
        let (first, last, few): (i64, i64, Option<bool>) = sqlx::query_as(SPAN)
            .bind(&self.pipeline)
            .bind(is_waiting)
            .fetch_one(self.store.once())
            .await
            .map_err(failed())?;
        let end = before.map_or(i64::MAX, |Cursor(seq)| i64::try_from(seq).unwrap_or(i64::MAX));
        let (sql, floor) = match filter.state {
            Some(State::Failed | State::Dead | State::Discarded) => (NEWEST_PARKED, 0),
            _ if few == Some(true) => (NEWEST_UNSETTLED, 0),
            _ => (NEWEST_FIRST, end.min(last + 1) - LOOKED_AT),
        };
        let rows = self
            .filtered(sql, filter)
            .bind(end)
            .bind(count(limit.saturating_add(1)))
            .bind(floor)
            .fetch_all(self.store.once())
            .await
            .map_err(failed())?;
        let page = &rows[..limit.min(rows.len())];
        let next = match page.last() {
            Some(last) if rows.len() > limit => Some(Cursor(row::seq(last)?.unsigned_abs())),
            _ => (floor > first).then(|| Cursor(floor.unsigned_abs())),
        };
        Ok(Page { events: page.iter().map(view).collect::<Result<_, _>>()?, next })
    }
}
