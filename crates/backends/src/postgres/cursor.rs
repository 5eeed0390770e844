//! The row of a share in `semel.cursor`: who owns it, and how far it is.
//!
//! Every change names the epoch of its owner, so that one statement both checks the ownership and
//! makes the change. The row is found by its physical place, which each change returns: under an
//! old snapshot its dead versions cannot be removed, and a search by key would read them all.
//!
//! A server that crashed, or a standby in its place, may have lost what it did last, and gives the
//! same transaction ids once more. So every change also names the start of the server that the
//! memory of its owner speaks of. Epochs rise by chance, so that one that was lost is not given to
//! somebody else.

use std::sync::Arc;

use semel_core::coordination::Share;
use semel_core::{Failure, Holding};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row, Transaction};

use super::error::failure;
use super::pooler::{BRIEF, Link};
use super::shares;
use super::store::integer;
use super::types::Snapshot;
use super::window::{Ledger, Position};
use crate::tailing::Change;

/// The ownership of a share of a pipeline.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    pub(super) pipeline: String,
    pub(super) share: Share,
    pub(super) epoch: i64,
    /// Where the row is, as far as known.
    place: Option<String>,
    /// What the memory of the owner speaks of.
    server: Server,
}

/// One run of a server: from its start, or the end of its recovery, to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Which server's and database's transaction ids these are.
    pub(super) identity: String,
    started: String,
    /// Statistics are lost with a crash, also with one that the postmaster survives.
    counts_since: String,
}

macro_rules! position {
    () => {
        "epoch, ctid::text, passed::text, window_end::text, window_no, progress, ahead, top, windows"
    };
}

const TAKE_OVER: &str = concat!(
    "update semel.cursor set epoch = epoch + 1 + (random() * 1000000)::bigint, out_from = null,
        out_end = null, out_seq = null, polling = null
    where pipeline = $1 and share = $2 and shares = $3
    returning ",
    position!()
);

const FIND: &str = concat!(
    "select ",
    position!(),
    " from semel.cursor where pipeline = $1 and share = $2 and shares = $3 and epoch = $4"
);

macro_rules! started {
    () => {
        "extract(epoch from pg_postmaster_start_time())::text"
    };
}

const SERVER: &str = concat!(
    "select system_identifier || '/' || oid, ",
    started!(),
    ", coalesce((select extract(epoch from stats_reset)::text from pg_stat_bgwriter), '')
    from pg_control_system(), pg_database where datname = current_database()"
);

macro_rules! advance {
    ($place:literal) => {
        concat!(
            "with old as (
                select pipeline, share, moved_at, passed from semel.cursor
                where pipeline = $1 and share = $4 and epoch = $2 and ",
            $place,
            "), moved as (
                update semel.cursor set passed = $6::text::pg_snapshot,
                    window_end = $7::text::pg_snapshot, window_no = $8, progress = $9, ahead = $10,
                    top = greatest(top, $11), windows = greatest(windows, $12),
                    out_from = case when $13 then null else out_from end,
                    out_end = case when $13 then null else out_end end,
                    out_seq = case when $13 then null else out_seq end,
                    moved_at = clock_timestamp()
                where pipeline = $1 and share = $4 and epoch = $2 and $5 = ",
            started!(),
            " and ",
            $place,
            " returning ctid::text
            ), noted as (
                insert into semel.passage (pipeline, share, at, passed)
                select old.* from old, moved where date_trunc('second', moved_at) < date_trunc('second', clock_timestamp())
                on conflict do nothing
            )
            select * from moved"
        )
    };
}

/// What is out need not survive a crash of the server, so nobody waits for the disk.
macro_rules! mark {
    ($place:literal) => {
        concat!(
            "update semel.cursor set out_from = $6::text::pg_snapshot,
                out_end = $7::text::pg_snapshot, out_seq = $8, windows = greatest(windows, $9)
            where pipeline = $1 and share = $4 and epoch = $2 and $5 = ",
            started!(),
            " and ",
            $place,
            " returning ctid::text, set_config('synchronous_commit', 'off', true)"
        )
    };
}

/// For those who look.
macro_rules! note {
    ($place:literal) => {
        concat!(
            "update semel.cursor set polling = $6
            where pipeline = $1 and share = $4 and epoch = $2 and $5 = ",
            started!(),
            " and ",
            $place,
            " returning ctid::text"
        )
    };
}

/// Two ways to find the row: by its place, and by its key when the place is not known.
struct Statement {
    by_place: &'static str,
    by_key: &'static str,
}

const ADVANCE: Statement = Statement {
    by_place: advance!("ctid = $3::text::tid"),
    by_key: advance!("$3::text is not distinct from null"),
};
const MARK: Statement = Statement {
    by_place: mark!("ctid = $3::text::tid"),
    by_key: mark!("$3::text is not distinct from null"),
};

const NOTE: Statement = Statement {
    by_place: note!("ctid = $3::text::tid"),
    by_key: note!("$3::text is not distinct from null"),
};

impl Cursor {
    /// Takes the share over from whoever has it.
    pub(super) async fn open(
        link: &mut Link<'_>,
        pipeline: &str,
        share: Share,
        server: Server,
    ) -> Result<(Self, Position), Failure> {
        let failed = || failure("take over the pipeline");
        let mut step = link.step().await?;
        let mut row = take_over(&mut step, pipeline, share).await?;
        step.end().await?;
        if row.is_none() {
            let mut tx = begin(link, "divide the pipeline").await?;
            shares::divide(&mut tx, pipeline, share.of, &server.identity).await?;
            row = take_over(&mut tx, pipeline, share).await?;
            tx.commit().await.map_err(failed())?;
        }
        let row = row.ok_or_else(|| failed()(sqlx::Error::RowNotFound))?;
        let mut step = link.step().await?;
        sqlx::query(
            "update semel.parked set taken = null
            where pipeline = $1 and share = $2 and taken is not null",
        )
        .bind(pipeline)
        .bind(integer(share.number))
        .execute(&mut *step)
        .await
        .map_err(failed())?;
        step.end().await?;
        let epoch = row.try_get(0).map_err(failed())?;
        let cursor = Self { pipeline: pipeline.to_owned(), share, epoch, place: None, server };
        Ok((cursor, position(&row).map_err(failed())?))
    }

    /// Whether this is the run of a server that the memory of the owner speaks of.
    pub(super) fn is_of(&self, server: &Server) -> bool {
        self.server == *server
    }

    /// How far the share is on this server, where what the owner remembers may never have happened;
    /// none when somebody else has it, or nobody.
    pub(super) async fn find_again(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<Position>, Failure> {
        let failed = || failure("find the cursor again");
        let row = sqlx::query(FIND)
            .bind(&self.pipeline)
            .bind(integer(self.share.number))
            .bind(integer(self.share.of))
            .bind(self.epoch)
            .fetch_optional(connection)
            .await
            .map_err(failed())?;
        row.map(|row| position(&row)).transpose().map_err(failed())
    }

    /// From now on the memory of the owner speaks of this run.
    pub(super) fn go_on_at(&mut self, server: Server) {
        self.place = None;
        self.server = server;
    }

    /// Stores how far the share is.
    pub(super) async fn advance(
        &mut self,
        connection: &mut PgConnection,
        ledger: &Ledger,
    ) -> Result<Holding, Failure> {
        let position = ledger.position();
        let (number, end) = position
            .window
            .as_ref()
            .map_or((0, None), |(number, end)| (*number, Some(end.to_string())));
        self.change(connection, &ADVANCE, |query| {
            query
                .bind(position.passed.to_string())
                .bind(end.clone())
                .bind(number)
                .bind(position.progress)
                .bind(position.ahead.clone())
                .bind(position.top)
                .bind(position.windows)
                .bind(!ledger.is_something_out())
        })
        .await
    }

    /// Waits until whatever else changes the share has ended.
    pub(super) async fn wait_for_others(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Holding, Failure> {
        const OWNER: &str = "\
            select from semel.cursor where pipeline = $1 and share = $2 and epoch = $3 for update";
        let owner = sqlx::query(OWNER)
            .bind(&self.pipeline)
            .bind(integer(self.share.number))
            .bind(self.epoch)
            .fetch_optional(connection)
            .await
            .map_err(failure("look who owns the pipeline"))?;
        Ok(if owner.is_some() { Holding::Held } else { Holding::Lost })
    }

    /// Shows what is out.
    pub(super) async fn mark(
        &mut self,
        connection: &mut PgConnection,
        ledger: &Ledger,
    ) -> Result<Holding, Failure> {
        let (from, end) = ledger
            .last_window()
            .map_or((None, None), |(from, end)| (Some(from.to_string()), Some(end.to_string())));
        self.change(connection, &MARK, |query| {
            query.bind(from.clone()).bind(end.clone()).bind(ledger.read()).bind(ledger.count())
        })
        .await
    }

    /// Says why the owner polls; nothing when the log is tailed.
    pub(super) async fn note(
        &mut self,
        connection: &mut PgConnection,
        why_polling: &Change,
    ) -> Result<Holding, Failure> {
        self.change(connection, &NOTE, |query| query.bind(why_polling.clone())).await
    }

    async fn change(
        &mut self,
        connection: &mut PgConnection,
        statement: &Statement,
        bind: impl Fn(Query) -> Query + Send,
    ) -> Result<Holding, Failure> {
        let failed = || failure("move the cursor");
        let start = |sql: &'static str, place: Option<String>| {
            let query = sqlx::query(sql).bind(self.pipeline.clone()).bind(self.epoch).bind(place);
            bind(query.bind(integer(self.share.number)).bind(self.server.started.clone()))
        };
        let mut row = None;
        if let Some(place) = self.place.clone() {
            let query = start(statement.by_place, Some(place));
            row = query.fetch_optional(&mut *connection).await.map_err(failed())?;
        }
        if row.is_none() {
            let query = start(statement.by_key, None);
            row = query.fetch_optional(connection).await.map_err(failed())?;
        }
        let Some(row) = row else { return Ok(Holding::Lost) };
        self.place = row.try_get(0).map_err(failed())?;
        Ok(Holding::Held)
    }
}

async fn take_over(
    connection: &mut PgConnection,
    pipeline: &str,
    share: Share,
) -> Result<Option<PgRow>, Failure> {
    sqlx::query(TAKE_OVER)
        .bind(pipeline)
        .bind(integer(share.number))
        .bind(integer(share.of))
        .fetch_optional(connection)
        .await
        .map_err(failure("take over the pipeline"))
}

/// Begins a transaction of a source. One that is left open keeps the next owner from the cursor, but not
/// for long.
pub(super) async fn begin<'c>(
    link: &'c mut Link<'_>,
    what: &'static str,
) -> Result<Transaction<'c, Postgres>, Failure> {
    link.begin(BRIEF).await.map_err(failure(what))
}

type Query = sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Which server this is, and since when.
pub(super) async fn server(connection: &mut PgConnection) -> Result<Server, Failure> {
    let (identity, started, counts_since) = sqlx::query_as(SERVER)
        .fetch_one(connection)
        .await
        .map_err(failure("read the identity of the server"))?;
    Ok(Server { identity, started, counts_since })
}

fn position(row: &PgRow) -> Result<Position, sqlx::Error> {
    let snapshot = |text: &str| -> Result<Arc<Snapshot>, sqlx::Error> {
        Ok(Arc::new(text.parse().map_err(sqlx::Error::Decode)?))
    };
    let end: Option<&str> = row.try_get(3)?;
    let number: i64 = row.try_get(4)?;
    Ok(Position {
        passed: snapshot(row.try_get(2)?)?,
        window: end.map(snapshot).transpose()?.map(|end| (number, end)),
        progress: row.try_get(5)?,
        ahead: row.try_get(6)?,
        top: row.try_get(7)?,
        windows: row.try_get(8)?,
    })
}
