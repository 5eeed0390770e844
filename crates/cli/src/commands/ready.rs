//! A pipeline that is connected, and can be started.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use semel_core::coordination::Share;
use semel_core::{Failure, Sink};
use semel_relay::{Fanout, Group, Pulse, Relay, Routed};

use super::outages::Outages;
use super::relay::EFFECT;
use super::retention;
#[cfg(feature = "page")]
use super::views::View;
use crate::config::{Pipeline, Retention, Team};
use crate::exit::Problem;
use crate::wiring::{Connecting, Database, Missing, Mode, ShareSinks};

pub(super) struct Ready {
    pub(super) name: String,
    pub(super) place: String,
    pub(super) fingerprint: u64,
    pub(super) group: Group,
    /// What tells the database of outages while it runs.
    pub(super) outages: Outages,
    /// What deletes its old events while it runs.
    pub(super) upkeep: Option<BoxFuture<'static, ()>>,
    #[cfg(feature = "page")]
    pub(super) view: View,
}

impl Ready {
    /// Connects a pipeline.
    pub(super) async fn new(
        pipeline: Pipeline,
        retention: Option<Retention>,
        drain: bool,
        pulse: Pulse,
    ) -> Result<Self, Problem> {
        let (name, place) = (pipeline.name.clone(), pipeline.place());
        let (fingerprint, retention) = (pipeline.fingerprint, retention.filter(|_| !drain));
        let problem = |failure| Problem::new(failure, &place, EFFECT);
        let database = open(&pipeline).await.map_err(problem)?;
        #[cfg(feature = "page")]
        let view = View::of(&pipeline).connected(&database);
        let upkeep = retention.map(|retention| {
            let admin = database.admin(&name, pipeline.source.mapping.as_ref());
            retention::keep(name.clone(), admin, retention).boxed()
        });
        let sinks = pipeline.sinks.iter().map(|sink| sink.name.clone()).collect();
        let insight = database.insight();
        let (group, relay) = connect(pipeline, database, drain).await.map_err(problem)?;
        let (group, told) = (group.with_pulse(pulse.clone()), name.clone());
        Ok(Self {
            name,
            place,
            fingerprint,
            group,
            outages: Outages { pipeline: told, relay, sinks, insight, pulse },
            upkeep,
            #[cfg(feature = "page")]
            view,
        })
    }
}

/// The database of a pipeline, if it has the right tables.
async fn open(pipeline: &Pipeline) -> Result<Arc<dyn Database>, Failure> {
    let url = pipeline.source.url.reveal().to_owned();
    let database = (pipeline.source.kind.connect)(url, Missing::Refuse).await?;
    database.tables().await?.check()?;
    Ok(database.into())
}

/// The group, and what the relay is called in it.
async fn connect(
    pipeline: Pipeline,
    database: Arc<dyn Database>,
    drain: bool,
) -> Result<(Group, String), Failure> {
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
    let Team { coordination, lease } = team;
    let member = database.member(&name, coordination.shares(), lease)?;
    let relay = member.name().to_owned();
    let mut shared = Vec::new();
    for sink in sinks {
        shared.push((sink.name, sink.connect.for_shares(drain).await?));
    }
    let routing = Arc::new(routing);
    let alert = match alert {
        Some(alert) => Some(alert.connect.for_alerts(drain).await?),
        None => None,
    };
    let opened = name.clone();
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
    Ok((group, relay))
}

/// The sink of a share, or several as one.
fn open_all(
    sinks: &[(String, ShareSinks)],
    pipeline: &str,
    share: Share,
) -> Connecting<Arc<dyn Sink>> {
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
        Ok(Arc::new(all) as Arc<dyn Sink>)
    })
}
