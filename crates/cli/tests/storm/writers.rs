//! Those who write: short and long transactions, some rolled back, on a few lanes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::any::{AnyPoolOptions, AnyRow};
use sqlx::{AnyPool, AssertSqlSafe, Row};
use tokio::task::JoinSet;
use tokio::time::sleep;

const LANES: u32 = 60;

/// What events are written as.
#[derive(Clone, Copy)]
enum Outbox {
    /// Rows of this table.
    Table(&'static str),
    /// Messages in the log of PostgreSQL.
    Messages,
}

impl Outbox {
    /// The statement that writes the number of a lane.
    fn append(self, lane: u32, sign: &str) -> String {
        match self {
            Self::Table(table) => format!(
                "insert into {table} (aggregate_type, aggregate_id, event_type, payload)
                select 'lane', '{lane}', 'Counted', concat(number * {sign}, '') from lane where id = {lane}"
            ),
            Self::Messages => format!(
                "do $$ begin perform pg_logical_emit_message(true, 'semel', json_build_object(
                    'id', semel.uuid_v7(), 'aggregate_type', 'lane', 'aggregate_id', '{lane}',
                    'event_type', 'Counted', 'payload', concat(number * {sign}, ''))::text)
                from lane where id = {lane}; end $$"
            ),
        }
    }
}

/// Tasks that write until they are stopped.
pub(crate) struct Writers {
    pool: AnyPool,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Writers {
    pub(crate) async fn start(url: &str, count: u64) -> Self {
        let outbox = if url.starts_with("postgres") { "semel.outbox" } else { "semel_outbox" };
        Self::start_on(url, outbox, count).await
    }

    /// Tasks that write into another table than semel's.
    pub(crate) async fn start_on(url: &str, table: &'static str, count: u64) -> Self {
        Self::begin(url, Outbox::Table(table), count).await
    }

    pub(crate) async fn emit(url: &str, count: u64) -> Self {
        Self::begin(url, Outbox::Messages, count).await
    }

    async fn begin(url: &str, outbox: Outbox, count: u64) -> Self {
        let options = AnyPoolOptions::new().max_connections(20);
        let pool = options.connect(url).await.unwrap();
        let lanes: Vec<_> = (0..LANES).map(|lane| format!("({lane}, 0)")).collect();
        let sql = format!(
            "create table lane (id integer primary key, number bigint not null);
            insert into lane values {}",
            lanes.join(", ")
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        let takes_turns = url.starts_with("sqlite");
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for seed in 0..count {
            tasks.spawn(write(pool.clone(), outbox, takes_turns, seed, Arc::clone(&stop)));
        }
        Self { pool, stop, tasks }
    }

    /// How many events each lane has, by what is committed.
    pub(crate) async fn stop(mut self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let rows = sqlx::query("select id, number from lane").fetch_all(&self.pool).await.unwrap();
        let count =
            |row: &AnyRow| (row.get::<i32, _>(0).to_string(), row.get::<i64, _>(1).unsigned_abs());
        rows.iter().map(count).collect()
    }
}

async fn write(pool: AnyPool, outbox: Outbox, takes_turns: bool, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Ordering::SeqCst) {
        let pause = if random.random_bool(0.02) { 400 } else { random.random_range(0..15) };
        let pause = Duration::from_millis(pause);
        let open = if takes_turns { pause / 8 } else { pause };
        if transaction(&pool, outbox, open, &mut random).await.is_err() {
            // The server is away: nothing was committed, or the lane counts what was.
            sleep(Duration::from_millis(50)).await;
        }
        // One can write at a time, and there is no queue: who never stops keeps all others out.
        if takes_turns {
            sleep(pause * 6).await;
        }
    }
}

/// Each event has the number that its lane has in the same transaction, which the next one has again
/// after a rollback: so what is rolled back is below zero.
async fn transaction(
    pool: &AnyPool,
    outbox: Outbox,
    open: Duration,
    random: &mut StdRng,
) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    let mut lane = random.random_range(0..LANES / 4);
    let is_undone = random.random_bool(0.2);
    let sign = if is_undone { "-1" } else { "1" };
    for _ in 0..random.random_range(1..4) {
        // Upwards, so that no two wait for each other.
        lane += random.random_range(1..LANES / 4);
        let append = outbox.append(lane, sign);
        let sql = format!("update lane set number = number + 1 where id = {lane}; {append}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
    }
    sleep(open).await;
    if is_undone { tx.rollback().await } else { tx.commit().await }
}
