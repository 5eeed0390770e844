//! `semel status`: how every pipeline is doing, and which sinks cannot be reached.

use semel_core::admin::{State, Stats};
use semel_core::diagnosis::{Log, Needs, Severity};
use serde_json::{Value, json};

use super::Desk;
#[cfg(feature = "page")]
use super::api::Api;
use super::check::log_of;
use super::screen::Screen;
use crate::args::StatusOptions;
use crate::config::{Config, Pipeline};
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, age, plain, print, print_json};
use crate::wiring::Mode;

pub(crate) async fn run(options: &StatusOptions) -> Result<Exit, Problem> {
    let place = Place::open(options).await?;
    let Some(every) = options.watch.watch else {
        show(&place.look().await?, options.output.format);
        return Ok(Exit::Done);
    };
    let mut screen = Screen::new();
    while screen.goes_on(every).await {
        let rows = place.look().await?;
        screen.clear();
        show(&rows, options.output.format);
    }
    Ok(Exit::Done)
}

/// Where the numbers come from.
enum Place {
    Databases(Vec<(Pipeline, Desk)>),
    #[cfg(feature = "page")]
    Relay(Box<Api>),
}

impl Place {
    async fn open(options: &StatusOptions) -> Result<Self, Problem> {
        #[cfg(feature = "page")]
        if let Some(api) = Api::of(&options.api)? {
            return Ok(Self::Relay(Box::new(api)));
        }
        let mut desks = Vec::new();
        for pipeline in Config::load(&options.config.path)?.pipelines {
            let desk = Desk::of(&pipeline).await?;
            desks.push((pipeline, desk));
        }
        Ok(Self::Databases(desks))
    }

    async fn look(&self) -> Result<Vec<Row>, Problem> {
        match self {
            Self::Databases(desks) => {
                let mut all = Vec::new();
                for (pipeline, desk) in desks {
                    let stats =
                        desk.store.stats().await.map_err(|failure| desk.problem(failure))?;
                    let news = match why_polling(desk, pipeline).await? {
                        None => News::Tailing,
                        Some(why) => News::Polling(why),
                    };
                    let outages = outages(desk, pipeline).await?;
                    all.push(Row { name: pipeline.name.clone(), stats, news, outages });
                }
                Ok(all)
            }
            #[cfg(feature = "page")]
            Self::Relay(api) => {
                let pipelines = api.overview().await?;
                pipelines.iter().try_for_each(|one| api.check_trouble(one))?;
                Ok(pipelines.iter().map(told).collect())
            }
        }
    }
}

/// A pipeline as a relay tells of it.
#[cfg(feature = "page")]
fn told(pipeline: &Value) -> Row {
    let point = &pipeline["point"];
    let counts =
        State::ALL.map(|state| pipeline["states"][state.as_str()].as_u64().unwrap_or_default());
    let oldest_pending = point["oldest"].as_f64().map(std::time::Duration::from_secs_f64);
    let parked_lanes = point["parked"].as_u64().unwrap_or_default();
    let name = pipeline["name"].as_str().unwrap_or_default().to_owned();
    let news = match (pipeline["tailing"].as_bool(), pipeline["polling_because"].as_str()) {
        (Some(true), _) => News::Tailing,
        (_, Some(why)) => News::Polling(why.to_owned()),
        _ => News::Unknown,
    };
    let outages = pipeline["outages"].as_array().cloned().unwrap_or_default();
    Row { name, stats: Stats { counts, oldest_pending, parked_lanes }, news, outages }
}

/// Why its sinks cannot be reached, as its relays tell the database.
async fn outages(desk: &Desk, pipeline: &Pipeline) -> Result<Vec<Value>, Problem> {
    let outages = desk.database.insight().outages(&pipeline.name).await;
    let outages = outages.map_err(|failure| desk.problem(failure))?;
    Ok(outages.iter().map(|outage| json!(outage)).collect())
}

fn show(rows: &[Row], format: Format) {
    match format {
        Format::Text => {
            let outages =
                rows.iter().flat_map(|row| row.outages.iter().map(|one| in_words(row, one)));
            print(&(table(rows).text() + &outages.collect::<String>()));
        }
        Format::Json => print_json(&rows.iter().map(json).collect::<Vec<_>>()),
    }
}

/// One outage, in the shape of all that goes wrong.
fn in_words(row: &Row, outage: &Value) -> String {
    let word = |key: &str| plain(outage[key].as_str().unwrap_or_default());
    let sink = match word("sink") {
        name if name.is_empty() => "its sink".to_owned(),
        name => format!("its sink {name}"),
    };
    let fix = match word("fix") {
        fix if fix.is_empty() => "nothing here: look after the broker".to_owned(),
        fix => fix,
    };
    format!(
        "\noutage[{}]  {} cannot reach {sink}: {}\n  where   relay {}\n  since   {}\n  \
         effect  events wait, no attempt is counted and none is lost; it goes on by itself\n  \
         run     {fix}\n",
        word("code"),
        plain(&row.name),
        word("error"),
        word("relay"),
        word("since"),
    )
}

/// A pipeline, its numbers, how it learns of new events, and why its sinks cannot be reached.
struct Row {
    name: String,
    stats: Stats,
    news: News,
    outages: Vec<Value>,
}

enum News {
    Tailing,
    /// And why it does not tail the log.
    Polling(String),
    /// A relay that has not looked yet does not tell.
    #[cfg(feature = "page")]
    Unknown,
}

impl News {
    fn in_words(&self) -> String {
        match self {
            Self::Tailing => "tailing".into(),
            Self::Polling(why) => format!("polling ({why})"),
            #[cfg(feature = "page")]
            Self::Unknown => "-".into(),
        }
    }
}

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
        "binlog-compression",
        "server-id",
    ];
    if let Some(why) = never_tails_because(pipeline) {
        return Ok(Some(why));
    }
    let problem = |failure| desk.problem(failure);
    let source = &pipeline.source;
    let is_tailed = match source.messages {
        Some(messages) => (messages.is_carried)(source.url.reveal().to_owned()).await,
        None => desk.database.is_tailed(&pipeline.name).await,
    };
    if is_tailed.map_err(problem)? {
        return Ok(None);
    }
    // A relay knows best. A standby cannot be asked in this way.
    let workings = desk.database.insight().workings(&pipeline.name).await.unwrap_or_default();
    let said = workings.why_polling();
    if !workings.relays.is_empty() && source.messages.is_none() {
        return Ok(said);
    }
    let needs = Needs {
        log: log_of(pipeline),
        pipelines: source.messages.is_none().then(|| pipeline.name.clone()).into_iter().collect(),
        messages: source.messages.is_some(),
        log_budget: source.following.log_budget,
        ..Needs::default()
    };
    let findings = desk.database.diagnose(&needs).await.map_err(problem)?;
    let obstacle = findings
        .into_iter()
        .find(|one| one.severity > Severity::Good && OBSTACLES.contains(&one.code));
    Ok(obstacle.map(|obstacle| obstacle.what).or(said))
}

/// Why a pipeline polls whatever the server allows.
pub(super) fn never_tails_because(pipeline: &Pipeline) -> Option<String> {
    let source = &pipeline.source;
    (log_of(pipeline) == Log::Unread).then(|| match source.following.mode {
        Mode::Poll => "mode = \"poll\"".to_owned(),
        _ if source.mapping.is_some() => "the table is mapped".to_owned(),
        _ if !source.kind.tails => format!("{} has no log to tail", source.kind.name),
        _ => "it has shares".to_owned(),
    })
}

fn table(all: &[Row]) -> Table<10> {
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
    for Row { name, stats, news, .. } in all {
        let [pending, publishing, published, failed, dead, discarded] =
            stats.counts.map(|count| count.to_string());
        table.row([
            name.clone(),
            pending,
            publishing,
            published,
            failed,
            dead,
            discarded,
            stats.parked_lanes.to_string(),
            stats.oldest_pending.map_or_else(|| "-".into(), age),
            news.in_words(),
        ]);
    }
    table
}

fn json(Row { name, stats, news, outages }: &Row) -> Value {
    let (tailing, polling) = match news {
        News::Tailing => (Some(true), None),
        News::Polling(why) => (Some(false), Some(why)),
        #[cfg(feature = "page")]
        News::Unknown => (None, None),
    };
    let mut value = json!({
        "pipeline": name,
        "parked_aggregates": stats.parked_lanes,
        "outages": outages,
        "tailing": tailing,
        "polling_because": polling,
        "oldest_pending_age_seconds": stats.oldest_pending.map(|age| age.as_secs_f64()),
    });
    for state in State::ALL {
        value[state.as_str()] = stats.count(state).into();
    }
    value
}
