//! Who listens hears of every look, and when nobody looks any more.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use futures_util::StreamExt;
use semel_core::memory::MemoryDatabase;
use semel_dashboard::{Dashboard, Pipeline, router};
use tokio::time::timeout;
use tower::ServiceExt;

use crate::{get, open, orders};

const PATIENCE: Duration = Duration::from_secs(60);

/// An open stream of the overview.
struct Listener(BodyDataStream);

impl Listener {
    async fn at(app: &Router) -> Self {
        let request = Request::get("/api/live").body(Body::empty()).unwrap();
        Self(app.clone().oneshot(request).await.unwrap().into_body().into_data_stream())
    }

    /// What it is told next that is no mere sign of life; nothing at the end.
    async fn next(&mut self) -> Option<String> {
        loop {
            let text = String::from_utf8(self.0.next().await?.unwrap().to_vec()).unwrap();
            if text.starts_with("data:") {
                return Some(text);
            }
        }
    }

    async fn hears(&mut self, what: &str) {
        let heard = async { while !self.next().await.expect("no end").contains(what) {} };
        timeout(PATIENCE, heard).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    async fn comes_to_its_end(mut self) {
        let rest = async { while self.next().await.is_some() {} };
        timeout(PATIENCE, rest).await.expect("it goes on");
    }
}

fn shown(database: &MemoryDatabase, name: &str) -> Dashboard {
    let pipeline = Pipeline::new(name, Arc::new(database.clone()));
    open().with(pipeline)
}

/// As a relay does that reads its configuration again: another dashboard comes, and the old one is
/// not watched any more.
#[tokio::test]
async fn a_stream_ends_with_who_looks_and_another_tells_of_what_is_new() {
    let (database, _) = orders().await;
    let old = shown(&database, "orders");
    let watching = tokio::spawn(old.watch());
    let app = router(old);
    let mut listener = Listener::at(&app).await;
    listener.hears("\"dead\":1").await;
    watching.abort();
    listener.comes_to_its_end().await;

    let new = shown(&database, "invoices");
    let _watching = tokio::spawn(new.watch());
    let app = router(new);
    let mut listener = Listener::at(&app).await;
    listener.hears("\"name\":\"invoices\"").await;
    listener.hears("\"dead\":1").await;
}

/// A visitor may come before the first look.
#[tokio::test]
async fn who_watches_is_decided_before_the_first_visitor_comes() {
    let (database, _) = orders().await;
    let dashboard = shown(&database, "orders");
    let watching = dashboard.watch();
    let app = router(dashboard.clone());
    let mut listener = Listener::at(&app).await;
    listener.hears("\"name\":\"orders\"").await;
    drop(watching);
    listener.comes_to_its_end().await;
}

/// Without anybody who watches, visitors begin it, and it ends with what serves them.
#[tokio::test]
async fn a_stream_does_not_keep_a_router_alive() {
    let (database, _) = orders().await;
    let app = router(shown(&database, "orders"));
    let mut listener = Listener::at(&app).await;
    listener.hears("\"dead\":1").await;
    drop(app);
    listener.comes_to_its_end().await;
}

#[tokio::test]
async fn the_overview_says_how_old_it_is() {
    let (database, _) = orders().await;
    let app = router(shown(&database, "orders"));
    let mut listener = Listener::at(&app).await;
    assert!(listener.next().await.unwrap().contains("\"age\":null"), "before the first look");
    listener.hears("\"dead\":1").await;
    let age = get(&app, "/api/overview").await.json()["age"].as_f64().unwrap();
    assert!((0.0..60.0).contains(&age), "{age}");
}
