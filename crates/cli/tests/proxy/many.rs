//! Many at once: over three processes there is one execution.

use futures_util::future::join_all;
use semel_core::EventId;

use super::client::Reply;
use super::program::{Program, postgres, redis};
use super::upstream::Upstream;

/// How often the race is run; more often in a long run.
fn rounds() -> usize {
    std::env::var("SEMEL_TEST_PROXY_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

const REQUESTS: usize = 200;

/// 200 identical requests over three proxies, again and again.
async fn race(store: &str) {
    let upstream = Upstream::start().await;
    // A machine that stands still for a while must not let a lease run out.
    let more = "wait = \"60s\"\nlease = \"10m\"";
    let proxies = [(); 3].map(|()| Program::start(&upstream.address, store, more));
    for round in 1..=rounds() {
        let key = EventId::now().to_string();
        let requests = (0..REQUESTS).map(|number| {
            let client = &proxies[number % proxies.len()].client;
            client.insist("/slow", &key, "{\"total\":99}")
        });
        let replies = join_all(requests).await;
        let heads = upstream.heads().split_off(round - 1);
        assert_eq!(upstream.taken(), round, "executions of round {round}: {heads:#?}");
        let order = format!("{{\"order\":{round}}}");
        let is_right = |reply: &&Reply| reply.status == 201 && reply.text() == order;
        let wrong = replies.iter().find(|reply| !is_right(reply));
        assert_eq!(wrong, None, "round {round}");
        let first = replies.iter().filter(|reply| !reply.is_replayed()).count();
        assert_eq!(first, 1, "one of them ran it, the others got its answer");
    }
    let mut executed = 0;
    for proxy in &proxies {
        // Not stored is what a store that stands still makes of it: it is stored a little later.
        for outcome in ["executed", "not_stored"] {
            let metric = format!("semel_idempotency_requests_total{{outcome=\"{outcome}\"}}");
            executed += proxy.metric(&metric).await;
        }
    }
    assert_eq!(executed, rounds() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_proxies_on_one_redis_run_it_once() {
    let Some(store) = redis() else { return };
    race(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_proxies_on_one_postgres_run_it_once() {
    let Some(store) = postgres().await else { return };
    race(&store).await;
}

/// Without waiting, everybody else is told to come again; nobody runs it twice.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_wait_is_told_to_come_again() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "wait = \"0s\"");
    let running = proxy.client.open(super::client::post("/gated", Some("k"), "1").as_bytes()).await;
    upstream.until_taken(1).await;
    let reply = proxy.client.post("/gated", Some("k"), "1").await;
    assert_eq!((reply.status, reply.problem()), (409, "in-progress"));
    assert!(reply.header("retry-after").is_some());
    let reply = proxy.client.post("/gated", Some("k"), "2").await;
    assert_eq!((reply.status, reply.problem()), (422, "key-reused"));
    upstream.open_gate();
    drop(running);
    let reply = loop {
        let reply = proxy.client.post("/gated", Some("k"), "1").await;
        if reply.status != 409 {
            break reply;
        }
    };
    assert!(reply.status == 201 && reply.is_replayed(), "{reply:?}");
    assert_eq!(upstream.taken(), 1);
}
