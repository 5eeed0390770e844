//! [`Source`]: the outbox of one pipeline, read with a cursor over positions.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use semel_core::coordination::Share;
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Receipt, Settlement, Source, Timestamp, Topic,
};
use sqlx::MySqlConnection;
use tokio::sync::watch;

use super::error::failure;
use super::parking::Parking;
use super::position::number_committed;
use super::round::Round;
use super::row::as_micros;
use super::schema;
use super::shares;
use super::store::{MysqlStore, timestamp};
use super::tail::{Tail, Tailing, tail};
use crate::watermark::{Frontier, Watermark};

/// The outbox as a source for one pipeline. Made by [`MysqlStore::source`], or for one share of a
/// pipeline by [`MysqlStore::source_share`].
///
/// Several pipelines read the same outbox, each with a cursor of its own. Whoever opens a pipeline
/// owns it: the epoch in its cursor row goes up, and everything an earlier owner still tries is
/// answered with [`Holding::Lost`]. A pipeline of several shares has a cursor for each.
///
/// An event is numbered once, for all pipelines. Confirming a batch is one UPDATE of one row,
/// however large the batch is. An empty poll is one query.
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::{Limit, Outcome, Settlement, Source};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
/// let mut source = store.source("orders").await?;
/// for got in source.next_batch(Limit::default()).await?.deliveries {
///     let settlement = Settlement { receipt: got.receipt, outcome: Outcome::Delivered };
///     assert!(source.settle(&[settlement]).await?.is_held());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MysqlSource {
    pub(super) store: MysqlStore,
    changes: watch::Receiver<()>,
    pub(super) pipeline: String,
    pub(super) share: Share,
    pub(super) epoch: u64,
    /// The server that the memory speaks of.
    pub(super) server: u64,
    /// How often that was another one, or had gone back in time: receipts from before are void.
    pub(super) generation: u16,
    /// Whether the last call found that somebody else took over, or that it seems so. The engine has
    /// dropped all it had then.
    lost: bool,
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
    /// How far the events of others were passed, and since when the cursor does not show it.
    pub(super) passing: Passing,
    /// When the progress was last recorded.
    pub(super) recorded_at: Option<Timestamp>,
    /// How large an event is, about: so that no more is asked for than there is room for.
    pub(super) average: usize,
    /// What tells of commits, if it is not only looked for them.
    tail: Option<Tail>,
}

/// How many events there can be.
const POSITION_BITS: u32 = 48;

/// The longest name of a pipeline.
const NAME_CHARS: usize = 100;

/// Epochs rise by chance: one that is lost, since a replica took the place of the server before it
/// had it, is not given to somebody else.
const TAKE_OVER: &str = "UPDATE semel_cursor SET epoch = epoch + 1 + floor(rand() * 1000000), \
    handed_out = position, polling = NULL \
    WHERE pipeline = ? AND share = ? AND shares = ?";

const CURSOR: &str = "SELECT epoch, position, ahead, cast(@@server_id AS UNSIGNED) \
    FROM semel_cursor WHERE pipeline = ? AND share = ?";

/// Locks the cursor, if it is still ours and this is the server that the memory speaks of.
const OWN: &str = "SELECT 1 FROM semel_cursor \
    WHERE pipeline = ? AND share = ? AND epoch = ? AND @@server_id = ? FOR UPDATE";

/// For those who look.
const NOTE: &str =
    "UPDATE semel_cursor SET polling = ? WHERE pipeline = ? AND share = ? AND epoch = ?";

/// Whether something in `state` is due.
macro_rules! is_due {
    ($state:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM semel_parked p WHERE p.pipeline = c.pipeline AND p.share = c.share \
                AND p.state = '",
            $state,
            "' AND p.taken = 0 AND p.due <= utc_timestamp(6))"
        )
    };
}

/// What there is to do, if the cursor is still ours.
const LOOK: &str = concat!(
    "SELECT ",
    is_due!("failed"),
    " OR ",
    is_due!("waiting"),
    ", ",
    is_due!("scheduled"),
    ", (SELECT ",
    as_micros!("p.retry_at"),
    " FROM semel_parked p WHERE p.pipeline = c.pipeline AND p.share = c.share \
         AND p.state = 'failed' AND p.taken = 0 AND p.due > utc_timestamp(6) ORDER BY p.due LIMIT 1), \
     EXISTS (SELECT 1 FROM semel_outbox FORCE INDEX (semel_outbox_position) WHERE position = 0), \
     @@server_id = ? AND (SELECT last FROM semel_counter WHERE name = 'position') >= ? \
     FROM semel_cursor c WHERE c.pipeline = ? AND c.share = ? AND c.epoch = ?"
);

/// How far the events of other shares were passed.
#[derive(Debug, Default)]
pub(super) struct Passing {
    shown: u64,
    since: Option<Instant>,
}

impl Passing {
    /// A share without events of its own writes no more often than this.
    const PACE: Duration = Duration::from_secs(2);

    fn is_due(&mut self, read: u64) -> bool {
        read > self.shown && self.since.get_or_insert_with(Instant::now).elapsed() >= Self::PACE
    }

    /// What is not shown now never is.
    fn is_over(&mut self) {
        self.since = Instant::now().checked_sub(Self::PACE);
    }

    fn is_shown(&mut self, read: u64) {
        *self = Self { shown: read, since: None };
    }
}

/// What there is to do.
struct Agenda {
    something_is_due: bool,
    next_retry: Option<Timestamp>,
    /// Rows have committed that nobody has numbered.
    something_is_new: bool,
}

impl MysqlSource {
    /// Nothing was handed out, and the other goes on.
    async fn read_again_if_undone(&mut self, limit: Limit) -> Result<Batch, Failure> {
        match self.read(limit).await {
            Err(failure) if is_undone(&failure) => self.read(limit).await,
            read => read,
        }
    }

    pub(super) async fn open(
        store: MysqlStore,
        pipeline: &str,
        share: Share,
    ) -> Result<Self, Failure> {
        if pipeline.chars().count() > NAME_CHARS {
            let what = format!("MySQL: the pipeline {pipeline:?} has too long a name");
            return Err(Failure::misconfigured("E-PIPELINE-NAME", what)
                .with_fix(format!("use at most {NAME_CHARS} characters")));
        }
        let failed = || failure("take over the pipeline");
        let mut tx = store.begin_brief().await?;
        schema::check(&mut tx).await?;
        if !take_over(&mut tx, pipeline, share).await? {
            shares::divide(&mut tx, pipeline, share.of).await?;
            take_over(&mut tx, pipeline, share).await?;
        }
        let stored = stored(&mut tx, pipeline, share.number).await?;
        let Stored { epoch, frontier, server } =
            stored.ok_or_else(|| failed()(sqlx::Error::RowNotFound))?;
        Parking { pipeline, share: share.number }.free_all_but(&mut tx, &[]).await?;
        tx.commit().await.map_err(failed())?;
        Ok(Self {
            changes: store.changes(),
            pipeline: pipeline.to_owned(),
            share,
            epoch,
            server,
            generation: 0,
            lost: false,
            topic: Topic::from("outbox"),
            watermark: Watermark::resume(frontier),
            again: BTreeSet::new(),
            taken: HashSet::new(),
            unsure: false,
            passing: Passing::default(),
            recorded_at: None,
            average: 1024,
            tail: None,
            store,
        })
    }

    /// Lets the log tell of commits.
    pub(super) async fn follow_log(mut self, tailing: Tailing) -> Result<Self, Failure> {
        let mut tail = tail(&self.pipeline, tailing, self.store.pool());
        let begun = tail.begin().await;
        self.tail = Some(tail);
        self.tell().await;
        begun.map(|()| self)
    }

    /// Writes down whether the log is tailed, for those who look. Nothing else depends on it: what
    /// fails is done with the next look.
    async fn tell(&mut self) {
        let Some(change) = self.tail.as_ref().and_then(Tail::change) else { return };
        let note = sqlx::query(NOTE)
            .bind(change)
            .bind(&self.pipeline)
            .bind(self.share.number)
            .bind(self.epoch);
        match note.execute(self.store.pool()).await {
            Ok(_) => self.tail.iter_mut().for_each(Tail::change_is_known),
            Err(error) => tracing::debug!(%error, "why it polls is told later"),
        }
    }

    /// Whether the log tells of commits at present; otherwise they are only looked for.
    #[must_use]
    pub fn is_tailing(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.session().is_some())
    }

    /// What a delivery is settled by.
    pub(super) fn receipt(generation: u16, position: u64) -> Receipt {
        Receipt(u64::from(generation) << POSITION_BITS | position)
    }

    /// None when the server that gave the position is not the present one.
    fn position_of(&self, Receipt(receipt): Receipt) -> Option<u64> {
        let is_present = receipt >> POSITION_BITS == u64::from(self.generation);
        is_present.then_some(receipt & ((1 << POSITION_BITS) - 1))
    }

    pub(super) fn parking(&self) -> Parking<'_> {
        Parking { pipeline: &self.pipeline, share: self.share.number }
    }

    /// Whether this source is the owner, and stays it until the transaction ends.
    pub(super) async fn owns(&self, connection: &mut MySqlConnection) -> Result<bool, Failure> {
        sqlx::query(OWN)
            .bind(&self.pipeline)
            .bind(self.share.number)
            .bind(self.epoch)
            .bind(self.server)
            .fetch_optional(connection)
            .await
            .map_err(failure("look who owns the pipeline"))
            .map(|row| row.is_some())
    }

    /// Looks until there is something, or nothing more.
    async fn read(&mut self, limit: Limit) -> Result<Batch, Failure> {
        loop {
            let Some(agenda) = self.look().await? else {
                return Ok(Batch::default());
            };
            // Nothing is changed in memory before the last await, so that a dropped call has not
            // handed anything out.
            let mut round = Round::new(limit);
            if agenda.something_is_new {
                round.more = number_committed(&self.store, limit.events).await?;
            }
            if agenda.something_is_due {
                self.collect_parked(&mut round).await?;
            }
            self.collect_log(&mut round).await?;
            if self.put_aside(&round).await? {
                self.collect_parked(&mut round).await?;
            }
            let more = round.more;
            let deliveries = self.hand_out(round);
            if deliveries.is_empty() {
                self.show_passing().await?;
            }
            if !deliveries.is_empty() || !more {
                return Ok(Batch { deliveries, more, next_due: agenda.next_retry });
            }
        }
    }

    /// Whether this source is the owner still, and what there is to do.
    async fn look(&mut self) -> Result<Option<Agenda>, Failure> {
        if self.unsure {
            self.tidy().await?;
        }
        let found: Option<(bool, bool, Option<i64>, bool, bool)> = sqlx::query_as(LOOK)
            .bind(self.server)
            .bind(self.watermark.read())
            .bind(&self.pipeline)
            .bind(self.share.number)
            .bind(self.epoch)
            .fetch_optional(self.store.pool())
            .await
            .map_err(failure("look for events"))?;
        let Some((due, scheduled, next_retry, something_is_new, is_as_remembered)) = found else {
            self.lost = true;
            return Ok(None);
        };
        if !is_as_remembered || self.lost {
            self.remember_anew().await?;
        }
        if scheduled || self.unsure {
            self.tidy().await?;
        }
        let something_is_due = due || scheduled;
        let next_retry = next_retry.map(timestamp);
        Ok(Some(Agenda { something_is_due, next_retry, something_is_new }))
    }

    /// A replica in the place of the server, or a server that has lost what it did last, gives the same
    /// positions once more: what is stored there counts, and not the memory.
    async fn remember_anew(&mut self) -> Result<(), Failure> {
        let failed = || failure("find the cursor again");
        let mut connection = self.store.pool().acquire().await.map_err(failed())?;
        let found = stored(&mut connection, &self.pipeline, self.share.number).await?;
        let ours = found.filter(|found| found.epoch == self.epoch);
        let Stored { frontier, server, .. } =
            ours.ok_or_else(|| failed()(sqlx::Error::RowNotFound))?;
        tracing::info!(
            pipeline = self.pipeline,
            "the server was replaced or has gone back: going on from what it has stored"
        );
        self.watermark = Watermark::resume(frontier);
        self.again.clear();
        self.taken.clear();
        self.unsure = true;
        self.lost = false;
        self.passing = Passing::default();
        self.generation = self.generation.wrapping_add(1);
        self.server = server;
        Ok(())
    }

    /// Shows from time to time how far the events of other shares were passed, which no settlement
    /// does: a successor need not read them again, and they can be deleted.
    async fn show_passing(&mut self) -> Result<(), Failure> {
        if self.share.of > 1 && self.passing.is_due(self.watermark.read()) {
            let failed = || failure("move the cursor");
            let mut connection = self.store.pool().acquire().await.map_err(failed())?;
            // Whoever lost it learns so from the next look.
            let _ = self.move_cursor(&mut connection, &[]).await?;
            self.passing.is_shown(self.watermark.read());
        }
        Ok(())
    }

    /// Puts the parked table in order before it is read.
    async fn tidy(&mut self) -> Result<(), Failure> {
        let mut tx = self.store.begin_brief().await?;
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
}

/// Whether InnoDB took a transaction back because two waited for each other.
fn is_undone(failure: &Failure) -> bool {
    failure.code() == "E-MYSQL-CONFLICT"
}

/// What the cursor of a share says, and where.
struct Stored {
    epoch: u64,
    frontier: Frontier,
    server: u64,
}

async fn stored(
    connection: &mut MySqlConnection,
    pipeline: &str,
    share: u32,
) -> Result<Option<Stored>, Failure> {
    let found: Option<(u64, u64, String, u64)> = sqlx::query_as(CURSOR)
        .bind(pipeline)
        .bind(share)
        .fetch_optional(connection)
        .await
        .map_err(failure("read the cursor"))?;
    let Some((epoch, position, ahead, server)) = found else { return Ok(None) };
    let ahead = serde_json::from_str(&ahead).map_err(|error| {
        Failure::misconfigured("E-MYSQL-CURSOR", format!("MySQL: cursor of {pipeline:?}"))
            .with_source(error)
    })?;
    Ok(Some(Stored { epoch, frontier: Frontier { position, ahead }, server }))
}

/// Says whether there is such a share.
async fn take_over(
    connection: &mut MySqlConnection,
    pipeline: &str,
    share: Share,
) -> Result<bool, Failure> {
    let taken =
        sqlx::query(TAKE_OVER).bind(pipeline).bind(share.number).bind(share.of).execute(connection);
    let taken = taken.await.map_err(failure("take over the pipeline"))?;
    Ok(taken.rows_affected() == 1)
}

#[async_trait]
impl Source for MysqlSource {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: true }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.changes.borrow_and_update();
        let Some(tail) = &mut self.tail else { return self.read_again_if_undone(limit).await };
        let rings = tail.looking();
        self.tell().await;
        let rings = rings?;
        let before = self.watermark.read();
        let batch = self.read_again_if_undone(limit).await?;
        let found = self.watermark.read() > before;
        if let Some(tail) = &mut self.tail {
            tail.found(rings, found, !batch.more);
        }
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        let mut changes = self.changes.clone();
        let changed = Box::pin(async move {
            // An error means that the store is gone; then nothing will come any more.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        match self.tail.as_ref().and_then(Tail::news) {
            Some(news) => Box::pin(select(changed, news).map(drop)),
            None => changed,
        }
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let known: Vec<Settlement> = settlements
            .iter()
            .filter_map(|Settlement { receipt, outcome }| {
                let receipt = Receipt(self.position_of(*receipt)?);
                Some(Settlement { receipt, outcome: outcome.clone() })
            })
            .collect();
        let held = match self.settle_all(&known).await {
            Err(failure) if is_undone(&failure) => self.settle_all(&known).await?,
            settled => settled?,
        };
        self.lost |= !held.is_held();
        Ok(held)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    async fn close(&mut self) {
        if let Some(tail) = &mut self.tail {
            tail.close();
        }
        self.passing.is_over();
        if let Err(failure) = self.show_passing().await {
            tracing::debug!(%failure, "a successor reads the events of other shares again");
        }
    }
}
