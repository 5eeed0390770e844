//! `semel relay`: runs the pipelines of the configuration until it is told to stop.

use std::sync::Arc;

use semel_core::Failure;
use semel_core::coordination::Share;
use semel_relay::{Fanout, Group, Relay, Report, Routed, Stop};
use tokio::task::JoinSet;

#[cfg(feature = "page")]
use super::page::{About, Page};
use super::retention;
use crate::args::RelayOptions;
use crate::config::{Config, Pipeline, Retention, Team};
use crate::exit::{Exit, Problem};
use crate::logging::Logging;
use crate::service_manager::ServiceManager;
use crate::signals::requests_to_end;
use crate::wiring::{Connecting, Database, Missing, ShareSinks};

const EFFECT: &str = "no event is lost: what is not published waits in the outbox";

pub(crate) async fn run(options: &RelayOptions) -> Result<Exit, Problem> {
    let mut requests = requests_to_end();
    let config = Config::load(&options.config.path)?;
    let _logging = Logging::start()?;
    let (stopper, stop) = Stop::new();
    let mut running = JoinSet::new();
    // Ends with this function: nobody waits for it.
    let mut upkeep = JoinSet::new();
    let retention = config.retention.filter(|_| !options.drain);
    #[cfg(feature = "page")]
    let mut page = match config.http {
        Some(http) => Some(
            Page::bind(http).await.map_err(|failure| Problem::new(failure, "[http]", EFFECT))?,
        ),
        None => None,
    };
    for pipeline in config.pipelines {
        let (name, place) = (pipeline.name.clone(), pipeline.place());
        let problem = |failure| Problem::new(failure, &place, EFFECT);
        let database = open(&pipeline).await.map_err(problem)?;
        #[cfg(feature = "page")]
        if let Some(page) = &mut page {
            page.show(About::of(&pipeline), &database);
        }
        let connected = connect(pipeline, database, retention, &mut upkeep).await;
        let relay = connected.map_err(problem)?;
        tracing::info!(pipeline = name, "relay started: {place}");
        let (stop, drain) = (stop.clone(), options.drain);
        running.spawn(async move {
            let ended = if drain { relay.drain(stop).await } else { relay.run(stop).await };
            (name, ended.map_err(|failure| Problem::new(failure, place, EFFECT)))
        });
    }

    #[cfg(feature = "page")]
    if let Some(page) = page {
        page.serve(&mut upkeep);
    }
    let manager = ServiceManager::ready();
    let mut dead = 0;
    let mut problem = None;
    loop {
        tokio::select! {
            Some(()) = requests.recv() => {
                manager.stopping();
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

/// The database of a pipeline, if it has the right tables.
async fn open(pipeline: &Pipeline) -> Result<Arc<dyn Database>, Failure> {
    let url = pipeline.source.url.reveal().to_owned();
    let database = (pipeline.source.kind.connect)(url, Missing::Refuse).await?;
    database.tables().await?.check()?;
    Ok(database.into())
}

async fn connect(
    pipeline: Pipeline,
    database: Arc<dyn Database>,
    retention: Option<Retention>,
    upkeep: &mut JoinSet<()>,
) -> Result<Group, Failure> {
    let Pipeline { name, source, sinks, routing, settings, team, alert } = pipeline;
    let listening = if source.notify { Some(database.listen().await?) } else { None };
    let (mapping, mode) = (source.mapping, source.mode);
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
                None => database.source(&name, share, mode).await?,
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
