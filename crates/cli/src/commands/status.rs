//! `semel status`: how every pipeline is doing.

use semel_core::admin::{State, Stats};
use semel_core::diagnosis::{Log, Needs, Severity};
use serde_json::{Value, json};

use super::Desk;
use super::check::log_of;
use super::screen::Screen;
use crate::args::StatusOptions;
use crate::config::{Config, Pipeline};
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, age, print_json};
use crate::wiring::Mode;

pub(crate) async fn run(options: &StatusOptions) -> Result<Exit, Problem> {
    let config = Config::load(&options.config.path)?;
    let mut desks = Vec::new();
    for pipeline in &config.pipelines {
        desks.push((pipeline, Desk::of(pipeline).await?));
    }
    let Some(every) = options.watch.watch else {
        show(&look(&desks).await?, options.output.format);
        return Ok(Exit::Done);
    };
    let mut screen = Screen::new();
    while screen.goes_on(every).await {
        let rows = look(&desks).await?;
        screen.clear();
        show(&rows, options.output.format);
    }
    Ok(Exit::Done)
}

async fn look<'a>(desks: &[(&'a Pipeline, Desk)]) -> Result<Vec<Row<'a>>, Problem> {
    let mut all = Vec::new();
    for (pipeline, desk) in desks {
        let stats = desk.store.stats().await.map_err(|failure| desk.problem(failure))?;
        all.push((pipeline.name.as_str(), stats, why_polling(desk, pipeline).await?));
    }
    Ok(all)
}

fn show(rows: &[Row<'_>], format: Format) {
    match format {
        Format::Text => table(rows).print(),
        Format::Json => print_json(&rows.iter().map(json).collect::<Vec<_>>()),
    }
}

/// A pipeline, its numbers, and why it learns of new events by polling; nothing if it tails the log.
type Row<'a> = (&'a str, Stats, Option<String>);

async fn why_polling(desk: &Desk, pipeline: &Pipeline) -> Result<Option<String>, Problem> {
    /// What keeps a relay from tailing.
    const OBSTACLES: [&str; 11] = [
        "messages",
        "log-budget",
        "pooler",
        "wal-level",
        "replication",
        "publication",
        "slots",
        "binlog",
        "binlog-format",
        "row-image",
        "server-id",
    ];
    let source = &pipeline.source;
    let log = log_of(pipeline);
    if log == Log::Unread {
        let why = match source.following.mode {
            Mode::Poll => "mode = \"poll\"".to_owned(),
            _ if source.mapping.is_some() => "the table is mapped".to_owned(),
            _ if !source.kind.tails => format!("{} has no log to tail", source.kind.name),
            _ => "it has shares".to_owned(),
        };
        return Ok(Some(why));
    }
    let problem = |failure| desk.problem(failure);
    let is_tailed = match source.messages {
        Some(messages) => (messages.is_carried)(source.url.reveal().to_owned()).await,
        None => desk.database.is_tailed(&pipeline.name).await,
    };
    if is_tailed.map_err(problem)? {
        return Ok(None);
    }
    let needs = Needs {
        log,
        pipelines: source.messages.is_none().then(|| pipeline.name.clone()).into_iter().collect(),
        messages: source.messages.is_some(),
        log_budget: source.following.log_budget,
        ..Needs::default()
    };
    let findings = desk.database.diagnose(&needs).await.map_err(problem)?;
    let obstacle = findings
        .into_iter()
        .find(|one| one.severity > Severity::Good && OBSTACLES.contains(&one.code));
    let idle = "no relay tails: none runs, or it has a backlog";
    Ok(Some(obstacle.map_or_else(|| idle.to_owned(), |obstacle| obstacle.what)))
}

fn table(all: &[Row<'_>]) -> Table<10> {
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
        ("NEW EVENTS", Left),
    ]);
    for (name, stats, polling) in all {
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
            polling.as_ref().map_or_else(|| "tailing".into(), |why| format!("polling ({why})")),
        ]);
    }
    table
}

fn json((name, stats, polling): &Row<'_>) -> Value {
    let mut value = json!({
        "pipeline": name,
        "parked_aggregates": stats.parked_lanes,
        "tailing": polling.is_none(),
        "polling_because": polling,
        "oldest_pending_age_seconds": stats.oldest_pending.map(|age| age.as_secs_f64()),
    });
    for state in State::ALL {
        value[state.as_str()] = stats.count(state).into();
    }
    value
}
