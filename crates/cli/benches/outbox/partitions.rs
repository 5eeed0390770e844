//! An outbox of thirty partitions beside a plain one.

use std::time::Duration;

use super::{Effort, Outcomes, backlog, drain, fresh_store, median};

const DAYS: u64 = 30;
const EVENTS: u64 = 300_000;

pub(super) async fn measure(server: &str, effort: Effort) -> Outcomes<()> {
    let (plain, plain_poll) = layout(server, effort, false).await?;
    let (divided, divided_poll) = layout(server, effort, true).await?;
    println!(
        "{DAYS} partitions: {divided:.0} events/s, {plain:.0} without (ratio {:.2}); \
         an empty poll {divided_poll:?}, {plain_poll:?} without",
        divided / plain
    );
    Ok(())
}

async fn layout(server: &str, effort: Effort, divided: bool) -> Outcomes<(f64, Duration)> {
    const PAST: &str = "do $$ declare span bigint := semel.partition_seconds(); start bigint;
        begin for day in 1..29 loop
            start := (extract(epoch from now())::bigint / span - day) * span;
            execute format('create table semel.outbox_%s partition of semel.outbox
                for values from (%L) to (%L)', start, semel.partition_bound(start),
                semel.partition_bound(start + span));
        end loop; end $$";
    let store = fresh_store(server).await?;
    if divided {
        store.partition(Duration::from_secs(86_400)).await?;
        sqlx::raw_sql(PAST).execute(store.pool()).await?;
    }
    backlog::fill(&store, EVENTS, DAYS).await?;
    let mut drains = Vec::new();
    for _ in 0..effort.rounds {
        drains.push(drain::drained(&store, EVENTS).await?);
    }
    let poll = drain::empty_poll(&store).await?;
    store.close().await;
    Ok((median(drains), poll))
}
