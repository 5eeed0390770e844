//! Poolers: programs between semel and the server that lend each transaction any connection they have.
//!
//! Behind a pooler in transaction mode nothing outlives a transaction: a prepared statement may be
//! gone at the next call, or be that of somebody else under the same name. sqlx prepares and executes
//! in two steps, so there every statement of semel runs in a transaction. When the pooler knows
//! nothing of statements, names that others left behind are forgotten at the beginning of each.
//!
//! A pooler is found by a setting that each connection brings along when it is opened: a pooler
//! refuses the setting or forgets it, the server itself can show it.

use std::ops::{Deref, DerefMut};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use semel_core::Failure;
use sqlx::error::DatabaseError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{
    AssertSqlSafe, Connection, Either, Error, Execute, Executor, PgConnection, PgPool, Postgres,
    Row, SqlStr, Transaction,
};
use uuid::Uuid;

use super::error::failure;
use super::store::PostgresStore;

/// What is between semel and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    /// A pooler, which may know enough of prepared statements to give each client its own.
    Pooled {
        knows_statements: bool,
    },
}

macro_rules! brief {
    () => {
        "begin; set local idle_in_transaction_session_timeout = '2s'"
    };
}

/// Begins a transaction that belongs to semel alone.
///
/// It may be left open, by a call that was dropped or a process that was stopped, and then keeps others
/// from what it has locked. The server ends it soon; somebody who goes on after that gets an error.
pub(super) const BRIEF: &str = brief!();

/// The same, and what it commits is on the disk, also where others' commits are not waited for.
pub(super) const LASTING: &str = concat!(
    brief!(),
    "; select set_config('synchronous_commit', 'on', true)
    where current_setting('synchronous_commit') = 'off'"
);

const NAME: &str = "semel.connection";

/// A setting that the server shows to whoever brought it along.
pub(super) struct Marker(String);

impl Marker {
    pub(super) fn new() -> Self {
        Self(Uuid::now_v7().simple().to_string())
    }

    pub(super) fn put_on(&self, options: &PgConnectOptions) -> PgConnectOptions {
        options.clone().options([(NAME, self.0.as_str())])
    }

    /// Whether the server shows it.
    pub(super) async fn arrived(&self, pool: &PgPool) -> Result<bool, Error> {
        let sql = format!("select coalesce(current_setting('{NAME}', true), '')");
        // As a simple query: nothing else is safe behind a pooler.
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(pool).await?;
        Ok(row.try_get::<&str, _>(0)? == self.0)
    }

    /// Whether the setting is what a connection was refused for: `08` or `0A`, a breach of the
    /// protocol or something that is not supported. A server has no reason to say so.
    pub(super) fn is_refused(error: &Error) -> bool {
        let code = error.as_database_error().and_then(DatabaseError::code);
        code.is_some_and(|code| code.starts_with("08") || code.starts_with("0A"))
    }

    /// Whether a pooler gives the statements of each client names of their own, as a statement that
    /// looks for itself can tell.
    pub(super) async fn is_renamed(&self, pool: &PgPool) -> Result<bool, Error> {
        const DUPLICATE: &str = "42P05";
        let sql = format!(
            "select count(*) from pg_prepared_statements
            where statement like '%{}%' and name like 'sqlx%'",
            self.0
        );
        let mut tx = pool.begin().await?;
        let found: Result<i64, Error> =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *tx).await;
        let renamed = match &found {
            Err(Error::Database(error)) if error.code().as_deref() == Some(DUPLICATE) => false,
            _ => found? == 0,
        };
        tx.rollback().await?;
        Ok(renamed)
    }
}

impl Way {
    /// How a transaction begins here.
    pub(super) fn opening(self, begin: impl Into<String>) -> AssertSqlSafe<String> {
        let mut sql = begin.into();
        if self == (Self::Pooled { knows_statements: false }) {
            sql.push_str("; deallocate all");
        }
        AssertSqlSafe(sql)
    }
}

/// A connection, and what is between it and the server.
pub(super) struct Link<'c> {
    connection: &'c mut PgConnection,
    way: Way,
}

impl<'c> Link<'c> {
    pub(super) fn new(connection: &'c mut PgConnection, way: Way) -> Self {
        Self { connection, way }
    }

    pub(super) async fn begin(
        &mut self,
        begin: &'static str,
    ) -> Result<Transaction<'_, Postgres>, Error> {
        self.connection.begin_with(self.way.opening(begin)).await
    }

    /// For statements that need no transaction of their own. What they change counts when the step
    /// has ended.
    pub(super) async fn step(&mut self) -> Result<Step<'_>, Failure> {
        Ok(match self.way {
            Way::Direct => Step::Direct(self.connection),
            Way::Pooled { .. } => {
                Step::Within(self.begin(BRIEF).await.map_err(failure("begin a step"))?)
            }
        })
    }

    /// Has statements planned anew. A pooler that knows statements may give us old plans for a while.
    pub(super) async fn forget_plans(&mut self) -> Result<(), Failure> {
        if self.way == Way::Direct {
            self.connection.clear_cached_statements().await.map_err(failure("plan anew"))?;
        }
        Ok(())
    }
}

/// A connection for statements that need no transaction of their own, in one where nothing works
/// without.
pub(super) enum Step<'c> {
    Direct(&'c mut PgConnection),
    Owned(PoolConnection<Postgres>),
    Within(Transaction<'c, Postgres>),
}

impl Step<'_> {
    pub(super) async fn end(self) -> Result<(), Failure> {
        match self {
            Self::Within(tx) => tx.commit().await.map_err(failure("end a step")),
            Self::Direct(_) | Self::Owned(_) => Ok(()),
        }
    }
}

impl Deref for Step<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Direct(connection) => connection,
            Self::Owned(connection) => connection,
            Self::Within(tx) => tx,
        }
    }
}

impl DerefMut for Step<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Direct(connection) => connection,
            Self::Owned(connection) => connection,
            Self::Within(tx) => tx,
        }
    }
}

/// Executes one statement on a connection of the store. Made by [`PostgresStore::once`].
#[derive(Debug)]
pub(super) struct Once<'s>(pub(super) &'s PostgresStore);

impl Once<'_> {
    async fn all<'q, E>(self, query: E) -> Result<Vec<Either<PgQueryResult, PgRow>>, Error>
    where
        E: Execute<'q, Postgres> + 'q,
    {
        if !self.0.is_pooled() {
            return self.0.pool().fetch_many(query).try_collect().await;
        }
        let mut tx = self.0.opened(BRIEF).await?;
        let answers = tx.fetch_many(query).try_collect().await?;
        tx.commit().await?;
        Ok(answers)
    }
}

impl<'s> Executor<'s> for Once<'s> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        's: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let answers = self.all(query).map_ok(|all| stream::iter(all).map(Ok));
        answers.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        's: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let answers = self.all(query);
        answers.map_ok(|all| all.into_iter().find_map(Either::right)).boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        's: 'e,
    {
        self.0.pool().prepare_with(sql, parameters)
    }
}
