//! What a database must be able to do so that a mapped table in it can be read.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use semel_core::{Clock, Failure};
use tokio::sync::watch;

use super::dialect::Dialect;
use super::statement::{Answer, Row, Statement};

/// A database, as far as mapped tables need it: statements go in, rows come out.
#[async_trait]
pub(crate) trait Database: fmt::Debug + Send + Sync {
    fn dialect(&self) -> Dialect;

    fn clock(&self) -> &dyn Clock;

    /// What the sources of this process have in flight.
    fn airspace(&self) -> &Airspace;

    /// Wakes the sources of this process.
    fn announce_change(&self);

    fn changes(&self) -> watch::Receiver<()>;

    /// Refuses tables of semel's own that are missing or of another version.
    async fn check_schema(&self) -> Result<(), Failure>;

    /// Runs a query. `what` says what for.
    async fn read(&self, what: &'static str, query: Statement) -> Result<Vec<Row>, Failure>;

    /// Runs statements in one transaction; none when a guard found nothing, and then nothing was
    /// changed.
    async fn write(
        &self,
        what: &'static str,
        statements: Vec<Statement>,
    ) -> Result<Option<Vec<Answer>>, Failure>;
}

impl dyn Database + '_ {
    /// An empty statement.
    pub(crate) fn statement(&self) -> Statement {
        Statement::new(self.dialect(), self.clock().now().as_microsecond())
    }
}

/// What the sources of a process have in flight, pipeline by pipeline, with their epochs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Airspace(Arc<Mutex<HashMap<String, (i64, Flights)>>>);

/// What one source has in flight, by receipt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flights(Arc<Mutex<HashMap<u64, Flight>>>);

/// One row in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) row_id: String,
    pub(crate) lane: (String, String),
    /// Whether it failed before.
    pub(crate) parked: bool,
}

impl Airspace {
    /// Makes room for a new owner.
    pub(crate) fn open(&self, pipeline: &str, epoch: i64) -> Flights {
        let flights = Flights::default();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(pipeline.to_owned(), (epoch, flights.clone()));
        flights
    }

    /// What the owner with this epoch has in flight, if it is in this process.
    pub(crate) fn of(&self, pipeline: &str, epoch: Option<i64>) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = all.get(pipeline).filter(|(owner, _)| Some(*owner) == epoch);
        owner.map(|(_, flights)| flights.row_ids()).unwrap_or_default()
    }
}

impl Flights {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn row_ids(&self) -> Vec<String> {
        let mut ids: Vec<_> = self.lock().values().map(|flight| flight.row_id.clone()).collect();
        ids.sort_unstable();
        ids
    }
}
