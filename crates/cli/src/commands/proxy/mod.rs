//! `semel proxy`: idempotency keys in front of a service in any language.

mod admin;
mod settings;

use std::sync::Arc;

use semel_core::{Failure, IdempotencyStore};
use semel_http::proxy::{Ended, Proxy};
use semel_http::{Encrypted, IdempotencyLayer, purge};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::admin::Admin;
use self::settings::Settings;
use crate::args::ProxyOptions;
use crate::counting;
use crate::exit::{Exit, Problem};
use crate::logging::Logging;
use crate::signals::{requests_to_end, requests_to_reload};
use crate::wiring::{connect_keys, shown};

const EFFECT: &str = "nothing was passed on; keys that are stored stay stored";

pub(crate) async fn run(options: &ProxyOptions) -> Result<Exit, Problem> {
    let (mut requests, mut hangups) = (requests_to_end(), requests_to_reload());
    let settings = Settings::read(options)?;
    let _logging = Logging::start()?;
    let store = connect_keys(settings.store.reveal()).await;
    let place = shown(settings.store.reveal());
    let mut store: Arc<dyn IdempotencyStore> =
        store.map_err(|failure| Problem::new(failure, place, EFFECT))?;
    if let Some(keys) = settings.encryption_keys.clone() {
        store = Arc::new(Encrypted::new(store, keys));
    }
    let (listener, admin) = (bind(settings.listen).await?, bind(settings.admin).await?);
    let metrics =
        counting::install().map_err(|failure| Problem::new(failure, "this process", EFFECT))?;

    let (stopping, stopped) = watch::channel(false);
    // They end with this function: nobody waits for them.
    let mut beside = JoinSet::new();
    let purging = purge(Arc::clone(&store));
    beside.spawn(async { match purging.await {} });
    // A terminal that closes, or a habit of those who run relays: what is running must not die of it.
    beside.spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::warn!(
                "the proxy does not read its configuration again: start it anew for another one"
            );
        }
    });
    tracing::info!("health and metrics on {}", address(&admin));
    beside.spawn(Admin { store: Arc::clone(&store), metrics, stopped }.serve(admin));
    tracing::info!("proxy listening on {}, in front of {}", address(&listener), settings.upstream);
    let (grace, proxy) = (settings.grace, proxy(settings, store));
    let stop = async move {
        requests.recv().await;
        tracing::info!("stopping: what is running is finished");
        stopping.send_replace(true);
    };
    match proxy.serve(listener, stop, grace).await {
        Ended::Finished => Ok(Exit::Done),
        Ended::CutOff => {
            tracing::warn!("time was up: what still ran keeps its keys until their leases end");
            Ok(Exit::Problems)
        }
    }
}

fn proxy(settings: Settings, store: Arc<dyn IdempotencyStore>) -> Proxy {
    let Settings { service, identity, policy, observe, routes, .. } = settings;
    let mut keys = IdempotencyLayer::new(store, policy);
    if observe {
        tracing::warn!("only observing: no request is held back");
        keys = keys.observing();
    }
    let proxy = Proxy::new(service, keys.clone());
    let proxy = identity.into_iter().fold(proxy, Proxy::tls);
    routes.into_iter().fold(proxy, |proxy, (paths, policy)| match policy {
        Some(policy) => proxy.route(paths, keys.with_policy(policy)),
        None => proxy.pass(paths),
    })
}

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener, Problem> {
    TcpListener::bind(address).await.map_err(|error| {
        let failure = Failure::misconfigured("E-PROXY-LISTEN", "cannot listen there")
            .with_source(error)
            .with_fix("choose another address with --listen or --admin");
        Problem::new(failure, address.to_string(), EFFECT)
    })
}

fn address(listener: &TcpListener) -> String {
    listener
        .local_addr()
        .map_or_else(|_| "an unknown address".into(), |address| address.to_string())
}
