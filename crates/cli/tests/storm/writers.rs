//! Those who write: short and long transactions, some rolled back, on a few lanes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row};
use tokio::task::JoinSet;
use tokio::time::sleep;

const LANES: u32 = 60;

/// Tasks that write until they are stopped.
pub(crate) struct Writers {
    pool: PgPool,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Writers {
    pub(crate) async fn start(url: &str, count: u64) -> Self {
        let options = PgPoolOptions::new().max_connections(20);
        let pool = options.connect(url).await.unwrap();
        sqlx::raw_sql(
            "create table lane (id integer primary key, number bigint not null default 0);
            insert into lane select n from generate_series(0, 59) n",
        )
        .execute(&pool)
        .await
        .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for seed in 0..count {
            tasks.spawn(write(pool.clone(), seed, Arc::clone(&stop)));
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
        let count = |row: &sqlx::postgres::PgRow| {
            (row.get::<i32, _>(0).to_string(), row.get::<i64, _>(1).unsigned_abs())
        };
        rows.iter().map(count).collect()
    }
}

async fn write(pool: PgPool, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Ordering::SeqCst) {
        if transaction(&pool, &mut random).await.is_err() {
            // The server is away: nothing was committed, or the lane counts what was.
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Each event has the number that its lane has in the same transaction.
async fn transaction(pool: &PgPool, random: &mut StdRng) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    let mut lane = random.random_range(0..LANES / 4);
    for _ in 0..random.random_range(1..4) {
        // Upwards, so that no two wait for each other.
        lane += random.random_range(1..LANES / 4);
        sqlx::query(
            "with counted as (update lane set number = number + 1 where id = $1 returning number)
            insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'lane', $1::text, 'Counted', number::text from counted",
        )
        .bind(i32::try_from(lane).unwrap())
        .execute(&mut *tx)
        .await?;
    }
    let pause = if random.random_bool(0.02) { 400 } else { random.random_range(0..15) };
    sleep(Duration::from_millis(pause)).await;
    if random.random_bool(0.2) { tx.rollback().await } else { tx.commit().await }
}
