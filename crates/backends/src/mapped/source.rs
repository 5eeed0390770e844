//! [`Source`]: a mapped table, read by its marks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::{
    Batch, Delivery, Failure, Guarantees, Holding, Limit, Message, Receipt, Settlement, Source,
    Timestamp, Topic,
};
use tokio::sync::watch;

use super::check::check;
use super::database::{Database, Flight, Flights};
use super::pipeline::Pipeline;
use super::round::{Found, Round};
use super::statement::Row;
use super::unknown::Search;
use super::{LaneOrder, Mapping};
use crate::row::timestamp;

/// A mapped table as a source for one pipeline. Made by `mapped_source` of a store.
///
/// A row waits until it is marked, or deleted; so a transaction that commits late is found whenever
/// it commits. Whoever opens a pipeline owns it: everything an earlier owner still tries is answered
/// with [`Holding::Lost`].
///
#[cfg_attr(feature = "sqlite", doc = "```no_run")]
#[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
/// use semel_backends::mapped::Mapping;
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::{Limit, Source};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = SqliteConfig::new("sqlite://shop.db")?.connect().await?;
/// let mapping = Mapping::polling_publisher("outbox");
/// let mut source = store.mapped_source("orders", &mapping).await?;
/// let batch = source.next_batch(Limit::default()).await?;
/// println!("{} events to publish", batch.deliveries.len());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MappedSource {
    pub(super) database: Arc<dyn Database>,
    pub(super) pipeline: Pipeline,
    pub(super) epoch: i64,
    pub(super) flights: Flights,
    changes: watch::Receiver<()>,
    topic: Topic,
    last_receipt: u64,
    /// How large an event is, about: so that no more is asked for than there is room for.
    average: usize,
    /// When rows that are gone were last looked for.
    tidied_at: Timestamp,
    pub(super) search: Search,
    /// Whether the last look found another owner.
    lost: bool,
}

/// How many seconds apart it is looked whether rows that failed are still there.
const TIDY_EVERY_SECONDS: i64 = 10;

/// How soon a source is asked again of which as many rows are in flight as may be.
const WHILE_FULL: Duration = Duration::from_millis(10);

/// What there is to do.
struct Agenda {
    something_is_parked: bool,
    something_is_unknown: bool,
    something_is_due: bool,
    next_retry: Option<Timestamp>,
}

impl MappedSource {
    pub(crate) async fn open(
        database: Arc<dyn Database>,
        pipeline: &str,
        mapping: &Mapping,
    ) -> Result<Self, Failure> {
        database.check_schema().await?;
        let table = check(&*database, mapping).await?;
        warn_of_order(table.lane_order(), pipeline, &mapping.shown());
        let pipeline = Pipeline { name: pipeline.to_owned(), table: Arc::new(table) };
        let epoch = pipeline.take_over(&*database).await?;
        pipeline.tidy(&*database, Some(epoch)).await?;
        let mut source = Self {
            flights: database.airspace().open(&pipeline.name, epoch),
            changes: database.changes(),
            topic: Topic::from(mapping.table()),
            last_receipt: 0,
            average: 1024,
            tidied_at: database.clock().now(),
            search: Search::now(),
            lost: false,
            epoch,
            pipeline,
            database,
        };
        source.look_for_unknown().await?;
        Ok(source)
    }

    /// How the database would read the rows that wait while some lanes do, in its own words: so
    /// that a missing index is seen before the table is large.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    pub async fn plan(&self) -> Result<Vec<String>, Failure> {
        let out = self.flights.row_ids();
        let mut query = self.pipeline.waiting(&*self.database, true, &out, Limit::default().events);
        query.sql = format!("{} {}", self.database.dialect().explain(), query.sql);
        let rows = self.database.read("explain how the mapped table is read", query).await?;
        let words = |row: &Row| (0..row.0.len()).filter_map(|column| row.text(column)).collect();
        Ok(rows.iter().map(|row| -> Vec<String> { words(row) }).map(|row| row.join(" ")).collect())
    }

    /// Whether this source is the owner still, and what there is to do.
    async fn look(&mut self) -> Result<Option<Agenda>, Failure> {
        let Pipeline { name, .. } = &self.pipeline;
        let (owners, parked) = (self.database.dialect().owners(), self.database.dialect().parked());
        let mut sql = self.database.statement();
        sql.push(&format!(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM {parked} WHERE pipeline = "
        ));
        sql.text(name.as_str()).push(" LIMIT 1) a), ");
        sql.push(&format!("(SELECT count(*) FROM (SELECT 1 FROM {parked} WHERE pipeline = "));
        sql.text(name.as_str()).push(" AND due <= ").now().push(" LIMIT 1) b), ");
        sql.push(&format!("(SELECT retry_at FROM {parked} WHERE pipeline = ")).text(name.as_str());
        sql.push(" AND state = 'failed' AND due > ").now();
        let unknown = self.pipeline.table.count_unknown().unwrap_or_else(|| "0".into());
        sql.push(&format!(" ORDER BY due LIMIT 1), {unknown} FROM {owners} WHERE pipeline = "));
        sql.text(name.as_str()).push(" AND epoch = ").int(self.epoch);
        let rows = self.database.read("look for events", sql).await?;
        self.lost = rows.is_empty();
        let Some(row) = rows.first() else { return Ok(None) };
        let agenda = Agenda {
            something_is_parked: row.is_true(0),
            something_is_due: row.is_true(1),
            next_retry: row.int(2).map(timestamp),
            something_is_unknown: row.is_true(3),
        };
        let since = self.database.clock().now().duration_since(self.tidied_at).as_secs();
        if agenda.something_is_parked && !(0..TIDY_EVERY_SECONDS).contains(&since) {
            self.pipeline.tidy(&*self.database, Some(self.epoch)).await?;
            self.tidied_at = self.database.clock().now();
        }
        Ok(Some(agenda))
    }

    /// Failed events that are due: they go first.
    async fn collect_due(&self, round: &mut Round) -> Result<(), Failure> {
        let Pipeline { name, table } = &self.pipeline;
        let asked = round.rows(self.average);
        let due = self.pipeline.due(&*self.database, &round.out, asked).await?;
        let ids: Vec<String> = due.iter().filter_map(|row| row.text(0)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let room = round.room();
        let rows = self.failed(&ids, room).await?;
        let is_cut_off = size(&rows) > room;
        for (id, due) in ids.iter().zip(&due) {
            let mut row = rows.iter().find(|row| row.text(0).as_ref() == Some(id)).cloned();
            if row.is_none() && is_cut_off {
                row = self.failed(std::slice::from_ref(id), room).await?.pop();
            }
            let Some(row) = row else {
                // Somebody deleted or marked it: it will be tidied away.
                tracing::debug!(pipeline = %name, row = %id, "a failed row is gone");
                continue;
            };
            let attempts = u32::try_from(due.number(1)).unwrap_or(u32::MAX);
            if !round.add(id, Arc::new(table.event(&row)?), attempts, true) {
                return Ok(());
            }
        }
        round.more |= due.len() == asked;
        Ok(())
    }

    /// Some of these rows, in any order: all of them, or as many as exceed the room that there is.
    async fn failed(&self, ids: &[String], room: usize) -> Result<Vec<Row>, Failure> {
        let table = &self.pipeline.table;
        let mut sql = self.database.statement().within(room);
        sql.push(&format!("SELECT {} FROM {} t WHERE ", table.event_columns, table.name));
        sql.push(&table.unmarked("t.")).push(" AND ").among(&table.key(), ids);
        self.database.read("read failed events", sql).await
    }

    /// Rows that wait, in their order.
    async fn collect_waiting(&self, agenda: &Agenda, round: &mut Round) -> Result<(), Failure> {
        let (asked, room) = (round.rows(self.average), round.room());
        let (database, parked) = (&*self.database, agenda.something_is_parked);
        let query = if agenda.something_is_unknown {
            self.pipeline.waiting_of_both_kinds(database, parked, &round.out, asked)
        } else {
            self.pipeline.waiting(database, parked, &round.out, asked)
        };
        let rows = self.database.read("read the mapped table", query.within(room)).await?;
        for row in &rows {
            let (id, event) = (self.pipeline.table.row_id(row)?, self.pipeline.table.event(row)?);
            if !round.add(&id, Arc::new(event), 0, false) {
                return Ok(());
            }
        }
        round.more |= rows.len() == asked || size(&rows) > room;
        Ok(())
    }

    /// As many rows are in flight as may be. There may be more: it is asked again, but not before
    /// something could be settled.
    fn nothing_for_now(&self) -> Batch {
        let soon = self.database.clock().now().checked_add(WHILE_FULL).ok();
        Batch { next_due: soon, ..Batch::default() }
    }

    /// From here on everything is the engine's.
    fn hand_out(&mut self, round: Round) -> Vec<Delivery> {
        if let Some(average) = round.bytes.checked_div(round.found.len()) {
            self.average = average.max(1);
        }
        let mut flights = self.flights.lock();
        let mut deliveries = Vec::with_capacity(round.found.len());
        for Found { row_id, event, attempts, parked } in round.found {
            self.last_receipt += 1;
            let lane = (event.aggregate_type.clone(), event.aggregate_id.clone());
            flights.insert(self.last_receipt, Flight { row_id, lane, parked });
            deliveries.push(Delivery {
                // A row that is unmarked to be published again cannot be told from a new one.
                message: Message {
                    attempt: attempts + 1,
                    ..Message::first(self.topic.clone(), event)
                },
                receipt: Receipt(self.last_receipt),
            });
        }
        deliveries
    }
}

#[async_trait]
impl Source for MappedSource {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: self.pipeline.table.lane_order().is_kept(), parking: true }
    }

    /// Hands nothing out before the end: a dropped call has not happened.
    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.changes.borrow_and_update();
        self.look_for_unknown().await?;
        let Some(agenda) = self.look().await? else {
            return Ok(Batch::default());
        };
        let out = self.flights.row_ids();
        let room = self.database.dialect().most_in_flight().saturating_sub(out.len());
        if room == 0 {
            return Ok(self.nothing_for_now());
        }
        let limit = Limit { events: limit.events.min(room), ..limit };
        let mut round = Round::new(limit, out);
        if agenda.something_is_due {
            self.collect_due(&mut round).await?;
        }
        if !round.more {
            self.collect_waiting(&agenda, &mut round).await?;
        }
        let more = round.more;
        Ok(Batch { deliveries: self.hand_out(round), more, next_due: agenda.next_retry })
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        let mut changes = self.changes.clone();
        Box::pin(async move {
            // An error means that the store is gone; then nothing will come any more.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.settle_all(settlements).await
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    async fn close(&mut self) {
        self.flights.lock().clear();
    }
}

fn size(rows: &[Row]) -> usize {
    rows.iter().map(Row::size).sum()
}

/// Says what order is not to be had, once for each start.
fn warn_of_order(order: LaneOrder, pipeline: &str, table: &str) {
    match order {
        LaneOrder::ByColumn => {}
        LaneOrder::ByTime => tracing::warn!(
            pipeline,
            table,
            fix = LaneOrder::FIX_TIME,
            "only the time of writing orders the rows: events of one aggregate that have the same \
             time, as those of one transaction, come in any order"
        ),
        LaneOrder::None => tracing::warn!(
            pipeline,
            table,
            fix = LaneOrder::FIX,
            "no column orders the rows: events of one aggregate come in any order"
        ),
    }
}
