//! What is documented is what is emitted: every metric with its labels, by the processes that emit it.

#![cfg(all(feature = "page", feature = "postgres", feature = "proxy"))]

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use semel_backends::postgres::PostgresConfig;
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
use semel_core::telemetry::{self, Kind, Metric};
use semel_core::{Event, Failure, Message, Sink};
use semel_relay::{Consumer, Relay as Engine, Stop, handler_fn};
use semel_testkit::services::{Service, service};
use sqlx::{AnyConnection, AssertSqlSafe, Connection};

use crate::page::relay::{Relay, large};
use crate::proxy::program::{self, Program};
use crate::shop::Shop;

const PATIENCE: Duration = Duration::from_secs(60);

/// What a process says: metrics, each with its kind, the names of its labels and one of its lines.
type Told = BTreeMap<(String, String, BTreeSet<String>), String>;

#[test]
fn every_metric_that_is_documented_is_emitted_and_no_other() {
    if service(Service::Postgres).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut told = told_by_a_consumer();
    told.extend(runtime.block_on(told_by_proxies()));
    told.extend(told_by_a_relay(&runtime));
    told.extend(told_by_a_carrier(&runtime));
    let emitted: BTreeSet<_> = told.into_keys().collect();
    let documented: BTreeSet<_> = telemetry::ALL.iter().map(signature).collect();
    let differing: Vec<_> = documented.symmetric_difference(&emitted).collect();
    assert!(differing.is_empty(), "emitted or documented, not both: {differing:#?}");
}

/// Name, kind and labels, as they are documented.
fn signature(metric: &Metric) -> (String, String, BTreeSet<String>) {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let own = metric.labels.iter().map(ToString::to_string);
    (metric.name.to_owned(), kind.to_owned(), own.collect())
}

/// A relay on PostgreSQL that tails the log and has an event that it cannot publish, with one behind it.
fn told_by_a_relay(runtime: &tokio::runtime::Runtime) -> Told {
    let url = runtime.block_on(program::postgres()).unwrap();
    let shop = Shop::new();
    let relay = Relay::over(&shop, &url, "1KiB", "");
    runtime.block_on(async {
        let mut connection = AnyConnection::connect(&url).await.unwrap();
        for payload in [large(), "{}".into()] {
            let insert = format!(
                "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', '1', 'OrderPlaced', '{payload}'), ('order', '2', 'OrderPaid', '{{}}')"
            );
            sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
        }
    });
    let (deadline, of_a_pipeline) = (Instant::now() + PATIENCE, |metric: &&Metric| {
        metric.labels.contains(&"pipeline") && **metric != telemetry::MESSAGES_CARRIED
    });
    loop {
        let told = read(&relay.get("/metrics", "").1);
        let missing: Vec<_> = telemetry::ALL
            .iter()
            .filter(of_a_pipeline)
            .filter(|metric| !told.contains_key(&signature(metric)))
            .map(|metric| metric.name)
            .collect();
        let wanted = [
            (telemetry::SOURCE_TAILING, "{pipeline=\"orders\"} 1"),
            (telemetry::SOURCE_HANDOVERS, "{pipeline=\"orders\",to=\"tail\"} 1"),
            (telemetry::EVENTS_DEAD, "{pipeline=\"orders\"} 1"),
            (telemetry::PARKED_AGGREGATES, "{pipeline=\"orders\"} 1"),
            // The only one that waits is behind a dead letter: that is no fault of the relay.
            (telemetry::OLDEST_PENDING_AGE, "{pipeline=\"orders\"} 0"),
            (telemetry::SLOT_LIMIT_BYTES, "{pipeline=\"orders\"} 1073741824"),
        ];
        let said = |metric: &Metric| told.get(&signature(metric)).cloned().unwrap_or_default();
        let wrong: Vec<_> = wanted
            .iter()
            .map(|(metric, end)| (said(metric), format!("{}{end}", metric.name)))
            .filter(|(said, wanted)| said != wanted)
            .collect();
        if missing.is_empty() && wrong.is_empty() {
            return told;
        }
        assert!(Instant::now() < deadline, "missing {missing:?}, wrong {wrong:#?} in {told:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One that carries messages; its slot would keep the log of the server.
fn told_by_a_carrier(runtime: &tokio::runtime::Runtime) -> Told {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let url = program::postgres().await.unwrap();
            let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
            store.prepare_messages().await.unwrap();
            let carrying = store.carry_messages("orders").await.unwrap();
            carrying.caught_up().await.unwrap();
            let deadline = Instant::now() + PATIENCE;
            // Where there is nothing to carry, it has caught up before it says so.
            while !recorder.handle().render().contains(telemetry::MESSAGES_CARRIED.name) {
                assert!(Instant::now() < deadline, "whoever carries says nothing");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(carrying);
            let drop_slot = "select pg_drop_replication_slot(slot_name) from pg_replication_slots
                where database = current_database()";
            while let Err(error) = sqlx::raw_sql(drop_slot).execute(store.pool()).await {
                assert!(Instant::now() < deadline, "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    });
    read(&recorder.handle().render())
}

/// Proxies in front of a service that is not there: one that holds requests to their keys, and one
/// that only observes.
async fn told_by_proxies() -> Told {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut told = Told::new();
    for arguments in [&[][..], &["--observe"]] {
        let proxy = Program::with(&nobody, "memory:", "", arguments);
        told_from_zero(&proxy).await;
        let reply = proxy.client.post("/orders", Some("first"), "{}").await;
        assert_eq!(reply.status, 502, "{reply:?}");
        let unreachable =
            format!("{}{{how=\"unreachable\"}}", telemetry::PROXY_UPSTREAM_FAILED.name);
        assert_eq!(proxy.metric(&unreachable).await, 1);
        told.extend(read(proxy.admin.get("/metrics").await.text()));
    }
    told
}

/// An alert waits for these to grow, and what is born at 1 does not.
async fn told_from_zero(proxy: &Program) {
    let deadline = Instant::now() + PATIENCE;
    for how in ["unreachable", "timeout", "lost"] {
        let zero = format!("{}{{how=\"{how}\"}} 0\n", telemetry::PROXY_UPSTREAM_FAILED.name);
        // Its workers may still be starting.
        while !proxy.admin.get("/metrics").await.text().contains(&zero) {
            assert!(Instant::now() < deadline, "{zero} is not told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A consumer that takes up a message, a copy of it, and one that it refuses.
fn told_by_a_consumer() -> Told {
    let buckets = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[1.0])
        .unwrap();
    let recorder = buckets.build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (database, broker) = (MemoryDatabase::new(), MemoryBroker::new());
            let placed = Event::new("order", "1", "Placed");
            let events = [placed.clone(), placed, Event::new("order", "2", "Poison")];
            broker.publish(&events.map(|event| Message::first("orders", event))).await;
            let handler = handler_fn(|_: &mut MemoryTx, message: &Message| {
                let is_poison = message.event.event_type == "Poison";
                Box::pin(async move {
                    match is_poison {
                        true => Err(Failure::refused("E-TEST", "poison").into()),
                        false => Ok(Bytes::new()),
                    }
                })
            });
            let consumer = Consumer::new("payments", database, handler);
            let engine = Engine::new("payments", broker.subscribe("payments", &[]), consumer);
            engine.drain(Stop::never()).await.unwrap();
        });
    });
    read(&recorder.handle().render())
}

/// Reads the format of Prometheus. A histogram is one metric, whatever it is made of.
fn read(text: &str) -> Told {
    let mut told = Told::new();
    let kinds: BTreeMap<_, _> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
        let name = parts.filter(|whole| kinds.get(whole) == Some(&"histogram")).unwrap_or(name);
        let kind = kinds.get(name).copied().unwrap_or("untold").to_owned();
        // No value of ours has a comma in it.
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.split_once('=').unwrap().0.to_owned());
        let labels: BTreeSet<_> = labels.filter(|label| label != "le").collect();
        told.insert((name.to_owned(), kind, labels), line.to_owned());
    }
    told
}
