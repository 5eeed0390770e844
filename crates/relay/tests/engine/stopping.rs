//! Stopping, and losing ownership (O5).

use std::time::Duration;

use semel_core::Published;
use semel_core::admin::{AdminStore, State};
use semel_relay::Stop;
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{Bench, Scripted, commit};

fn slow() -> Scripted {
    Scripted::new(|_| async {
        sleep(Duration::from_secs(3)).await;
        Published::All
    })
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_is_finished_and_settled() {
    let bench = Bench::with(&["a:1", "b:1"]).await;
    let (stopper, stop) = Stop::new();
    let sink = slow();
    let running = tokio::spawn(bench.relay(&sink).run(stop));
    sleep(Duration::from_secs(1)).await;
    commit(&bench.database, &["c:1"]).await;
    stopper.stop();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, report.abandoned), (2, 0));
    let stats = bench.database.stats().await.unwrap();
    assert_eq!((stats.count(State::Published), stats.count(State::Pending)), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_leaves_at_once() {
    let bench = Bench::with(&["a:1"]).await;
    let (stopper, stop) = Stop::new();
    let sink = slow();
    let running = tokio::spawn(bench.relay(&sink).run(stop));
    sleep(Duration::from_secs(1)).await;
    let asked = Instant::now();
    stopper.stop();
    stopper.stop();
    let report = running.await.unwrap().unwrap();
    assert!(asked.elapsed() < Duration::from_millis(10));
    assert_eq!((report.published, report.abandoned), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever() {
    let bench = Bench::with(&["a:1"]).await;
    let (stopper, stop) = Stop::new();
    let sink = Scripted::new(|_| std::future::pending());
    let settings =
        semel_relay::Settings { publish_timeout: Duration::from_secs(600), ..Default::default() };
    let running = tokio::spawn(bench.relay(&sink).with_settings(settings).run(stop));
    sleep(Duration::from_secs(1)).await;
    let asked = Instant::now();
    stopper.stop();
    let report = timeout(Duration::from_secs(11), running).await.unwrap().unwrap().unwrap();
    assert_eq!(asked.elapsed().as_secs(), 10);
    assert_eq!(report.abandoned, 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_stops_at_once_and_wakes_for_a_commit() {
    let bench = Bench::with(&[]).await;
    let (stopper, stop) = Stop::new();
    let sink = Scripted::confirming();
    let running = tokio::spawn(bench.relay(&sink).run(stop));
    sleep(Duration::from_millis(250)).await;
    commit(&bench.database, &["a:1"]).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(sink.sent(), ["a:1"], "woken by the commit, not by the poll");
    stopper.stop();
    assert_eq!(running.await.unwrap().unwrap().published, 1);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_lost_ownership_drops_what_it_holds() {
    let bench = Bench::with(&["a:1", "b:1"]).await;
    let (stopper, stop) = Stop::new();
    let old_sink = slow();
    let one_at_a_time =
        semel_relay::Settings { batch_events: 1, concurrency: Some(1), ..Default::default() };
    let old = bench.relay(&old_sink).with_settings(one_at_a_time);
    let old = tokio::spawn(old.run(stop));
    sleep(Duration::from_secs(1)).await;

    let new_sink = Scripted::confirming();
    bench.relay(&new_sink).drain(Stop::never()).await.unwrap();
    assert_eq!(new_sink.sent(), ["a:1", "b:1"]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(old_sink.sent(), ["a:1"], "nothing after the settle that was refused");
    let stats = bench.database.stats().await.unwrap();
    assert_eq!(stats.count(State::Published), 2);
    stopper.stop();
    assert_eq!(old.await.unwrap().unwrap().abandoned, 0);
}
