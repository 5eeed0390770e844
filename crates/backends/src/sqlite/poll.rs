//! [`Source`]: the outbox of one pipeline, read with a cursor.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Settlement, Source, Timestamp, Topic,
};
use sqlx::SqliteConnection;
use tokio::sync::watch;

use super::error::failure;
use super::parking::{Parking, Woken};
use super::round::Round;
use super::row;
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
    pub(super) topic: Topic,
    /// The rows that were read from the log and are not settled.
    pub(super) watermark: Watermark,
    /// Of those, the ones to be offered again.
    pub(super) again: BTreeSet<u64>,
    /// Parked rows in flight.
    pub(super) taken: HashSet<u64>,
    /// Whether rows may be marked as taken in the table that `taken` does not have, because a call
    /// ended half-way.
    pub(super) unsure: bool,
    /// When the progress was last recorded.
    pub(super) recorded_at: i64,
    /// How large an event is, about: so that no more is asked for than there is room for.
    pub(super) average: usize,
    /// Whether the last call found that somebody else took over.
    pub(super) lost: bool,
}

/// How often the progress is recorded: how exact the time of publishing is known.
pub(super) const RECORD_EVERY_MICROS: i64 = 1_000_000;

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
            average: 1024,
            lost: false,
            store,
        })
    }

    pub(super) fn parking(&self) -> Parking<'_> {
        Parking { pipeline: &self.pipeline, now: self.store.now() }
    }

    pub(super) async fn owns(&self, connection: &mut SqliteConnection) -> Result<bool, Failure> {
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
            // What is due takes its place before anything else is read.
            round.more = agenda.more_is_to_be_woken;
            if agenda.something_is_due {
                self.collect_parked(&mut round).await?;
            }
            self.collect_log(&mut round).await?;
            let woken = self.put_aside(&round).await?;
            round.more |= woken.more;
            if woken.something_is_due {
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
        let held = self.settle_all(settlements).await?;
        self.lost = !held.is_held();
        Ok(held)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }
}

/// What falls due.
struct Agenda {
    something_is_due: bool,
    /// Scheduled events are due that have no place yet.
    more_is_to_be_woken: bool,
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
        self.lost = found.is_none();
        let Some((failed, waiting, scheduled)) = found else {
            return Ok(None);
        };
        let is_due = |due: Option<i64>| due.is_some_and(|due| due <= now);
        let woken = if is_due(scheduled) { self.tidy().await? } else { Woken::default() };
        Ok(Some(Agenda {
            something_is_due: is_due(failed) || is_due(waiting) || is_due(scheduled),
            more_is_to_be_woken: woken.more,
            next_retry: failed.filter(|due| *due > now).map(timestamp),
        }))
    }

    /// Puts the parked table in order before it is read.
    async fn tidy(&mut self) -> Result<Woken, Failure> {
        let mut woken = Woken::default();
        let mut tx = self.store.begin().await?;
        if self.owns(&mut tx).await? {
            let parking = self.parking();
            if self.unsure {
                let taken: Vec<u64> = self.taken.iter().copied().collect();
                parking.free_all_but(&mut tx, &taken).await?;
            }
            woken = parking.wake_scheduled(&mut tx, self.watermark.read()).await?;
        }
        tx.commit().await.map_err(failure("put parked events in order"))?;
        self.unsure = false;
        Ok(woken)
    }
}
