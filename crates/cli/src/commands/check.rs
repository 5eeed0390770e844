//! `semel check`: set-up mistakes, before they bite.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_backends::mapped::LaneOrder;
use semel_core::Failure;
use semel_core::coordination::Coordination;
use semel_core::diagnosis::{Finding, Log, Needs, Severity};
use serde_json::{Value, json};

use super::{database_kind, database_problem};
use crate::args::{CheckOptions, DatabaseOption};
use crate::config::{Config, Pipeline};
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};
use crate::wiring::{Database, Missing, Mode, shown};

const EFFECT: &str = "nothing was changed; no event is lost";

pub(crate) async fn run(options: &CheckOptions) -> Result<Exit, Problem> {
    let Asked { databases, mut pipelines, is_cleaned } = asked(options)?;
    if options.fix_sql && databases.len() > 1 {
        return Err(several(&databases));
    }
    let mut checked = Vec::new();
    for (url, needs) in databases {
        let place = DatabaseOption { url };
        let problem = |failure| database_problem(&place, failure, EFFECT);
        let connect = database_kind(&place, EFFECT)?.connect;
        let database = connect(place.url.clone(), Missing::Refuse).await.map_err(problem)?;
        let mut findings = database.diagnose(&needs).await.map_err(problem)?;
        let pipelines = pipelines.remove(&place.url).unwrap_or_default();
        findings.extend(retention(&pipelines, is_cleaned));
        for pipeline in pipelines {
            findings.extend(mapping(&*database, &pipeline).await);
            findings.extend(sinks(&pipeline, options.fix_sql).await);
        }
        checked.push(Checked { place: shown(&place.url), pipelines: needs.pipelines, findings });
    }
    let worst = checked.iter().flat_map(|one| &one.findings).map(|finding| finding.severity).max();
    match options.output.format {
        _ if options.fix_sql => checked.iter().for_each(|one| print(&one.sql())),
        Format::Text => {
            checked.iter().for_each(|one| print(&one.text()));
            print(&summary(&checked));
        }
        Format::Json => print_json(&checked.iter().map(Checked::json).collect::<Vec<_>>()),
    }
    Ok(if worst == Some(Severity::Problem) { Exit::Problems } else { Exit::Done })
}

/// By URL.
type Databases<T> = BTreeMap<String, T>;

/// The databases and what their relays do there, and the pipelines of each.
struct Asked {
    databases: Databases<Needs>,
    pipelines: Databases<Vec<Pipeline>>,
    /// Whether relays delete what is old.
    is_cleaned: bool,
}

fn asked(options: &CheckOptions) -> Result<Asked, Problem> {
    if let Some(url) = &options.url {
        let place = DatabaseOption { url: url.clone() };
        let log =
            if database_kind(&place, EFFECT)?.tails { Log::WherePossible } else { Log::Unread };
        let needs = Needs { log, ..Needs::default() };
        let databases = BTreeMap::from([(place.url, needs)]);
        return Ok(Asked { databases, pipelines: BTreeMap::new(), is_cleaned: false });
    }
    let (mut databases, mut pipelines) = (BTreeMap::new(), Databases::<Vec<_>>::new());
    let config = Config::load(&options.config.path)?;
    for pipeline in config.pipelines {
        let unread = Needs { log: Log::Unread, ..Needs::default() };
        let url = pipeline.source.url.reveal().to_owned();
        let needs: &mut Needs = databases.entry(url.clone()).or_insert(unread);
        let log = log_of(&pipeline);
        needs.log = needs.log.max(log);
        if pipeline.source.messages.is_some() {
            needs.messages = true;
        } else if log != Log::Unread {
            needs.pipelines.push(pipeline.name.clone());
            let budget = pipeline.source.following.log_budget;
            needs.log_budget = needs.log_budget.into_iter().chain(budget).min();
        }
        pipelines.entry(url).or_default().push(pipeline);
    }
    Ok(Asked { databases, pipelines, is_cleaned: config.retention.is_some() })
}

/// Whether the outbox is ever emptied. Tables of somebody else's shape are somebody else's.
fn retention(pipelines: &[Pipeline], is_cleaned: bool) -> Option<Finding> {
    const CODE: &str = "retention";
    pipelines.iter().find(|pipeline| pipeline.source.mapping.is_none())?;
    Some(if is_cleaned {
        Finding::good(CODE, "published events are deleted by the relay")
    } else {
        Finding::advice(CODE, "there is no [retention]: published events are never deleted")
            .means("the outbox grows until the disk is full, and then no event can be written")
            .fixed_by("write [retention] and keep = \"7d\"; or run `semel clean` every day")
    })
}

/// Whether the table of somebody else's shape is as the configuration says.
async fn mapping(database: &dyn Database, pipeline: &Pipeline) -> Vec<Finding> {
    const CODE: &str = "mapping";
    let Some(mapping) = &pipeline.source.mapping else { return Vec::new() };
    let name = &pipeline.name;
    match database.check_mapping(mapping).await {
        Ok(order) => {
            let what = format!("the table of pipeline.{name} is as it is mapped");
            vec![Finding::good(CODE, what), lane_order(name, order)]
        }
        Err(failure) => vec![
            Finding::of_failure(Severity::Problem, CODE, &failure)
                .means(format!("pipeline.{name} does not start; its events wait in the table")),
        ],
    }
}

/// Whether anything orders the rows of one aggregate.
fn lane_order(pipeline: &str, order: LaneOrder) -> Finding {
    const CODE: &str = "mapping-order";
    match order {
        LaneOrder::ByColumn => {
            Finding::good(CODE, format!("a column orders the rows of pipeline.{pipeline}"))
        }
        LaneOrder::ByTime => {
            let what = format!("only created_at orders the rows of pipeline.{pipeline}");
            Finding::advice(CODE, what)
                .means(
                    "events of one aggregate that have the same time, as those of one transaction \
                     have by now() of PostgreSQL, may be published in another order than written",
                )
                .fixed_by(LaneOrder::FIX_TIME)
        }
        LaneOrder::None => {
            let what =
                format!("no column orders the rows of pipeline.{pipeline}: ids are no order");
            Finding::advice(CODE, what)
                .means("events of one aggregate may be published in another order than written")
                .fixed_by(LaneOrder::FIX)
        }
    }
}

/// Whether the other ends answer. Nothing is sent; what is only local is not looked at.
async fn sinks(pipeline: &Pipeline, is_only_sql: bool) -> Vec<Finding> {
    const CODE: &str = "sink";
    const PATIENCE: Duration = Duration::from_secs(10);
    let mut findings = Vec::new();
    for sink in pipeline.sinks.iter().filter(|sink| sink.is_remote() && !is_only_sql) {
        let name = &sink.name;
        let asked = async { sink.connect.connect().await?.check().await };
        let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
            let what = format!("no answer within {} s", PATIENCE.as_secs());
            Err(Failure::unavailable("E-SINK-SILENT", what))
        });
        findings.push(match answer {
            Ok(()) => Finding::good(CODE, format!("sink.{name} answers")),
            Err(failure) => {
                let found = Finding::of_failure(Severity::Problem, CODE, &failure);
                let what = format!("sink.{name}: {}", found.what);
                let effect =
                    format!("pipeline.{} publishes nothing; its events wait", pipeline.name);
                let mut found = found.means(effect);
                found.what = what;
                found
            }
        });
    }
    findings
}

/// Whether a pipeline reads the log.
pub(super) fn log_of(pipeline: &Pipeline) -> Log {
    let source = &pipeline.source;
    let can = source.kind.tails
        && source.mapping.is_none()
        && pipeline.team.coordination == Coordination::Leader;
    match source.following.mode {
        _ if source.messages.is_some() => Log::Required,
        Mode::Tail => Log::Required,
        Mode::Auto if can => Log::WherePossible,
        Mode::Auto | Mode::Poll => Log::Unread,
    }
}

fn several(databases: &BTreeMap<String, Needs>) -> Problem {
    let what = format!("SQL is for one database, and the configuration has {}", databases.len());
    let failure = Failure::misconfigured("E-SEVERAL-DATABASES", what)
        .with_fix("say which one with --database URL");
    let places = databases.keys().map(|url| shown(url)).collect();
    Problem::at(failure, places, EFFECT).of_usage()
}

/// A database that was looked at.
struct Checked {
    place: String,
    pipelines: Vec<String>,
    findings: Vec<Finding>,
}

impl Checked {
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.place);
        for finding in &self.findings {
            let Finding { code, severity, what, .. } = finding;
            text += &format!("  {:<8} {code:<17} {what}\n", severity.as_str());
            if *severity == Severity::Good {
                continue;
            }
            text += &format!("{:11}effect            {}\n", "", finding.effect);
            for line in to_run(finding) {
                text += &format!("{:11}run               {line}\n", "");
            }
        }
        text
    }

    fn json(&self) -> Value {
        let Self { place, pipelines, findings } = self;
        json!({ "database": place, "tailing_pipelines": pipelines, "findings": findings })
    }

    /// What sets things right; whatever else there is to say is a comment.
    fn sql(&self) -> String {
        let mut sql = String::new();
        for finding in self.findings.iter().filter(|finding| finding.severity > Severity::Good) {
            let Finding { code, severity, what, .. } = finding;
            let what = what.replace('\n', " ");
            sql += &format!("-- {} {code}: {what}\n", severity.as_str());
            if let Some(fix) = &finding.fix {
                sql += &format!("-- {}\n", fix.replace('\n', " "));
            }
            if let Some(statements) = &finding.sql {
                sql += &format!("{}\n", statements.trim_end());
            }
        }
        sql
    }
}

/// In words, and the SQL if it is short.
fn to_run(finding: &Finding) -> Vec<&str> {
    const SHORT: usize = 8;
    let sql: Vec<_> = finding.sql.iter().flat_map(|sql| sql.lines()).collect();
    let is_short = sql.len() <= SHORT;
    let more = (!is_short).then_some("the SQL that `semel check --fix-sql` prints");
    let sql = if is_short { sql } else { Vec::new() };
    finding.fix.as_deref().into_iter().chain(sql).chain(more).collect()
}

fn summary(checked: &[Checked]) -> String {
    let count = |severity| {
        let all = checked.iter().flat_map(|one| &one.findings);
        all.filter(|finding| finding.severity == severity).count()
    };
    match (count(Severity::Problem), count(Severity::Advice)) {
        (0, 0) => "all right\n".into(),
        (problems, advice) => {
            let s = if problems == 1 { "" } else { "s" };
            let pieces = if advice == 1 { "piece" } else { "pieces" };
            format!("{problems} problem{s}, {advice} {pieces} of advice\n")
        }
    }
}
