//! `semel status`: how every pipeline is doing.

use semel_core::admin::{State, Stats};
use serde_json::{Value, json};

use super::Desk;
use crate::args::StatusOptions;
use crate::config::Config;
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, age, print_json};

pub(crate) async fn run(options: &StatusOptions) -> Result<Exit, Problem> {
    let config = Config::load(&options.config.path)?;
    let mut all = Vec::new();
    for pipeline in &config.pipelines {
        let desk = Desk::of(pipeline).await?;
        let stats = desk.store.stats().await.map_err(|failure| desk.problem(failure))?;
        let tailing = desk.database.is_tailed(&pipeline.name).await;
        let tailing = tailing.map_err(|failure| desk.problem(failure))?;
        all.push((pipeline.name.as_str(), stats, tailing));
    }
    match options.output.format {
        Format::Text => table(&all).print(),
        Format::Json => print_json(&all.iter().map(json).collect::<Vec<_>>()),
    }
    Ok(Exit::Done)
}

fn table(all: &[(&str, Stats, bool)]) -> Table<10> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("PIPELINE", Left),
        ("PENDING", Right),
        ("PUBLISHING", Right),
        ("PUBLISHED", Right),
        ("FAILED", Right),
        ("DEAD", Right),
        ("DISCARDED", Right),
        ("PARKED AGGREGATES", Right),
        ("OLDEST PENDING", Right),
        ("TAILING", Left),
    ]);
    for (name, stats, tailing) in all {
        let [pending, publishing, published, failed, dead, discarded] =
            stats.counts.map(|count| count.to_string());
        table.row([
            (*name).to_owned(),
            pending,
            publishing,
            published,
            failed,
            dead,
            discarded,
            stats.parked_lanes.to_string(),
            stats.oldest_pending.map_or_else(|| "-".into(), age),
            if *tailing { "yes" } else { "no" }.into(),
        ]);
    }
    table
}

fn json((name, stats, tailing): &(&str, Stats, bool)) -> Value {
    let mut value = json!({
        "pipeline": name,
        "parked_aggregates": stats.parked_lanes,
        "tailing": tailing,
        "oldest_pending_age_seconds": stats.oldest_pending.map(|age| age.as_secs_f64()),
    });
    for state in State::ALL {
        value[state.as_str()] = stats.count(state).into();
    }
    value
}
