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

/// They take turns, each in every place as often: a disk that is slow for a while is slow for all.
const SLICE: Duration = Duration::from_millis(250);
const SLICES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    Bare,
    Outbox,
    /// An event that carries the trace it was made in.
    Traced,
}

const ALL: [Second; 3] = [Second::Bare, Second::Outbox, Second::Traced];

pub(super) async fn measure(server: &str, effort: Effort) -> Outcomes<()> {
    let store = fresh_store(server).await?;
    sqlx::raw_sql(TABLES).execute(store.pool()).await?;
    for clients in [1, 16, 64] {
        run(&store, clients, Second::Outbox, SLICE).await?;
        let mut rates = ALL.map(|_| Vec::new());
        for turn in 0..effort.rounds * effort.seconds as usize * SLICES {
            for place in 0..ALL.len() {
                // Forwards and backwards, so that each follows each of the others.
                let step = if turn % 2 == 0 { place } else { ALL.len() - 1 - place };
                let number = (turn + step) % ALL.len();
                rates[number].push(run(&store, clients, ALL[number], SLICE).await?);
            }
        }
        let bare = median(rates[0].clone());
        for (second, rates_of_it) in ALL.into_iter().zip(&rates).skip(1) {
            let pairs = rates_of_it.iter().zip(&rates[0]);
            let ratio = median(pairs.map(|(with, without)| with / without).collect());
            let rate = median(rates_of_it.clone());
            let what = if second == Second::Traced { "a traced event" } else { "an event" };
            println!(
                "{clients} writers: {rate:.0} tx/s with {what}, {bare:.0} with a bare INSERT \
                 (ratio {ratio:.2}, target 0.90)"
            );
        }
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

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

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
        Second::Outbox | Second::Traced => {
            let event = Event::new("account", account.to_string(), "Changed")
                .with_bytes("application/json", payload);
            let event = match second {
                Second::Traced => event.with_header("traceparent", TRACE),
                _ => event,
            };
            store.outbox().append(&mut tx, event).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}
