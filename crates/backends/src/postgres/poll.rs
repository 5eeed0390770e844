//! [`Source`]: the outbox of one pipeline, read by the difference of snapshots.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use semel_core::coordination::Share;
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Outcome, Receipt, Settlement, Source, Topic,
};
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard, watch};

use super::cursor::{self, Cursor, Server};
use super::error::failure;
use super::parking::{Aside, Changes, Growth, Parking};
use super::pooler::Link;
use super::rebase::rebase;
use super::round::{Guidance, Passing};
use super::schema;
use super::store::{PostgresStore, integer};
use super::tail::{Tail, Tailing, behind_a_pooler, tail};
use super::window::{Ledger, Standing};
use crate::tailing::Change;

/// The outbox as a source for one pipeline. Made by [`PostgresStore::source`], or for one share of
/// a pipeline by [`PostgresStore::source_share`].
///
/// Several pipelines read the same outbox, each with a cursor of its own. Whoever opens a pipeline
/// owns it: the epoch in its cursor row goes up, and everything an earlier owner still tries is
/// answered with [`Holding::Lost`]. A pipeline of several shares has a cursor for each.
///
/// What is new is the difference of two snapshots, so that a transaction that commits late is never
/// passed and one that is open for long holds nobody up. Confirming a batch is one UPDATE of one
/// row, however large the batch is; the outbox itself is never changed.
///
/// ```no_run
/// use semel_backends::postgres::PostgresConfig;
/// use semel_core::{Limit, Outcome, Settlement, Source};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
/// let mut source = store.source("orders").await?;
/// let batch = source.next_batch(Limit::default()).await?;
/// let delivered = |receipt| Settlement { receipt, outcome: Outcome::Delivered };
/// let settlements: Vec<_> = batch.deliveries.iter().map(|got| delivered(got.receipt)).collect();
/// assert!(source.settle(&settlements).await?.is_held());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PostgresSource {
    store: PostgresStore,
    changes: watch::Receiver<()>,
    /// Kept from call to call; gone after an error. A call that is dropped leaves it here, so that
    /// whatever it had begun ends before the next one begins.
    connection: Arc<Mutex<Option<PoolConnection<Postgres>>>>,
    /// Whether a call is under way, or was when it was dropped: then the connection may have a
    /// transaction open that sqlx does not know of.
    busy: bool,
    /// Whether the connection leads to the server that the memory speaks of.
    is_known_server: bool,
    pub(super) cursor: Cursor,
    pub(super) topic: Topic,
    pub(super) ledger: Ledger,
    /// Parked rows in flight, by receipt.
    pub(super) flights: HashMap<u64, i64>,
    pub(super) last_flight: u64,
    /// Whether the tables may know more than the memory, because a call ended half-way.
    pub(super) unsure: bool,
    /// Whether somebody else took over, as far as known: that is looked at anew with every call.
    pub(super) lost: bool,
    /// How large events are.
    pub(super) average: usize,
    pub(super) guidance: Guidance,
    growth: Growth,
    pub(super) passing: Passing,
    /// What tells of commits, if it is not only looked for them.
    pub(super) tail: Option<Tail>,
}

impl PostgresSource {
    /// Sets the receipts of parked rows apart from those of the log.
    const PARKED: u64 = 1 << 63;

    pub(super) async fn open(
        store: PostgresStore,
        pipeline: &str,
        share: Share,
    ) -> Result<Self, Failure> {
        let mut connection =
            store.pool().acquire().await.map_err(failure("take over the pipeline"))?;
        let mut link = store.link(&mut connection);
        let mut step = link.step().await?;
        schema::check(&mut step).await?;
        schema::check_order(&mut step).await?;
        let server = cursor::server(&mut step).await?;
        step.end().await?;
        adopt(&mut link, &server).await?;
        let (cursor, position) = Cursor::open(&mut link, pipeline, share, server).await?;
        Ok(Self {
            changes: store.changes(),
            connection: Arc::new(Mutex::new(Some(connection))),
            busy: false,
            is_known_server: true,
            cursor,
            topic: Topic::from("outbox"),
            ledger: Ledger::resume(position),
            flights: HashMap::new(),
            last_flight: Self::PARKED,
            unsure: false,
            lost: false,
            average: 1024,
            guidance: Guidance::default(),
            growth: Growth::default(),
            passing: Passing::default(),
            tail: None,
            store,
        })
    }

    /// Lets the log tell of commits.
    pub(super) async fn follow_log(mut self, tailing: Tailing) -> Result<Self, Failure> {
        if self.store.is_pooled() {
            if tailing == Tailing::Required {
                return Err(behind_a_pooler());
            }
            self.tail = Some(Tail::deaf(&self.cursor.pipeline, behind_a_pooler));
            self.tell().await;
            return Ok(self);
        }
        let (pool, budget) = (self.store.pool(), self.store.log_budget);
        let mut tail = tail(&self.cursor.pipeline, tailing, pool, budget);
        let begun = tail.begin().await;
        self.tail = Some(tail);
        self.tell().await;
        begun.map(|()| self)
    }

    /// Writes down whether the log is tailed, for those who look. Nothing else depends on it: what
    /// fails is done with the next look.
    async fn tell(&mut self) {
        let Some(change) = self.tail.as_ref().and_then(Tail::change).cloned() else { return };
        match self.note(&change).await {
            Ok(()) => self.tail.iter_mut().for_each(Tail::change_is_known),
            Err(failure) => tracing::debug!(%failure, "why it polls is told later"),
        }
    }

    async fn note(&mut self, why_polling: &Change) -> Result<(), Failure> {
        let store = self.store.clone();
        let Some(mut connection) = self.connect().await? else { return Ok(()) };
        let mut link = store.link(&mut connection);
        let noted = async {
            let mut step = link.step().await?;
            // Whoever lost it learns so from the next look.
            let _ = self.cursor.note(&mut step, why_polling).await?;
            step.end().await
        };
        let noted = noted.await;
        self.keep_or_drop(connection, noted).await
    }

    /// Whether the log tells of commits at present; otherwise they are only looked for.
    #[must_use]
    pub fn is_tailing(&self) -> bool {
        self.tail.as_ref().is_some_and(Tail::is_hearing)
    }

    /// The connection of this source; none when somebody else has the pipeline where it leads to.
    async fn connect(&mut self) -> Result<Option<Held>, Failure> {
        let mut held = Arc::clone(&self.connection).lock_owned().await;
        if self.busy
            && let Some(connection) = held.as_mut()
            && sqlx::raw_sql("rollback").execute(&mut **connection).await.is_err()
            && let Some(broken) = held.take()
        {
            drop(broken.detach());
        }
        if held.is_none() {
            *held = Some(self.store.pool().acquire().await.map_err(failure("connect"))?);
            self.is_known_server = false;
        }
        self.busy = true;
        // A pooler says nothing when another server is behind it.
        if !self.is_known_server || self.lost || self.store.is_pooled() {
            let store = self.store.clone();
            let found = match held.as_mut() {
                Some(connection) => self.find_again(&mut store.link(connection)).await,
                None => Ok(()),
            };
            if found.is_err()
                && let Some(broken) = held.take()
            {
                drop(broken.detach());
            }
            found?;
            self.is_known_server = true;
            if self.lost {
                *held = None;
            }
        }
        Ok(OwnedMutexGuard::try_map(held, Option::as_mut).ok())
    }

    /// Looks whether this is the server that the memory speaks of. One that crashed, or a standby in
    /// its place, may have lost what it did last: then what is stored counts, and not the memory.
    async fn find_again(&mut self, link: &mut Link<'_>) -> Result<(), Failure> {
        let mut step = link.step().await?;
        let server = cursor::server(&mut step).await?;
        step.end().await?;
        if self.cursor.is_of(&server) && !self.lost {
            return Ok(());
        }
        adopt(link, &server).await?;
        let mut step = link.step().await?;
        let found = self.cursor.find_again(&mut step).await?;
        step.end().await?;
        // From here on nothing waits: a call that is dropped must not leave one without the other.
        let was_lost = std::mem::replace(&mut self.lost, found.is_none());
        let pipeline = &self.cursor.pipeline;
        match found {
            Some(position) => {
                tracing::info!(
                    pipeline,
                    "the server was started or replaced: going on from what it has stored"
                );
                self.ledger = self.ledger.reopened(position);
                self.unsure = true;
                self.cursor.go_on_at(server);
            }
            None if !was_lost => tracing::warn!(pipeline, "the pipeline has another owner now"),
            None => {}
        }
        Ok(())
    }

    /// What came of a call; after an error, with another connection next time.
    async fn keep_or_drop<T>(
        &mut self,
        held: Held,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        drop(held);
        if result.is_err()
            && let Some(broken) = self.connection.lock().await.take()
        {
            drop(broken.detach());
        }
        self.busy = false;
        result
    }
}

impl Drop for PostgresSource {
    fn drop(&mut self) {
        if self.busy
            && let Ok(mut held) = self.connection.try_lock()
            && let Some(connection) = held.take()
        {
            drop(connection.detach());
        }
    }
}

type Held = OwnedMappedMutexGuard<Option<PoolConnection<Postgres>>, PoolConnection<Postgres>>;

#[async_trait]
impl Source for PostgresSource {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: true }
    }

    /// Nothing that the tables do not know is changed in memory before the last await of a round,
    /// so that a dropped call hands nothing out.
    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.changes.borrow_and_update();
        if let Some(tail) = &mut self.tail {
            let tended = tail.tend();
            self.tell().await;
            tended?;
        }
        let batch = self.read(limit).await?;
        if self.lost {
            self.let_go();
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
        let store = self.store.clone();
        let Some(mut connection) = self.connect().await? else {
            self.let_go();
            return Ok(Holding::Lost);
        };
        let mut settling = Settling::new(self);
        for settlement in settlements {
            settling.add(settlement);
        }
        let Settling { mut ledger, changes, landed, .. } = settling;
        ledger.trim();
        let mut link = store.link(&mut connection);
        let held = self.store_changes(&mut link, &ledger, &changes).await;
        let held = self.keep_or_drop(connection, held).await?;
        self.lost = !held.is_held();
        if self.lost {
            self.let_go();
            return Ok(held);
        }
        self.ledger = ledger;
        for receipt in &landed {
            self.flights.remove(receipt);
        }
        Ok(held)
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    async fn close(&mut self) {
        if let Some(tail) = &mut self.tail {
            tail.close();
        }
    }
}

/// Gives what came from another server the numbers of this one.
async fn adopt(link: &mut Link<'_>, server: &Server) -> Result<(), Failure> {
    if let Some(events) = rebase(link, &server.identity).await? {
        tracing::warn!(
            events,
            "the outbox came from another server, whose transaction ids mean nothing here: \
             what was not settled is offered from its parking place"
        );
    }
    Ok(())
}

impl PostgresSource {
    /// Looks until there is something, or nothing more.
    async fn read(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let store = self.store.clone();
        while let Some(mut connection) = self.connect().await? {
            let batch = self.round(&mut store.link(&mut connection), limit).await;
            if let Some(batch) = self.keep_or_drop(connection, batch).await? {
                return Ok(batch);
            }
        }
        Ok(Batch::default())
    }

    /// The engine learns from this call that the source is lost, and drops all it has. Should the
    /// pipeline be found again, whatever was out is handed out once more.
    fn let_go(&mut self) {
        self.flights.clear();
        self.ledger.let_go();
    }

    /// Stores the position of `ledger` and what changes beside it, all or none.
    pub(super) async fn store_changes(
        &mut self,
        link: &mut Link<'_>,
        ledger: &Ledger,
        changes: &Changes,
    ) -> Result<Holding, Failure> {
        if changes.is_empty() {
            let mut step = link.step().await?;
            let held = self.cursor.advance(&mut step, ledger).await?;
            step.end().await?;
            return Ok(held);
        }
        let mut tx = cursor::begin(link, "settle").await?;
        let held = self.cursor.advance(&mut tx, ledger).await?;
        if held.is_held() {
            self.parking().record(&mut tx, changes).await?;
            tx.commit().await.map_err(failure("settle"))?;
            if self.growth.outgrows_plans(changes) {
                link.forget_plans().await?;
            }
        }
        Ok(held)
    }

    pub(super) fn parking(&self) -> Parking<'_> {
        Parking { pipeline: &self.cursor.pipeline, share: integer(self.cursor.share.number) }
    }
}

/// Outcomes on their way into the tables.
struct Settling<'a> {
    source: &'a PostgresSource,
    ledger: Ledger,
    changes: Changes,
    landed: HashSet<u64>,
}

impl<'a> Settling<'a> {
    fn new(source: &'a PostgresSource) -> Self {
        let (ledger, landed) = (source.ledger.clone(), HashSet::new());
        Self { source, ledger, changes: Changes::default(), landed }
    }

    fn add(&mut self, Settlement { receipt: Receipt(receipt), outcome }: &Settlement) {
        if *receipt > PostgresSource::PARKED {
            if let Some(&seq) = self.source.flights.get(receipt)
                && self.landed.insert(*receipt)
            {
                self.parked(seq, outcome);
            }
        } else if let Some((seq, place)) = self.ledger.out(*receipt) {
            let state = match outcome {
                Outcome::Released => Standing::Again,
                _ => Standing::Settled,
            };
            self.ledger.set(*receipt, state);
            self.failed(seq, place, outcome);
        } else if *outcome == Outcome::Delivered {
            self.ledger.land(*receipt);
        } else {
            self.ledger.give_back(*receipt);
        }
    }

    fn parked(&mut self, seq: i64, outcome: &Outcome) {
        match outcome {
            Outcome::Delivered => self.changes.delivered.push(seq),
            Outcome::Released => self.changes.released.push(seq),
            // It keeps the place it has.
            _ => self.failed(seq, 0, outcome),
        }
    }

    fn failed(&mut self, seq: i64, place: i64, outcome: &Outcome) {
        let clock = &*self.source.store.clock;
        self.changes.failed.extend(Aside::failed(seq, place, outcome, clock));
    }
}
