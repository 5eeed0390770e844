//! `semel clean`: old events go, a bounded number at a time.

use std::time::Duration;

use semel_core::admin::{EventView, Filter, State};
use semel_core::{AdminStore, Clock, Failure, SystemClock};
use serde_json::json;

use super::audit::Noted;
use super::{Desk, count_matching};
use crate::args::CleanOptions;
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

const CHUNK: usize = 1000;

pub(crate) async fn run(options: &CleanOptions) -> Result<Exit, Problem> {
    let desk = Desk::open(&options.pipeline).await?;
    let (age, limit) = (options.older_than, options.limit.unwrap_or(usize::MAX));
    let mut dropped = 0;
    let count = if options.dry_run {
        let count = count_old(desk.store.as_ref(), age).await;
        count.map_err(|failure| desk.problem(failure))?.min(limit)
    } else {
        let problem = |failure| {
            let effect = "what was deleted before is gone; every event that is due remains";
            Problem::new(failure, &desk.place, effect)
        };
        let words = format!("older than {}", humantime::format_duration(age));
        let noted = Noted::begin(&*desk.database, "clean", &desk.owner, &words).await;
        let noted = noted.map_err(|failure| desk.problem(failure))?;
        if options.limit.is_none() {
            dropped = desk.store.upkeep(age).await.map_err(problem)?;
        }
        let deleted = delete_old(desk.store.as_ref(), age, CHUNK, limit).await.map_err(problem)?;
        noted.end(deleted).await;
        deleted
    };
    match options.output.format {
        Format::Json => print_json(&json!({
            "deleted": count, "dropped_partitions": dropped, "dry_run": options.dry_run
        })),
        Format::Text if options.dry_run => {
            print(&format!("at most {count} events would be deleted\n"));
        }
        Format::Text if dropped > 0 => {
            print(&format!("{count} events deleted, {dropped} partitions dropped\n"));
        }
        Format::Text => print(&format!("{count} events deleted\n")),
    }
    Ok(Exit::Done)
}

/// Deletes what is older, a chunk at a time: small transactions let the writers through. A chunk
/// that is not full is the last: otherwise events that grow old meanwhile would keep it going for
/// ever.
pub(super) async fn delete_old(
    store: &dyn AdminStore,
    age: Duration,
    chunk: usize,
    limit: usize,
) -> Result<usize, Failure> {
    let mut count = 0;
    while count < limit {
        let chunk = chunk.min(limit - count);
        let deleted = store.clean(age, chunk).await?;
        count += deleted;
        if deleted < chunk {
            break;
        }
    }
    Ok(count)
}

/// How many events this pipeline is done with. Another pipeline may still need some of them.
async fn count_old(store: &dyn AdminStore, age: Duration) -> Result<usize, Failure> {
    let Ok(before) = SystemClock.now().checked_sub(age) else {
        return Ok(0);
    };
    let is_old = |view: &EventView| view.published_at.is_none_or(|at| at < before);
    let mut count = 0;
    for state in [State::Published, State::Discarded] {
        let filter = Filter { state: Some(state), until: Some(before), ..Filter::default() };
        count += count_matching(store, &filter, is_old).await?;
    }
    Ok(count)
}
