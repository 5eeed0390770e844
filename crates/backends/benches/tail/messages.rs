//! Messages: how fast they are carried from the log into the outbox, beside `pg_recvlogical`, which puts them
//! nowhere.

use std::time::Instant;

use semel_backends::postgres::PostgresStore;

use super::{Outcomes, made, rate, receive, run};

/// Ten messages in each transaction.
pub(super) async fn carried(store: &PostgresStore, url: &str, count: usize) -> Outcomes<()> {
    const SLOT: &str = "bench_messages";
    store.prepare_messages().await?;
    let sql = format!("select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')");
    run(store, &sql).await?;
    for start in (0..count).step_by(10) {
        let events: Vec<_> = (start..count.min(start + 10)).map(made).collect();
        let mut tx = store.begin().await?;
        sqlx::raw_sql("set local synchronous_commit = off").execute(&mut *tx).await?;
        store.outbox().as_messages().append_all(&mut tx, &events).await?;
        tx.commit().await?;
    }
    let end: String =
        sqlx::query_scalar("select pg_current_wal_lsn()::text").fetch_one(store.pool()).await?;
    let received = receive(url, SLOT, &end, true)?;
    let began = Instant::now();
    store.carry_messages("messages").await?.caught_up().await?;
    let carried = began.elapsed();
    println!(
        "{count} messages, carried into the outbox: {} ({:.2} of pg_recvlogical, {})",
        rate(count, carried),
        received.as_secs_f64() / carried.as_secs_f64(),
        rate(count, received),
    );
    run(store, &format!("select pg_drop_replication_slot('{SLOT}')")).await
}
