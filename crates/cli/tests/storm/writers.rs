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

/// Tasks that write until they are stopped.
pub(crate) struct Writers {
    pool: AnyPool,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Writers {
    pub(crate) async fn start(url: &str, count: u64) -> Self {
        let options = AnyPoolOptions::new().max_connections(20);
        let pool = options.connect(url).await.unwrap();
        let lanes: Vec<_> = (0..LANES).map(|lane| format!("({lane}, 0)")).collect();
        let sql = format!(
            "create table lane (id integer primary key, number bigint not null);
            insert into lane values {}",
            lanes.join(", ")
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        let outbox = if url.starts_with("postgres") { "semel.outbox" } else { "semel_outbox" };
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for seed in 0..count {
            tasks.spawn(write(pool.clone(), outbox, seed, Arc::clone(&stop)));
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

async fn write(pool: AnyPool, outbox: &str, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Ordering::SeqCst) {
        if transaction(&pool, outbox, &mut random).await.is_err() {
            // The server is away: nothing was committed, or the lane counts what was.
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Each event has the number that its lane has in the same transaction.
async fn transaction(pool: &AnyPool, outbox: &str, random: &mut StdRng) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    let mut lane = random.random_range(0..LANES / 4);
    for _ in 0..random.random_range(1..4) {
        // Upwards, so that no two wait for each other.
        lane += random.random_range(1..LANES / 4);
        let sql = format!(
            "update lane set number = number + 1 where id = {lane};
            insert into {outbox} (aggregate_type, aggregate_id, event_type, payload)
            select 'lane', '{lane}', 'Counted', concat(number, '') from lane where id = {lane}"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
    }
    let pause = if random.random_bool(0.02) { 400 } else { random.random_range(0..15) };
    sleep(Duration::from_millis(pause)).await;
    if random.random_bool(0.2) { tx.rollback().await } else { tx.commit().await }
}
