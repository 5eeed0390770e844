//! Members that join and leave all the time: each effect once and in order, and work goes on.
//!
//! `SEMEL_STORM_SECONDS` says how long; members come and go every 2 seconds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, Postgres, Transaction};
use semel_core::coordination::Share;
use semel_core::{Event, Failure, HandlerError, Message, Publication, Schedule, Sink};
use semel_relay::{Consumer, Settings, Stop, Stopper, handler_fn};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, number};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use super::positions::stamped;
use super::{Group, PATIENCE, config, messages};
use crate::postgres::Database;

const LANES: u64 = 16;
const EVERY: Duration = Duration::from_secs(2);
/// The longest time without an effect, in however long a storm: a member that crashed is missed after
/// 6 seconds only, but others go on meanwhile.
const PAUSE: Duration = Duration::from_secs(6);

/// What the members go by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Ids,
    /// And one transaction in fifty is aborted by its handler.
    Positions,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn members_that_come_and_go_take_every_effect_once() {
    storm(By::Ids).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn members_that_come_and_go_take_every_effect_once_by_position() {
    storm(By::Positions).await;
}

async fn storm(by: By) {
    let Some(brokers) = service(Service::Kafka) else { return };
    let Some(database) = Database::new().await else { return };
    let seconds = std::env::var("SEMEL_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let storm = Duration::from_secs(seconds.unwrap_or(12));
    let pool = database.store.pool().clone();
    sqlx::raw_sql("create table effects (place bigserial, lane text, number bigint)")
        .execute(&pool)
        .await
        .unwrap();
    let group = Group::at(&brokers).await;
    let publishing = publish(&group, by, storm);
    let (published, longest_pause) =
        tokio::join!(publishing, come_and_go(&group, by, &database, &pool, storm));
    assert!(longest_pause < PAUSE.min(storm / 2), "nothing happened for {longest_pause:?}");

    let last = Member::join(&group, by, &database).await;
    let all = async {
        while count(&pool).await < published * LANES {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let came = timeout(PATIENCE, all).await;
    last.leave().await;
    check(&pool, published).await;
    came.expect("everything takes effect in the end");
    let ids: i64 =
        sqlx::query_scalar("select count(*) from semel.inbox").fetch_one(&pool).await.unwrap();
    let expected = if by == By::Ids { published * LANES } else { 0 };
    assert_eq!(ids.unsigned_abs(), expected, "ids are kept where they are gone by");
}

/// Publishes the next number of every lane, again and again; how many.
async fn publish(group: &Group, by: By, storm: Duration) -> u64 {
    let config = config(&group.brokers);
    let once = config.connect_exactly_once(&group.topic, Share::WHOLE);
    let once = if by == By::Positions { Some(once.await.unwrap()) } else { None };
    let (began, mut pace) = (Instant::now(), interval(Duration::from_millis(50)));
    let mut published = 0;
    while began.elapsed() < storm {
        pace.tick().await;
        let events: Vec<Event> =
            (0..LANES).map(|lane| event(&format!("lane-{lane}"), published)).collect();
        match &once {
            None => group.publish(events).await,
            Some(sink) => {
                let messages = stamped(messages(&group.topic, events), Publication::First);
                assert!(sink.publish(&messages).await.all_confirmed());
            }
        }
        published += 1;
    }
    published
}

/// Two members, then three, then two others …; the longest time in which nothing took effect.
async fn come_and_go(
    group: &Group,
    by: By,
    database: &Database,
    pool: &PgPool,
    storm: Duration,
) -> Duration {
    let began = Instant::now();
    let mut members =
        vec![Member::join(group, by, database).await, Member::join(group, by, database).await];
    let (mut done, mut since, mut longest) = (count(pool).await, Instant::now(), Duration::ZERO);
    let (mut change, mut left) = (began + EVERY, 0);
    while began.elapsed() < storm {
        sleep(Duration::from_millis(100)).await;
        let now = count(pool).await;
        if now > done {
            longest = longest.max(since.elapsed());
            (done, since) = (now, Instant::now());
        }
        if Instant::now() < change {
            continue;
        }
        change += EVERY;
        if members.len() < 3 {
            members.push(Member::join(group, by, database).await);
            continue;
        }
        left += 1;
        match left % 2 {
            1 => members.remove(0).crash().await,
            _ => members.remove(0).leave().await,
        }
    }
    assert!(left >= 2 || storm < EVERY * 6, "one crashes, one leaves");
    let longest = longest.max(since.elapsed());
    for member in members {
        member.leave().await;
    }
    longest
}

struct Member {
    stopper: Stopper,
    running: JoinHandle<Result<semel_relay::Report, Failure>>,
}

impl Member {
    async fn join(group: &Group, by: By, database: &Database) -> Self {
        let config = group.config(&group.brokers, "storm");
        let subscription = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
        let calls = AtomicU64::new(0);
        let charge =
            handler_fn(move |tx: &mut Transaction<'static, Postgres>, message: &Message| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move {
                    let event = &message.event;
                    sqlx::query("insert into effects (lane, number) values ($1, $2)")
                        .bind(&event.aggregate_id)
                        .bind(i64::try_from(number(event)).unwrap())
                        .execute(&mut **tx)
                        .await
                        .map_err(|error| Failure::transient("E-TEST", error.to_string()))?;
                    if by == By::Positions && call % 50 == 49 {
                        return Err(HandlerError::retry("this time"));
                    }
                    Ok(bytes::Bytes::new())
                })
            });
        let store = &database.store;
        let schedule = Schedule::new(vec![Duration::from_millis(10); 9]);
        let settings =
            Settings { batch_events: 20, in_flight_events: 80, schedule, ..Settings::default() };
        let builder = Consumer::builder("storm", store.inbox()).settings(settings);
        let builder = match by {
            By::Ids => builder,
            By::Positions => builder.dead_letters(store.letters()).by_position(store.marks()),
        };
        let consumer = builder.build_with(charge);
        let (stopper, stop) = Stop::new();
        Self { stopper, running: tokio::spawn(consumer.run(subscription, stop)) }
    }

    async fn leave(self) {
        self.stopper.stop();
        let report = timeout(PATIENCE, self.running).await.expect("it stops").unwrap();
        report.expect("no error");
    }

    /// Like a process that ends at any moment, as far as a task can.
    async fn crash(self) {
        self.running.abort();
        let _ = timeout(PATIENCE, self.running).await;
    }
}

async fn count(pool: &PgPool) -> u64 {
    let count: i64 =
        sqlx::query_scalar("select count(*) from effects").fetch_one(pool).await.unwrap();
    count.unsigned_abs()
}

/// Every number of every lane, once, and in order.
async fn check(pool: &PgPool, published: u64) {
    let rows: Vec<(String, i64)> =
        sqlx::query_as("select lane, number from effects order by place")
            .fetch_all(pool)
            .await
            .unwrap();
    let mut lanes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (lane, number) in rows {
        lanes.entry(lane).or_default().push(number.unsigned_abs());
    }
    assert_eq!(lanes.len() as u64, LANES);
    for (lane, numbers) in lanes {
        assert_eq!(numbers, (0..published).collect::<Vec<_>>(), "{lane}");
    }
}
