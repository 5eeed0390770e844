//! `semel relay`: runs the pipelines of the configuration until it is told to stop. SIGHUP reads the
//! configuration again.

use std::path::Path;

use semel_core::Failure;
use semel_relay::Report;
use tokio::sync::mpsc::UnboundedReceiver;

use super::fleet::{Changes, Fleet, News};
#[cfg(feature = "page")]
use super::page::Page;
use crate::args::RelayOptions;
use crate::config::Config;
#[cfg(feature = "page")]
use crate::counting;
use crate::exit::{Exit, Problem};
use crate::logging::Logging;
use crate::service_manager::ServiceManager;
use crate::signals::{requests_to_end, requests_to_reload};

pub(super) const EFFECT: &str = "no event is lost: what is not published waits in the outbox";

pub(crate) async fn run(options: &RelayOptions) -> Result<Exit, Problem> {
    let (mut requests, mut reloads) = (requests_to_end(), requests_to_reload());
    let path = &options.config.path;
    let config = Config::load(path)?;
    let _logging = Logging::start()?;
    // Before any pipeline starts: a page that comes with a reload shows those that run already.
    #[cfg(feature = "page")]
    counting::install().map_err(|failure| Problem::new(failure, "this process", EFFECT))?;
    #[cfg(feature = "page")]
    let (mut config, mut page) = (config, None);
    // Whoever drains may do so beside a relay that has the address already.
    #[cfg(feature = "page")]
    if let Some(http) = config.http.take().filter(|_| !options.drain) {
        let opened = Page::open(http).await;
        page = Some(opened.map_err(|failure| Problem::new(failure, "[http]", EFFECT))?);
    }
    let mut manager = ServiceManager::new();
    let mut fleet = Fleet::new(options.drain, manager.pulse());
    fleet.start(config);
    let (mut is_ready, mut dead, mut problem) = (false, 0, None);
    loop {
        #[cfg(feature = "page")]
        show(&mut page, &mut fleet);
        if !is_ready && fleet.has_started() {
            is_ready = true;
            manager.ready();
        }
        tokio::select! {
            Some(()) = requests.recv() => {
                stop(&mut manager, &mut fleet);
            }
            () = manager.wants_news(), if is_ready => manager.describe(&fleet.doing()),
            Some(()) = reloads.recv() => {
                manager.reloading();
                let Some(prepared) = unless_asked(&mut requests, fleet.prepare(path)).await else {
                    stop(&mut manager, &mut fleet);
                    continue;
                };
                #[cfg(feature = "page")]
                let changed = go_over(&mut fleet, prepared, &mut page).await;
                #[cfg(not(feature = "page"))]
                let changed = go_over(&mut fleet, prepared).await;
                changed.unwrap_or_else(|problem| tell_refusal(&problem));
                manager.ready();
            }
            news = fleet.next() => {
                let Some(news) = news else { break };
                if let Err(failed) = follow(&mut fleet, news, path, &mut dead) {
                    problem.get_or_insert(failed);
                    fleet.end();
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

/// Does what news ask for, and counts dead letters; gives what the relay ends with.
fn follow(fleet: &mut Fleet, news: News, path: &Path, dead: &mut u64) -> Result<(), Problem> {
    match news {
        News::Started => Ok(()),
        News::Ended(name, report) => {
            *dead += tell(&name, report);
            Ok(())
        }
        News::Failed(name, failed) => fleet.go_on_without(&name, failed),
        News::Rested(name) => fleet.revive(&name, path),
    }
}

/// Brings the page up to date with the fleet.
#[cfg(feature = "page")]
fn show(page: &mut Option<Page>, fleet: &mut Fleet) {
    if let Some(page) = page
        && let Some(views) = fleet.new_views()
    {
        page.show(views);
    }
}

fn tell_refusal(problem: &Problem) {
    let message = problem.message();
    tracing::error!("the new configuration is refused, the old one goes on\n{message}");
}

/// What comes of some work, unless it is given up because of a request.
async fn unless_asked<T>(
    requests: &mut UnboundedReceiver<()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        Some(()) = requests.recv() => None,
    }
}

fn stop(manager: &mut ServiceManager, fleet: &mut Fleet) {
    manager.stopping();
    tracing::info!("stopping: what is in flight is finished");
    fleet.stop();
}

/// Goes over to what the configuration says now. Unless all of it is right, nothing changes.
async fn go_over(
    fleet: &mut Fleet,
    prepared: Result<Option<Changes>, Problem>,
    #[cfg(feature = "page")] page: &mut Option<Page>,
) -> Result<(), Problem> {
    let Some(changes) = prepared? else { return Ok(()) };
    #[cfg(feature = "page")]
    let mut changes = changes;
    #[cfg(feature = "page")]
    Page::renew(page, changes.http.take())
        .await
        .map_err(|failure| Problem::new(failure, "[http]", EFFECT))?;
    let [kept, stopped, started] = fleet.apply(changes);
    // At once, whatever is still being connected: who may not come in any more is shut out now.
    #[cfg(feature = "page")]
    if let Some(page) = page {
        page.show(fleet.views());
    }
    tracing::info!(kept, stopped, started, "the new configuration holds");
    Ok(())
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
