//! Temporary.
use std::time::Instant;
use semel_testkit::workload::{event, events};
use semel_core::{Limit, Outcome, Settlement, Source};
use super::database;

#[tokio::test]
#[ignore]
async fn measure() {
    let database = database!();
    let fill = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
        SELECT 'order', seq % 1000, 'T', repeat('x', 200) FROM seq_1_to_200000";
    for (what, old) in [("plain", false), ("old snapshot", true)] {
        let mut snapshot = None;
        if old {
            let mut tx = database.pool().begin().await.unwrap();
            sqlx::query("SELECT count(*) FROM semel_outbox").execute(&mut *tx).await.unwrap();
            snapshot = Some(tx);
        }
        let t = Instant::now();
        database.run(fill).await;
        eprintln!("{what}: fill {:?}", t.elapsed());
        for batch in [100, 1000] {
            let mut relay = database.relay().await;
            let t = Instant::now();
            let mut n = 0;
            while n < 100_000 {
                let limit = Limit { events: batch, ..Limit::default() };
                let got = relay.source.next_batch(limit).await.unwrap().deliveries;
                n += got.len();
                let s: Vec<_> = got.iter().map(|g| Settlement { receipt: g.receipt, outcome: Outcome::Delivered }).collect();
                assert!(relay.source.settle(&s).await.unwrap().is_held());
            }
            eprintln!("{what}: batch {batch}: {:.0} events/s", n as f64 / t.elapsed().as_secs_f64());
        }
        let mut relay = database.relay().await;
        relay.deliver_all(1000).await;
        let t = Instant::now();
        for _ in 0..20 { assert!(relay.take(100).await.is_empty()); }
        eprintln!("{what}: empty poll {:?}", t.elapsed() / 20);
        let t = Instant::now();
        for n in 0..50 { database.commit(&[event("a", n)]).await; assert_eq!(relay.deliver_all(100).await.len(), 1); }
        eprintln!("{what}: commit, read, settle, and an empty poll {:?}", t.elapsed() / 50);
        drop(snapshot);
    }
    let mut relay = database.relay().await;
    let mut open = database.begin().await;
    database.append(&mut open, &events("open", 0..50_000)).await;
    let t = Instant::now();
    for _ in 0..20 { assert!(relay.take(100).await.is_empty()); }
    eprintln!("50000 rows open: empty poll {:?}", t.elapsed() / 20);
}
