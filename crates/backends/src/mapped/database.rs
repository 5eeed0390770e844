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

    /// Runs a query, until it has brought what was wanted. `what` says what for.
    async fn read(&self, what: &'static str, query: Statement) -> Result<Vec<Row>, Failure>;

    /// Runs statements in one transaction; none when a guard found nothing, and then nothing was
    /// changed.
    async fn write(
        &self,
        what: &'static str,
        statements: Vec<Statement>,
    ) -> Result<Option<Vec<Answer>>, Failure>;
}

/// Implements [`Database`] for a store, and what a program may ask it about mapped tables.
///
/// What each database does in its own way are functions of one name beside it: `check_schema`,
/// `begin`, `read`, `query` and `row`; and `failure`.
macro_rules! implement_mapped {
    ($store:ty, $dialect:ident, $connection:ty) => {
        impl $store {
            /// A table of another shape as a source for the pipeline of this name, taking it over
            /// from any other owner. semel's own tables are needed as well, for what failed.
            ///
            /// # Errors
            /// `Misconfigured` when the mapping does not fit, with everything that is wrong.
            pub async fn mapped_source(
                &self,
                pipeline: &str,
                mapping: &$crate::mapped::Mapping,
            ) -> Result<$crate::mapped::MappedSource, semel_core::Failure> {
                let database = std::sync::Arc::new(self.clone());
                $crate::mapped::MappedSource::open(database, pipeline, mapping).await
            }

            /// The operator's view of a pipeline over a table of another shape.
            #[must_use]
            pub fn mapped_admin(
                &self,
                pipeline: &str,
                mapping: &$crate::mapped::Mapping,
            ) -> $crate::mapped::MappedAdmin {
                let database = std::sync::Arc::new(self.clone());
                $crate::mapped::MappedAdmin::new(database, pipeline, mapping)
            }

            /// Holds a mapping against the real table, and says which order it gives. Changes
            /// nothing.
            ///
            /// # Errors
            /// `Misconfigured` when it does not fit, with everything that is wrong.
            pub async fn check_mapping(
                &self,
                mapping: &$crate::mapped::Mapping,
            ) -> Result<$crate::mapped::LaneOrder, semel_core::Failure> {
                $crate::mapped::check(self, mapping).await.map(|table| table.lane_order())
            }
        }

        #[async_trait::async_trait]
        impl $crate::mapped::Database for $store {
            fn dialect(&self) -> $crate::mapped::Dialect {
                $crate::mapped::Dialect::$dialect
            }

            fn clock(&self) -> &dyn semel_core::Clock {
                &*self.clock
            }

            fn airspace(&self) -> &$crate::mapped::Airspace {
                &self.airspace
            }

            fn announce_change(&self) {
                self.announce_change();
            }

            fn changes(&self) -> tokio::sync::watch::Receiver<()> {
                self.changes()
            }

            async fn check_schema(&self) -> Result<(), semel_core::Failure> {
                check_schema(self).await
            }

            async fn read(
                &self,
                what: &'static str,
                statement: $crate::mapped::Statement,
            ) -> Result<Vec<$crate::mapped::Row>, semel_core::Failure> {
                read(self, what, &statement).await
            }

            async fn write(
                &self,
                what: &'static str,
                statements: Vec<$crate::mapped::Statement>,
            ) -> Result<Option<Vec<$crate::mapped::Answer>>, semel_core::Failure> {
                let mut tx = begin(self).await?;
                let mut answers = Vec::with_capacity(statements.len());
                for statement in &statements {
                    let answer = run(&mut tx, statement).await.map_err(failure(what))?;
                    let is_guard = statement.kind == $crate::mapped::Kind::Guard;
                    if is_guard && answer.rows.is_empty() {
                        return Ok(None);
                    }
                    answers.push(answer);
                }
                tx.commit().await.map_err(failure(what))?;
                Ok(Some(answers))
            }
        }

        async fn run(
            connection: &mut $connection,
            statement: &$crate::mapped::Statement,
        ) -> Result<$crate::mapped::Answer, sqlx::Error> {
            if statement.kind == $crate::mapped::Kind::Change {
                let changed = query(statement).execute(connection).await?.rows_affected();
                return Ok($crate::mapped::Answer { rows: Vec::new(), changed });
            }
            let rows = fetch(connection, statement).await?;
            Ok($crate::mapped::Answer { rows, changed: 0 })
        }

        async fn fetch(
            connection: &mut $connection,
            statement: &$crate::mapped::Statement,
        ) -> Result<Vec<$crate::mapped::Row>, sqlx::Error> {
            let mut found = query(statement).fetch(connection);
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while let Some(next) = futures_util::TryStreamExt::try_next(&mut found).await? {
                let next = row(&next)?;
                bytes += next.size();
                rows.push(next);
                if statement.is_sated(bytes) {
                    break;
                }
            }
            Ok(rows)
        }
    };
}

pub(crate) use implement_mapped;

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
