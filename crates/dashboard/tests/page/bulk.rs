//! Many events are changed a page at a time: relays go on meanwhile, and what is said is what was done.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::http::StatusCode;
use semel_core::admin::{AdminStore, Cursor, EventView, Filter, Page, Selection, Stats};
use semel_core::memory::MemoryDatabase;
use semel_core::{Event, EventId, Failure, Limit, OutboxWriter, Outcome, Settlement, Source};
use semel_dashboard::{Pipeline, router};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::{get, open, post};

const CHANGES: &str = "/api/pipelines/orders/changes";
const EVENTS: usize = 1200;

/// Takes its time with each change, and does not come back from one of them.
#[derive(Clone)]
struct Slow {
    database: MemoryDatabase,
    takes: Duration,
    /// How many events each change had.
    changes: Arc<Mutex<Vec<usize>>>,
    hangs_at: usize,
}

impl Slow {
    async fn new(takes: Duration, hangs_at: usize) -> Self {
        let database = MemoryDatabase::new();
        let mut tx = database.begin().await;
        let made: Vec<_> =
            (0..EVENTS).map(|lane| Event::new("order", lane.to_string(), "Placed")).collect();
        database.append(&mut tx, &made).await.unwrap();
        tx.commit();
        let mut source = database.source();
        let batch = source.next_batch(Limit { events: EVENTS, ..Limit::default() }).await.unwrap();
        let settlements = batch.deliveries.iter().map(|delivery| {
            let failure = Failure::refused("E-TOO-LARGE", "too large");
            let outcome = Outcome::Dead { attempts: 1, failure, parks_lane: true };
            Settlement { receipt: delivery.receipt, outcome }
        });
        let settlements: Vec<_> = settlements.collect();
        assert_eq!(settlements.len(), EVENTS);
        assert!(source.settle(&settlements).await.unwrap().is_held());
        Self { database, takes, changes: Arc::default(), hangs_at }
    }

    fn shown(&self) -> Router {
        let pipeline = Pipeline::new("orders", Arc::new(self.clone()))
            .with_insight(Arc::new(self.database.clone()));
        router(open().with(pipeline))
    }

    fn changes(&self) -> Vec<usize> {
        self.changes.lock().unwrap().clone()
    }

    async fn note(&self, selection: &Selection) {
        let Selection::Ids(ids) = selection else { panic!("all of them at once") };
        let number = {
            let mut changes = self.changes.lock().unwrap();
            changes.push(ids.len());
            changes.len()
        };
        if number == self.hangs_at {
            std::future::pending::<()>().await;
        }
        sleep(self.takes).await;
    }
}

#[async_trait]
impl AdminStore for Slow {
    async fn stats(&self) -> Result<Stats, Failure> {
        self.database.stats().await
    }
    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.database.list(filter, after, limit).await
    }
    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        AdminStore::get(&self.database, id).await
    }
    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        self.note(selection).await;
        AdminStore::retry(&self.database, selection).await
    }
    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        self.note(selection).await;
        AdminStore::discard(&self.database, selection).await
    }
    async fn replay(&self, _: &Selection) -> Result<usize, Failure> {
        panic!("nobody asked for it")
    }
    async fn clean(&self, _: Duration, _: usize) -> Result<usize, Failure> {
        panic!("nobody asked for it")
    }
}

fn discard() -> Value {
    json!({"action": "discard", "q": "state:dead"})
}

async fn written_down(app: &Router) -> Value {
    let activity = get(app, "/api/pipelines/orders/activity").await.json();
    assert_eq!(activity.as_array().unwrap().len(), 1);
    activity[0]["events"].clone()
}

/// Each may take as long as one question may, all of them longer.
#[tokio::test(start_paused = true)]
async fn many_events_are_changed_page_by_page_each_with_its_own_time() {
    let slow = Slow::new(Duration::from_secs(20), 0).await;
    let (app, began) = (slow.shown(), Instant::now());
    let done = post(&app, CHANGES, discard()).await.json();
    assert_eq!(done, json!({"events": EVENTS, "dry_run": false}));
    assert_eq!(slow.changes(), [500, 500, 200]);
    assert!(began.elapsed() >= Duration::from_secs(60));
    assert_eq!(written_down(&app).await, EVENTS);
    assert_eq!(slow.database.stats().await.unwrap().counts[5], EVENTS as u64);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_ends_early_says_what_was_changed() {
    let slow = Slow::new(Duration::ZERO, 2).await;
    let app = slow.shown();
    let early = post(&app, CHANGES, json!({"action": "retry", "q": "state:dead"})).await;
    assert_eq!(early.status, StatusCode::SERVICE_UNAVAILABLE);
    let told = early.json();
    assert_eq!((&told["code"], &told["events"]), (&json!("E-HTTP-SLOW"), &json!(500)));
    let error = told["error"].as_str().unwrap();
    assert!(error.ends_with("; 500 events were changed before, and that holds"), "{error}");
    assert_eq!(written_down(&app).await, 500);
    assert_eq!(slow.database.stats().await.unwrap().counts[4], EVENTS as u64 - 500);
}

/// A page that is closed, or a command that is interrupted: the log of changes is not left open.
#[tokio::test(start_paused = true)]
async fn a_change_goes_on_when_whoever_asked_leaves() {
    let slow = Slow::new(Duration::from_secs(5), 0).await;
    let app = slow.shown();
    let asked = timeout(Duration::from_secs(7), post(&app, CHANGES, discard())).await;
    assert!(asked.is_err(), "it takes fifteen seconds");
    assert_eq!(slow.changes(), [500, 500]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(slow.changes(), [500, 500, 200]);
    assert_eq!(written_down(&app).await, EVENTS);
}
