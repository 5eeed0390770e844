//! A business transaction with an event, beside the same transaction with a plain second INSERT.

use std::time::{Duration, Instant};

use semel_backends::postgres::PostgresStore;
use semel_core::Event;
use tokio::task::JoinSet;

use super::{Effort, Outcomes, fresh_store, median, per_second};

const TABLES: &str = "\
create table account (id integer primary key, balance bigint not null) with (fillfactor = 50);
insert into account select n, 0 from generate_series(1, 10000) n;
create table bare (
    seq bigint generated always as identity primary key,
    created_at timestamptz not null default clock_timestamp(),
    aggregate_type text not null, aggregate_id text not null, event_type text not null,
    payload text not null)";

/// The two take turns, each before the other as often as behind it: a disk that is slow for a while
/// is slow for both.
const SLICE: Duration = Duration::from_millis(250);
const SLICES: u64 = 4;

#[derive(Clone, Copy)]
enum Second {
    Bare,
    Outbox,
}

pub(super) async fn measure(server: &str, effort: Effort) -> Outcomes<()> {
    let store = fresh_store(server).await?;
    sqlx::raw_sql(TABLES).execute(store.pool()).await?;
    for clients in [1, 16, 64] {
        run(&store, clients, Second::Outbox, SLICE).await?;
        let (mut bare, mut outbox, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..effort.rounds as u64 * effort.seconds * SLICES {
            let (without, with) = if turn % 2 == 0 {
                let without = run(&store, clients, Second::Bare, SLICE).await?;
                (without, run(&store, clients, Second::Outbox, SLICE).await?)
            } else {
                let with = run(&store, clients, Second::Outbox, SLICE).await?;
                (run(&store, clients, Second::Bare, SLICE).await?, with)
            };
            bare.push(without);
            outbox.push(with);
            ratios.push(with / without);
        }
        let (bare, outbox, ratio) = (median(bare), median(outbox), median(ratios));
        println!(
            "{clients} writers: {outbox:.0} tx/s with an event, {bare:.0} with a bare INSERT \
             (ratio {ratio:.2}, target 0.90)"
        );
    }
    store.close().await;
    Ok(())
}

async fn run(store: &PostgresStore, clients: i32, second: Second, time: Duration) -> Outcomes<f64> {
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for client in 0..clients {
        let store = store.clone();
        writers.spawn(async move {
            let mut count = 0;
            while began.elapsed() < time {
                transaction(&store, client * 100 + count % 100 + 1, second).await?;
                count += 1;
            }
            Outcomes::Ok(count)
        });
    }
    let mut total = 0;
    while let Some(count) = writers.join_next().await {
        total += u64::from(count??.unsigned_abs());
    }
    Ok(per_second(total, began.elapsed()))
}

async fn transaction(store: &PostgresStore, account: i32, second: Second) -> Outcomes<()> {
    let payload = format!("{{\"account\":{account},\"text\":\"{:>160}\"}}", "x");
    let mut tx = store.begin().await?;
    sqlx::query("update account set balance = balance + 1 where id = $1")
        .bind(account)
        .execute(&mut *tx)
        .await?;
    match second {
        Second::Bare => {
            sqlx::query(
                "insert into bare (aggregate_type, aggregate_id, event_type, payload)
                values ('account', $1, 'Changed', $2)",
            )
            .bind(account.to_string())
            .bind(payload)
            .execute(&mut *tx)
            .await?;
        }
        Second::Outbox => {
            let event = Event::new("account", account.to_string(), "Changed")
                .with_bytes("application/json", payload);
            store.outbox().append(&mut tx, event).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}
