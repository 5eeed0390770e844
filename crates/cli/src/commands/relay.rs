//! `semel relay`: runs the pipelines of the configuration until it is told to stop. SIGHUP reads the
//! configuration again.

use std::path::Path;
use std::sync::Arc;

use semel_core::Failure;
use semel_core::coordination::Share;
use semel_relay::{Fanout, Group, Relay, Report, Routed};
use tokio::task::{AbortHandle, JoinSet};

use super::fleet::{Fleet, News};
#[cfg(feature = "page")]
use super::page::Page;
use super::retention;
use crate::args::RelayOptions;
use crate::config::{Config, Pipeline, Retention, Team};
use crate::exit::{Exit, Problem};
use crate::logging::Logging;
use crate::service_manager::ServiceManager;
use crate::signals::{requests_to_end, requests_to_reload};
use crate::wiring::{Connecting, Database, Missing, Mode, ShareSinks};

pub(super) const EFFECT: &str = "no event is lost: what is not published waits in the outbox";

pub(crate) async fn run(options: &RelayOptions) -> Result<Exit, Problem> {
    let (mut requests, mut reloads) = (requests_to_end(), requests_to_reload());
    let path = &options.config.path;
    let config = Config::load(path)?;
    let _logging = Logging::start()?;
    #[cfg(feature = "page")]
    let (mut config, mut page) = (config, None);
    // Whoever drains may do so beside a relay that has the address already.
    #[cfg(feature = "page")]
    if let Some(http) = config.http.take().filter(|_| !options.drain) {
        let bound = Page::bind(http).await;
        page = Some(bound.map_err(|failure| Problem::new(failure, "[http]", EFFECT))?);
    }
    let mut manager = ServiceManager::new();
    let mut fleet = Fleet::new(options.drain, manager.pulse());
    fleet.start(config).await?;
    #[cfg(feature = "page")]
    if let Some(page) = &mut page {
        page.show(fleet.views());
    }
    manager.ready();
    let mut dead = 0;
    let mut problem = None;
    loop {
        tokio::select! {
            Some(()) = requests.recv() => {
                manager.stopping();
                tracing::info!("stopping: what is in flight is finished");
                fleet.stop();
            }
            () = manager.wants_news() => manager.describe(&fleet.doing()),
            Some(()) = reloads.recv() => {
                manager.reloading();
                #[cfg(feature = "page")]
                let changed = reload(&mut fleet, path, &mut page).await;
                #[cfg(not(feature = "page"))]
                let changed = reload(&mut fleet, path).await;
                changed.unwrap_or_else(|problem| tell_refusal(&problem));
                manager.ready();
            }
            news = fleet.next() => match news {
                None => break,
                Some(News::Ended(name, Ok(report))) => dead += tell(&name, report),
                Some(News::Ended(name, Err(failed))) => {
                    if !fleet.goes_on_without(&name, &failed) {
                        problem.get_or_insert(failed);
                        fleet.stop();
                    }
                }
                Some(News::Rested(name)) => fleet.revive(&name, path).await,
            }
        }
    }
    match problem {
        Some(problem) => Err(problem),
        None if options.drain && dead > 0 => Ok(Exit::Problems),
        None => Ok(Exit::Done),
    }
}

fn tell_refusal(problem: &Problem) {
    let message = problem.message();
    tracing::error!("the new configuration is refused, the old one goes on\n{message}");
}

/// Goes over to what the configuration says now. Unless all of it is right, nothing changes.
async fn reload(
    fleet: &mut Fleet,
    path: &Path,
    #[cfg(feature = "page")] page: &mut Option<Page>,
) -> Result<(), Problem> {
    let Some(changes) = fleet.prepare(path).await? else { return Ok(()) };
    #[cfg(feature = "page")]
    let mut changes = changes;
    #[cfg(feature = "page")]
    if let Err(failure) = Page::renew(page, changes.http.take()).await {
        changes.give_up();
        return Err(Problem::new(failure, "[http]", EFFECT));
    }
    let [kept, stopped, started] = fleet.apply(changes);
    #[cfg(feature = "page")]
    if let Some(page) = page {
        page.show(fleet.views());
    }
    tracing::info!(kept, stopped, started, "the new configuration holds");
    Ok(())
}

/// The database of a pipeline, if it has the right tables.
pub(super) async fn open(pipeline: &Pipeline) -> Result<Arc<dyn Database>, Failure> {
    let url = pipeline.source.url.reveal().to_owned();
    let database = (pipeline.source.kind.connect)(url, Missing::Refuse).await?;
    database.tables().await?.check()?;
    Ok(database.into())
}

/// A pipeline that can be started, and what deletes its old events meanwhile.
pub(super) async fn connect(
    pipeline: Pipeline,
    database: Arc<dyn Database>,
    retention: Option<Retention>,
    drain: bool,
    upkeep: &mut JoinSet<()>,
) -> Result<(Group, Option<AbortHandle>), Failure> {
    let Pipeline { name, source, sinks, routing, settings, team, alert, .. } = pipeline;
    let (mapping, mut following) = (source.mapping, source.following);
    let mut listening = Vec::new();
    if source.notify || source.messages.is_some() {
        listening.push(database.listen().await?);
    }
    if let Some(messages) = source.messages {
        // Whoever carries messages notifies, and no second slot is needed.
        following.mode = Mode::Poll;
        let url = source.url.reveal().to_owned();
        listening.push((messages.carry)(url, name.clone(), drain).await?);
    }
    let kept = retention.map(|retention| {
        let admin = database.admin(&name, mapping.as_ref());
        (retention::keep(name.clone(), admin, retention), &mut *upkeep)
    });
    let Team { coordination, lease } = team;
    let member = database.member(&name, coordination.shares(), lease)?;
    let mut shared = Vec::new();
    for sink in sinks {
        shared.push((sink.name, sink.connect.for_shares(drain).await?));
    }
    let routing = Arc::new(routing);
    let alert = match alert {
        Some(alert) => Some(alert.connect.connect().await?),
        None => None,
    };
    let opened = name.clone();
    let keeper = kept.map(|(keeping, upkeep)| upkeep.spawn(keeping));
    let group = Group::new(name, member, coordination, move |share| {
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
    });
    Ok((group, keeper))
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

pub(super) fn crashed(error: tokio::task::JoinError) -> Problem {
    let failure = Failure::refused("E-RELAY-PANIC", "the relay panicked")
        .with_source(error)
        .with_fix("report this, with the lines above; starting it again is safe");
    Problem::new(failure, "semel relay", EFFECT)
}
