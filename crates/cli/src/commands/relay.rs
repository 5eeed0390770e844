//! `semel relay`: runs the pipelines of the configuration until it is told to stop.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use semel_core::Failure;
use semel_core::coordination::Share;
use semel_relay::{Fanout, Group, Relay, Report, Routed, Stop};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

use super::retention;
use crate::args::RelayOptions;
use crate::config::{Config, Pipeline, Retention, Team};
use crate::exit::{Exit, Problem};
use crate::signals::requests_to_end;
use crate::wiring::{Connecting, Database, Missing, Mode, ShareSinks};

const EFFECT: &str = "no event is lost: what is not published waits in the outbox";

pub(crate) async fn run(options: &RelayOptions) -> Result<Exit, Problem> {
    let mut requests = requests_to_end();
    let config = Config::load(&options.config.path)?;
    log_to_stderr();
    let (stopper, stop) = Stop::new();
    let mut running = JoinSet::new();
    // Ends with this function: nobody waits for it.
    let mut upkeep = JoinSet::new();
    let retention = config.retention.filter(|_| !options.drain);
    for pipeline in config.pipelines {
        let (name, place) = (pipeline.name.clone(), pipeline.place());
        let connected = connect(pipeline, retention, options.drain, &mut upkeep).await;
        let relay = connected.map_err(|failure| Problem::new(failure, &place, EFFECT))?;
        tracing::info!(pipeline = name, "relay started: {place}");
        let (stop, drain) = (stop.clone(), options.drain);
        running.spawn(async move {
            let ended = if drain { relay.drain(stop).await } else { relay.run(stop).await };
            (name, ended.map_err(|failure| Problem::new(failure, place, EFFECT)))
        });
    }

    let mut dead = 0;
    let mut problem = None;
    loop {
        tokio::select! {
            Some(()) = requests.recv() => {
                tracing::info!("stopping: what is in flight is finished");
                stopper.stop();
            }
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok((name, Ok(report)))) => dead += tell(&name, report),
                Some(Ok((_, Err(failed)))) => {
                    problem.get_or_insert(failed);
                    stopper.stop();
                }
                Some(Err(panicked)) => {
                    problem.get_or_insert(crashed(panicked));
                    stopper.stop();
                }
            }
        }
    }
    match problem {
        Some(problem) => Err(problem),
        None if options.drain && dead > 0 => Ok(Exit::Problems),
        None => Ok(Exit::Done),
    }
}

async fn connect(
    pipeline: Pipeline,
    retention: Option<Retention>,
    drain: bool,
    upkeep: &mut JoinSet<()>,
) -> Result<Group, Failure> {
    let Pipeline { name, source, sinks, routing, settings, team, alert } = pipeline;
    let url = source.url.reveal().to_owned();
    let database: Arc<dyn Database> =
        (source.kind.connect)(url.clone(), Missing::Refuse).await?.into();
    database.tables().await?.check()?;
    let (mapping, mut following) = (source.mapping, source.following);
    let mut listening = Vec::new();
    if source.notify || source.messages.is_some() {
        listening.push(database.listen().await?);
    }
    if let Some(messages) = source.messages {
        // Whoever carries messages notifies, and no second slot is needed.
        following.mode = Mode::Poll;
        listening.push((messages.carry)(url, name.clone(), drain).await?);
    }
    if let Some(retention) = retention {
        let admin = database.admin(&name, mapping.as_ref());
        upkeep.spawn(retention::keep(name.clone(), admin, retention));
    }
    let Team { coordination, lease } = team;
    let member = database.member(&name, coordination.shares(), lease)?;
    let mut shared = Vec::new();
    for sink in sinks {
        shared.push((sink.name, sink.connect.for_shares().await?));
    }
    let routing = Arc::new(routing);
    let alert = match alert {
        Some(alert) => Some(alert.connect.connect().await?),
        None => None,
    };
    let opened = name.clone();
    Ok(Group::new(name, member, coordination, move |share| {
        // For as long as the group lives.
        let _ = &listening;
        let (database, alert) = (Arc::clone(&database), alert.clone());
        let (name, mapping, settings) = (opened.clone(), mapping.clone(), settings.clone());
        let (routing, connecting) = (Arc::clone(&routing), open_all(&shared, &name, share));
        async move {
            let sink = Routed::by(connecting.await?, routing);
            let source = match mapping {
                Some(mapping) => database.mapped_source(&name, &mapping).await?,
                None => database.source(&name, share, following).await?,
            };
            let relay = Relay::new(name, source, sink).with_settings(settings);
            Ok(match alert {
                Some(alert) => relay.with_alert(alert),
                None => relay,
            })
        }
    }))
}

/// The sink of a share, or several as one.
fn open_all(
    sinks: &[(String, ShareSinks)],
    pipeline: &str,
    share: Share,
) -> Connecting<Arc<dyn semel_core::Sink>> {
    if let [(_, only)] = sinks {
        return only.open(pipeline, share);
    }
    let open = |(name, sink): &(String, ShareSinks)| (name.clone(), sink.open(pipeline, share));
    let connecting: Vec<_> = sinks.iter().map(open).collect();
    Box::pin(async move {
        let mut all = Fanout::new();
        for (name, sink) in connecting {
            all = all.with(name, sink.await?);
        }
        Ok(Arc::new(all) as Arc<dyn semel_core::Sink>)
    })
}

/// Logs what a relay did; says how many dead letters it made.
fn tell(name: &str, report: Report) -> u64 {
    let Report { published, failed, dead, abandoned, .. } = report;
    tracing::info!(pipeline = name, published, failed, dead, abandoned, "relay ended");
    if dead > 0 {
        tracing::warn!(pipeline = name, dead, "dead letters: run semel dead list");
    }
    dead
}

fn crashed(error: tokio::task::JoinError) -> Problem {
    let failure = Failure::refused("E-RELAY-PANIC", "the relay panicked")
        .with_source(error)
        .with_fix("report this, with the lines above; starting it again is safe");
    Problem::new(failure, "semel relay", EFFECT)
}

/// One of the client libraries would print payloads, another what is told anyway.
const USUAL: &str = "info,lapin::returned_messages=error,pgwire_replication=off";

/// Standard output belongs to the events.
pub(super) fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("SEMEL_LOG").unwrap_or_else(|_| EnvFilter::new(USUAL));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}
