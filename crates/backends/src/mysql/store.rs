//! One database, shared by everything that uses it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use semel_core::coordination::Share;
use semel_core::{Clock, Failure, SystemClock};
use sqlx::{MySql, MySqlPool, Transaction};
use tokio::sync::watch;

use super::coordination::MysqlMember;
use super::error::failure;
use super::tail::{self, Tailing};
use super::{
    MysqlAdmin, MysqlInbox, MysqlKeys, MysqlLetters, MysqlMarks, MysqlOutbox, MysqlSource, schema,
};
use crate::mapped::Airspace;
pub(super) use crate::row::timestamp;

/// A database. Clones share its connections.
///
/// Made by [`MysqlConfig::connect`](super::MysqlConfig::connect), or from the pool of an
/// application by [`MysqlStore::from_pool`].
///
/// ```no_run
/// use semel_backends::mysql::{MySqlPool, MysqlStore};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = MySqlPool::connect("mysql://shop:secret@localhost/shop").await?;
/// let store = MysqlStore::from_pool(pool);
/// store.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MysqlStore {
    pool: MySqlPool,
    pub(super) clock: Arc<dyn Clock>,
    changes: Arc<watch::Sender<()>>,
    /// What the sources of mapped tables have in flight.
    pub(super) airspace: Airspace,
    /// For each share of a pipeline that a source of this process owns: its epoch, and the last event
    /// that was handed out. It saves a write per batch.
    handed_out: Arc<Mutex<HandedOut>>,
    /// The connections for what relays and operators change, opened when they are needed.
    relays: Arc<OnceLock<MySqlPool>>,
}

type HandedOut = HashMap<(String, u32), (u64, u64)>;

/// Without gap locks: rows that are looked at and not there stop no writer.
const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

/// The same, with a mark that goes when the server ends the transaction, as in a deadlock: what comes afterwards would
/// be committed each by itself, and a COMMIT would say that all is well.
const BEGIN_MARKED: &str =
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; SAVEPOINT semel";

/// Ends it, if it is still the same. Whoever drops it then rolls back nothing.
pub(super) const COMMIT_MARKED: &str = "RELEASE SAVEPOINT semel; COMMIT";

/// The same, and the server ends it when nothing happens in it. MySQL cannot tell that from a connection
/// in which nothing happens.
const BEGIN_BRIEF: &str = "\
    SET SESSION /*M!100301 idle_transaction_timeout = 2 */ /*!80017 wait_timeout = 5 */; \
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

/// All statements see one state.
const BEGIN_LOOKING: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
    START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

impl MysqlStore {
    pub(super) fn new(pool: MySqlPool, clock: Arc<dyn Clock>) -> Self {
        let changes = Arc::new(watch::Sender::new(()));
        let airspace = Airspace::default();
        Self { pool, clock, changes, airspace, handed_out: Arc::default(), relays: Arc::default() }
    }

    /// A store on the application's own pool.
    #[must_use]
    pub fn from_pool(pool: MySqlPool) -> Self {
        Self::new(pool, Arc::new(SystemClock))
    }

    /// The connections.
    #[must_use]
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// Opens a transaction with the isolation level READ COMMITTED. One of another level works as
    /// well: open it on a connection of the [`pool`](Self::pool).
    ///
    /// # Errors
    /// `Unavailable` when there is no connection to be had.
    pub async fn begin(&self) -> Result<Transaction<'static, MySql>, Failure> {
        begin_on(&self.pool, BEGIN).await
    }

    /// Opens a transaction of an effect.
    pub(super) async fn begin_marked(&self) -> Result<Transaction<'static, MySql>, Failure> {
        begin_on(&self.pool, BEGIN_MARKED).await
    }

    /// Opens a transaction of a relay, or of an operator who locks what relays need.
    ///
    /// It may be left open, by a process that was stopped, and then keeps the next owner from the
    /// cursor, or everybody from numbering. The server ends it soon; somebody who goes on after that
    /// gets an error and reads anew.
    pub(super) async fn begin_brief(&self) -> Result<Transaction<'static, MySql>, Failure> {
        begin_on(self.relays.get_or_init(|| another(&self.pool)), BEGIN_BRIEF).await
    }

    /// Opens a transaction that only reads, and sees one state of the database.
    pub(super) async fn begin_looking(&self) -> Result<Transaction<'static, MySql>, Failure> {
        begin_on(&self.pool, BEGIN_LOOKING).await
    }

    /// Creates or upgrades the tables; says which migrations were applied.
    ///
    /// # Errors
    /// See [`migrate`](super::migrate).
    pub async fn migrate(&self) -> Result<Vec<&'static str>, Failure> {
        schema::migrate(&self.pool).await
    }

    /// The writing end of the outbox.
    #[must_use]
    pub fn outbox(&self) -> MysqlOutbox {
        MysqlOutbox::new(self.clone())
    }

    /// The outbox as a source for the pipeline of this name, taking it over from any other owner.
    /// A pipeline that is new begins with the oldest event that is still there.
    ///
    /// # Errors
    /// As of [`source_share`](Self::source_share), of which this is the only share.
    pub async fn source(&self, pipeline: &str) -> Result<MysqlSource, Failure> {
        self.source_share(pipeline, Share::WHOLE).await
    }

    /// The same, and the binary log tells of commits, so that it need not wait for its next look.
    ///
    /// The rows are read from the table in any case: what the log does not tell is found a little
    /// later. It needs `binlog_format = ROW` and a user with REPLICATION SLAVE and REPLICATION CLIENT,
    /// and takes one connection.
    ///
    /// # Errors
    /// As of [`source`](Self::source), and `Misconfigured` when it is required and the server does
    /// not allow it.
    ///
    /// ```no_run
    /// use semel_backends::mysql::{MysqlConfig, Tailing};
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
    /// let source = store.tailing_source("orders", Tailing::WherePossible).await?;
    /// # Ok(()) }
    /// ```
    pub async fn tailing_source(
        &self,
        pipeline: &str,
        tailing: Tailing,
    ) -> Result<MysqlSource, Failure> {
        self.source(pipeline).await?.follow_log(tailing).await
    }

    /// Whether the log tells a relay of the pipeline of this name of new events, in any process.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached.
    pub async fn is_tailed(&self, pipeline: &str) -> Result<bool, Failure> {
        tail::is_tailed(&self.pool, pipeline).await
    }

    /// One share of the pipeline of this name as a source, taking it over from any other owner of
    /// this share. It hands out the events of its own lanes and no others; whatever else is true of
    /// a pipeline is true of each of its shares.
    ///
    /// When the pipeline is split into another number of shares, it is split anew first: owners of
    /// its former shares get nothing more, and what they had not settled is offered by the new ones.
    ///
    /// # Errors
    /// `Misconfigured` when the tables are missing or of another version, or when one share is too
    /// far behind the others to split the pipeline anew.
    ///
    /// ```no_run
    /// use semel_backends::mysql::MysqlConfig;
    /// use semel_core::coordination::Share;
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
    /// let first_of_four = store.source_share("orders", Share::new(0, 4)?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn source_share(&self, pipeline: &str, share: Share) -> Result<MysqlSource, Failure> {
        MysqlSource::open(self.clone(), pipeline, share).await
    }

    /// Dead letters of consumers.
    #[must_use]
    pub fn letters(&self) -> MysqlLetters {
        MysqlLetters::new(self.clone())
    }

    /// How far consumers got.
    #[must_use]
    pub fn marks(&self) -> MysqlMarks {
        MysqlMarks(())
    }

    /// The inbox.
    #[must_use]
    pub fn inbox(&self) -> MysqlInbox {
        MysqlInbox::new(self.clone())
    }

    /// Idempotency keys.
    #[must_use]
    pub fn keys(&self) -> MysqlKeys {
        MysqlKeys::new(self.clone())
    }

    /// A new member of the group of relays that work on the pipeline of this name.
    ///
    /// # Errors
    /// `Misconfigured` when there cannot be so many shares.
    pub fn member(
        &self,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> Result<MysqlMember, Failure> {
        MysqlMember::new(self.clone(), pipeline, shares, lease)
    }

    /// What an operator may ask and change about the pipeline of this name.
    #[must_use]
    pub fn admin(&self, pipeline: &str) -> MysqlAdmin {
        MysqlAdmin::new(self.clone(), pipeline)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        if let Some(relays) = self.relays.get() {
            relays.close().await;
        }
        self.pool.close().await;
    }

    /// Wakes the sources of this process.
    pub(super) fn announce_change(&self) {
        self.changes.send_replace(());
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn note_handed_out(&self, pipeline: &str, share: u32, epoch: u64, last: u64) {
        let mut noted = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        noted.insert((pipeline.to_owned(), share), (epoch, last));
    }

    /// The last event that the owner with this epoch has handed out, if it is in this process.
    pub(super) fn handed_out(&self, pipeline: &str, share: u32, epoch: u64) -> u64 {
        let noted = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        let note = noted.get(&(pipeline.to_owned(), share));
        note.filter(|(owner, _)| *owner == epoch).map_or(0, |(_, last)| *last)
    }
}

/// In a task of its own: if the caller is dropped half-way, sqlx would put a connection back into the
/// pool that has a transaction open and does not know it.
async fn begin_on(
    pool: &MySqlPool,
    sql: &'static str,
) -> Result<Transaction<'static, MySql>, Failure> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move { pool.begin_with(sql).await }).await;
    let begun = begun.unwrap_or(Err(sqlx::Error::WorkerCrashed));
    begun.map_err(failure("begin a transaction"))
}

/// The same connections once more: those of the first pool may belong to an application, whose
/// transactions take as long as they take.
fn another(pool: &MySqlPool) -> MySqlPool {
    let options = pool.options().clone().min_connections(0).idle_timeout(Duration::from_secs(4));
    options.connect_lazy_with(pool.connect_options().as_ref().clone())
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore").finish_non_exhaustive()
    }
}

/// A span of time in microseconds, short enough to be added to any date.
pub(super) fn micros(span: Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 86_400 * 1_000_000;
    i64::try_from(span.as_micros()).unwrap_or(CENTURY).min(CENTURY)
}

/// A number of rows for LIMIT.
pub(super) fn count(limit: usize) -> u64 {
    u64::try_from(limit).unwrap_or(u64::MAX)
}

/// How many rows a statement said it changed.
pub(super) fn changed(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX)
}
