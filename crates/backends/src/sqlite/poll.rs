//! [`Source`]: the outbox of one pipeline, read with a cursor.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use semel_core::{
    Batch, Delivery, Failure, Guarantees, Holding, Limit, Message, Publication, Receipt,
    Settlement, Source, Timestamp, Topic,
};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use tokio::sync::watch;

use super::error::failure;
use super::parking::{FreeLanes, Parking, Standing, json, standing};
use super::round::{Found, Round, sort, unreadable};
use super::row::{self, AFTER_EVENT, event_columns, stored};
use super::schema;
use super::store::{SqliteStore, timestamp};
use crate::watermark::{Frontier, Watermark};

/// The outbox as a source for one pipeline. Made by [`SqliteStore::source`].
///
/// Several pipelines read the same outbox, each with a cursor of its own. Whoever opens a pipeline
/// owns it: the epoch in its cursor row goes up, and everything an earlier owner still tries is
/// answered with [`Holding::Lost`].
///
/// Confirming a batch is one UPDATE of one row, however large the batch is.
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::{Event, Limit, Outcome, Settlement, Source};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// store.migrate().await?;
/// let mut tx = store.begin().await?;
/// store.outbox().append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
/// tx.commit().await?;
///
/// let mut source = store.source("orders").await?;
/// let batch = source.next_batch(Limit::default()).await?;
/// let receipt = batch.deliveries[0].receipt;
/// source.settle(&[Settlement { receipt, outcome: Outcome::Delivered }]).await?;
///
/// let mut successor = store.source("orders").await?;
/// assert!(successor.next_batch(Limit::default()).await?.deliveries.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct SqliteSource {
    pub(super) store: SqliteStore,
    changes: watch::Receiver<()>,
    pub(super) pipeline: String,
    pub(super) epoch: i64,
    topic: Topic,
    /// The rows that were read from the log and are not settled.
    pub(super) watermark: Watermark,
    /// Of those, the ones to be offered again.
    pub(super) again: BTreeSet<u64>,
    /// Parked rows in flight.
    pub(super) taken: HashSet<u64>,
    /// Whether rows may be marked as taken in the table that `taken` does not have, because a call
    /// ended half-way.
    unsure: bool,
    /// When the progress was last recorded.
    pub(super) recorded_at: i64,
}

/// How often the progress is recorded: how exact the time of publishing is known.
pub(super) const RECORD_EVERY_MICROS: i64 = 1_000_000;

/// Rows after a position.
const NEW: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", ",
    standing!(),
    " FROM semel_outbox o WHERE o.seq > ?2 ORDER BY o.seq LIMIT ?3"
);

/// Rows by their numbers.
const AGAIN: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", ",
    standing!(),
    " FROM semel_outbox o WHERE o.seq IN (SELECT value FROM json_each(?2)) ORDER BY o.seq"
);

impl SqliteSource {
    pub(super) async fn open(store: SqliteStore, pipeline: &str) -> Result<Self, Failure> {
        schema::check(&store.readers).await?;
        let failed = || failure("take over the pipeline");
        let mut tx = store.begin().await?;
        let (epoch, position, ahead): (i64, i64, String) = sqlx::query_as(
            "INSERT INTO semel_cursor (pipeline, position, epoch, moved_at) VALUES (?1, 0, 1, ?2) \
             ON CONFLICT (pipeline) DO UPDATE SET epoch = epoch + 1, handed_out = position \
             RETURNING epoch, position, ahead",
        )
        .bind(pipeline)
        .bind(store.now())
        .fetch_one(&mut *tx)
        .await
        .map_err(failed())?;
        Parking { pipeline, now: store.now() }.free_all_but(&mut tx, &[]).await?;
        tx.commit().await.map_err(failed())?;
        let ahead = serde_json::from_str(&ahead).map_err(|error| {
            Failure::misconfigured("E-SQLITE-CURSOR", format!("SQLite: cursor of {pipeline:?}"))
                .with_source(error)
        })?;
        Ok(Self {
            changes: store.changes(),
            pipeline: pipeline.to_owned(),
            epoch,
            topic: Topic::from("outbox"),
            watermark: Watermark::resume(Frontier { position: row::position(position), ahead }),
            again: BTreeSet::new(),
            taken: HashSet::new(),
            unsure: false,
            recorded_at: i64::MIN,
            store,
        })
    }

    pub(super) fn parking(&self) -> Parking<'_> {
        Parking { pipeline: &self.pipeline, now: self.store.now() }
    }

    async fn owns(&self, connection: &mut SqliteConnection) -> Result<bool, Failure> {
        sqlx::query("SELECT 1 FROM semel_cursor WHERE pipeline = ?1 AND epoch = ?2")
            .bind(&self.pipeline)
            .bind(self.epoch)
            .fetch_optional(connection)
            .await
            .map_err(failure("look who owns the pipeline"))
            .map(|row| row.is_some())
    }
}

#[async_trait]
impl Source for SqliteSource {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: true }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.changes.borrow_and_update();
        loop {
            let Some(agenda) = self.look().await? else {
                return Ok(Batch::default());
            };
            // Nothing is changed in memory before the last await, so that a dropped call has not
            // handed anything out.
            let mut round = Round::new(limit);
            if agenda.something_is_due {
                self.collect_parked(&mut round).await?;
            }
            self.collect_log(&mut round).await?;
            if self.put_aside(&round).await? {
                self.collect_parked(&mut round).await?;
            }
            let more = round.more;
            let deliveries = self.hand_out(round);
            if !deliveries.is_empty() || !more {
                return Ok(Batch { deliveries, more, next_due: agenda.next_retry });
            }
        }
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
}

/// What falls due.
struct Agenda {
    something_is_due: bool,
    next_retry: Option<Timestamp>,
}

impl SqliteSource {
    /// Whether this source is the owner still, and what falls due when.
    async fn look(&mut self) -> Result<Option<Agenda>, Failure> {
        if self.unsure {
            self.tidy().await?;
        }
        let now = self.store.now();
        let found: Option<(Option<i64>, Option<i64>, Option<i64>)> = sqlx::query_as(
            "SELECT (SELECT min(due) FROM semel_parked WHERE pipeline = ?1 AND state = 'failed' \
                         AND due IS NOT NULL AND taken IS NULL), \
                    (SELECT min(due) FROM semel_parked WHERE pipeline = ?1 AND state = 'waiting' \
                         AND due IS NOT NULL AND taken IS NULL), \
                    (SELECT min(due) FROM semel_parked WHERE pipeline = ?1 AND state = 'scheduled' \
                         AND due IS NOT NULL AND taken IS NULL) \
             FROM semel_cursor WHERE pipeline = ?1 AND epoch = ?2",
        )
        .bind(&self.pipeline)
        .bind(self.epoch)
        .fetch_optional(&self.store.readers)
        .await
        .map_err(failure("look for events"))?;
        let Some((failed, waiting, scheduled)) = found else {
            return Ok(None);
        };
        let is_due = |due: Option<i64>| due.is_some_and(|due| due <= now);
        if is_due(scheduled) {
            self.tidy().await?;
        }
        Ok(Some(Agenda {
            something_is_due: is_due(failed) || is_due(waiting) || is_due(scheduled),
            next_retry: failed.filter(|due| *due > now).map(timestamp),
        }))
    }

    /// Puts the parked table in order before it is read.
    async fn tidy(&mut self) -> Result<(), Failure> {
        let mut tx = self.store.begin().await?;
        if self.owns(&mut tx).await? {
            let parking = self.parking();
            if self.unsure {
                let taken: Vec<u64> = self.taken.iter().copied().collect();
                parking.free_all_but(&mut tx, &taken).await?;
            }
            parking.wake_scheduled(&mut tx, self.watermark.read()).await?;
        }
        tx.commit().await.map_err(failure("put parked events in order"))?;
        self.unsure = false;
        Ok(())
    }

    /// Parked events that are due: they are the oldest. One that cannot be read is dead again.
    async fn collect_parked(&mut self, round: &mut Round) -> Result<(), Failure> {
        let failed = || failure("read parked events");
        let mut reader = self.store.readers.acquire().await.map_err(failed())?;
        let rows = self.parking().due(&mut reader, round.rows()).await?;
        drop(reader);
        let mut chosen = Vec::new();
        for found in &rows {
            let seq = row::seq(found)?;
            // After a settle whose answer was lost the table may be ahead of us.
            if self.taken.contains(&seq) || self.watermark.is_out(seq) {
                continue;
            }
            let (event, fault) = row::event(found)?;
            let attempts = row::column(found, AFTER_EVENT)?;
            if let Some(fault) = fault {
                chosen.push((seq, unreadable(&self.pipeline, seq, attempts, &fault)));
                round.unreadable.push(event);
                // It took the place of another in the answer.
                round.more = true;
                continue;
            }
            if round.is_held(&event) {
                continue;
            }
            if !round.admit(&event) {
                break;
            }
            let publication = row::publication(found, AFTER_EVENT + 1)?;
            chosen.push((seq, Found::Parked(attempts, publication, event)));
        }
        if chosen.is_empty() {
            return Ok(());
        }
        self.unsure = true;
        let mut tx = self.store.begin().await?;
        if self.owns(&mut tx).await? {
            let seqs: Vec<u64> = chosen.iter().map(|(seq, _)| *seq).collect();
            let granted = self.parking().take(&mut tx, &seqs, self.epoch).await?;
            chosen.retain(|(seq, _)| granted.contains(seq));
            for (seq, aside) in chosen.iter().filter_map(Found::aside) {
                self.parking().put(&mut tx, seq, aside).await?;
            }
            chosen.retain(|(_, found)| !matches!(found, Found::PutAside(_)));
            round.found.append(&mut chosen);
        }
        tx.commit().await.map_err(failed())
    }

    /// Released rows, then rows that were not read yet.
    async fn collect_log(&self, round: &mut Round) -> Result<(), Failure> {
        let mut reader = self.store.readers.acquire().await.map_err(failure("read the outbox"))?;
        if !self.again.is_empty() {
            let rows = usize::try_from(round.rows()).unwrap_or(usize::MAX);
            let seqs: Vec<u64> = self.again.iter().copied().take(rows).collect();
            let query = sqlx::query(AGAIN).bind(&self.pipeline).bind(json(&seqs));
            self.collect(query.fetch(&mut *reader), round).await?;
        }
        if !round.more {
            let (after, rows) = (stored(self.watermark.read()), round.rows());
            let query = sqlx::query(NEW).bind(&self.pipeline).bind(after).bind(rows);
            let read = self.collect(query.fetch(&mut *reader), round).await?;
            round.more |= read == rows;
        }
        Ok(())
    }

    /// Reads rows as long as there is room; says how many.
    async fn collect(
        &self,
        mut rows: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
        round: &mut Round,
    ) -> Result<i64, Failure> {
        let now = self.store.clock.now();
        let mut count = 0;
        while let Some(found) = rows.try_next().await.map_err(failure("read the outbox"))? {
            count += 1;
            let seq = row::seq(&found)?;
            let standing = Standing::from_column(row::column(&found, AFTER_EVENT)?);
            let found = if standing == Standing::Parked || self.watermark.is_known(seq) {
                Found::Passed
            } else {
                match row::event(&found)? {
                    (event, None) if round.is_held(&event) => sort(event, Standing::Held, now),
                    (event, None) => sort(event, standing, now),
                    (event, Some(fault)) => {
                        round.unreadable.push(event);
                        unreadable(&self.pipeline, seq, 0, &fault)
                    }
                }
            };
            if let Found::Free(event) = &found
                && !round.admit(event)
            {
                break;
            }
            round.found.push((seq, found));
        }
        Ok(count)
    }

    /// Parks what must wait; says whether something is due now all the same.
    async fn put_aside(&self, round: &Round) -> Result<bool, Failure> {
        let held = round.found.iter().filter(|(_, found)| matches!(found, Found::Held));
        let held: Vec<u64> = held.map(|(seq, _)| *seq).collect();
        let aside: Vec<_> = round.found.iter().filter_map(Found::aside).collect();
        if held.is_empty() && aside.is_empty() {
            return Ok(false);
        }
        let parking = self.parking();
        let mut something_is_due = false;
        let mut tx = self.store.begin().await?;
        if self.owns(&mut tx).await? {
            for (seq, aside) in aside {
                parking.put(&mut tx, seq, aside).await?;
            }
            // A lane that has become free meanwhile goes on at once.
            let followers = parking.follow(&mut tx, &held, FreeLanes::Park).await?;
            let lanes: BTreeSet<_> = followers.into_iter().map(|(lane, _)| lane).collect();
            for lane in &lanes {
                something_is_due |= parking.promote(&mut tx, lane).await?;
            }
            let read =
                round.found.iter().map(|(seq, _)| *seq).fold(self.watermark.read(), u64::max);
            something_is_due |= parking.wake_scheduled(&mut tx, read).await?;
        }
        tx.commit().await.map_err(failure("park events"))?;
        Ok(something_is_due)
    }

    /// From here on everything is the engine's.
    fn hand_out(&mut self, round: Round) -> Vec<Delivery> {
        self.unsure = false;
        let topic = self.topic.clone();
        let delivery = |seq, event, attempts: u32, publication| {
            let message = Message::first(topic.clone(), event);
            let message = Message { attempt: attempts + 1, publication, ..message };
            Delivery { message, receipt: Receipt(seq) }
        };
        let mut deliveries = Vec::with_capacity(round.count);
        for (seq, found) in round.found {
            let was_read = self.again.remove(&seq);
            match found {
                Found::Parked(attempts, publication, event) => {
                    self.taken.insert(seq);
                    deliveries.push(delivery(seq, event, attempts, publication));
                }
                Found::Free(event) => {
                    if !was_read {
                        self.watermark.hand_out(seq);
                    }
                    deliveries.push(delivery(seq, event, 0, Publication::First));
                }
                Found::Held | Found::PutAside(_) | Found::Passed if was_read => {
                    self.watermark.finish(&[seq]);
                }
                Found::Held | Found::PutAside(_) | Found::Passed => self.watermark.pass(seq),
            }
        }
        self.store.note_handed_out(&self.pipeline, self.epoch, self.watermark.read());
        deliveries
    }
}
