//! `semel relay`: runs the pipelines of the configuration until it is told to stop.

use std::io::{self, IsTerminal};

use semel_core::Failure;
use semel_relay::{Relay, Report, Routed, Stop};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

use crate::args::RelayOptions;
use crate::config::{Config, Pipeline};
use crate::exit::{Exit, Problem};
use crate::signals::requests_to_end;
use crate::wiring::Missing;

const EFFECT: &str = "no event is lost: what is not published waits in the outbox";

pub(crate) async fn run(options: &RelayOptions) -> Result<Exit, Problem> {
    let config = Config::load(&options.config.path)?;
    log_to_stderr();
    let (stopper, stop) = Stop::new();
    let mut running = JoinSet::new();
    for pipeline in config.pipelines {
        let (name, place) = (pipeline.name.clone(), pipeline.place());
        let relay =
            connect(pipeline).await.map_err(|failure| Problem::new(failure, &place, EFFECT))?;
        tracing::info!(pipeline = name, "relay started: {place}");
        let (stop, drain) = (stop.clone(), options.drain);
        running.spawn(async move {
            let ended = if drain { relay.drain(stop).await } else { relay.run(stop).await };
            (name, ended.map_err(|failure| Problem::new(failure, place, EFFECT)))
        });
    }

    let mut requests = requests_to_end();
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

async fn connect(pipeline: Pipeline) -> Result<Relay, Failure> {
    let Pipeline { name, source, sink, topic } = pipeline;
    let url = source.url.reveal().to_owned();
    let database = (source.kind.connect)(url, Missing::Refuse).await?;
    let source = database.source(&name).await?;
    let sink = (sink.connect)().await?;
    Ok(Relay::new(name, source, Routed::new(sink, topic)))
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

/// Standard output belongs to the events.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("SEMEL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
}
