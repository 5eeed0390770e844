//! What goes wrong half-way: clients, proxies and upstreams that vanish.

use std::time::Duration;

use semel_core::EventId;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use super::client::post;
use super::program::{Program, mysql, postgres, redis, sqlite};
use super::upstream::Upstream;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_stops_nothing() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let client = proxy.client.open(post("/gated", Some("k"), "1").as_bytes()).await;
    upstream.until_taken(1).await;
    drop(client);
    upstream.open_gate();
    let reply = proxy.client.post("/gated", Some("k"), "1").await;
    assert_eq!((reply.status, reply.text()), (201, "{\"order\":1}"));
    assert!(reply.is_replayed());
    assert_eq!(upstream.taken(), 1);
}

/// The owner is frozen past its lease; another takes over; the late result is refused, and even
/// the owner's own client gets the successor's.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_frozen_past_its_lease_is_refused() {
    let Some(store) = redis() else { return };
    let upstream = Upstream::start().await;
    let lease = "lease = \"1s\"\nwait = \"0s\"";
    let frozen = Program::start(&upstream.address, &store, lease);
    let other = Program::start(&upstream.address, &store, lease);
    let key = EventId::now().to_string();
    let owner = {
        let (client, key) = (frozen.client.clone(), key.clone());
        tokio::spawn(async move { client.post("/gated", Some(&key), "1").await })
    };
    upstream.until_taken(1).await;
    frozen.signal("STOP");

    let successor = {
        let (client, key) = (other.client.clone(), key.clone());
        tokio::spawn(async move {
            loop {
                let reply = client.post("/gated", Some(&key), "1").await;
                if reply.status != 409 {
                    return reply;
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
    };
    upstream.until_taken(2).await;
    assert!(upstream.heads()[1].contains("idempotency-attempt: 2"), "{:?}", upstream.heads());
    // The gate lets them out in the order they came.
    upstream.open_gate();
    upstream.open_gate();
    let successor = timeout(PATIENCE, successor).await.unwrap().unwrap();
    assert_eq!((successor.status, successor.text()), (201, "{\"order\":2}"));
    frozen.signal("CONT");
    let owner = timeout(PATIENCE, owner).await.unwrap().unwrap();
    assert_eq!((owner.status, owner.text()), (201, "{\"order\":2}"), "as everybody else");
    for proxy in [&frozen, &other] {
        let reply = proxy.client.post("/gated", Some(&key), "1").await;
        assert_eq!((reply.text(), reply.is_replayed()), ("{\"order\":2}", true));
    }
    let fenced = frozen.metric("semel_idempotency_requests_total{outcome=\"fenced\"}").await;
    assert_eq!((upstream.taken(), fenced), (2, 1));
}

/// SIGKILL half-way: repetitions are told to come again until the lease has ended, and then run as
/// attempt 2. What was stored before is there for the next process.
///
/// Starts the first and the second as told; ends if that cannot be done here.
async fn kill_half_way(start: impl Fn(usize, &str, &str) -> Option<Program>) {
    let upstream = Upstream::start().await;
    // Long enough for a slow machine to ask before it has ended.
    let start = |which| start(which, &upstream.address, "lease = \"15s\"\nwait = \"0s\"");
    let Some(mut killed) = start(0) else { return };
    let (done, key) = (EventId::now().to_string(), EventId::now().to_string());
    let stored = killed.client.insist("/orders", &done, "1").await;
    let owner = killed.client.open(post("/gated", Some(&key), "1").as_bytes()).await;
    upstream.until_taken(2).await;
    killed.signal("KILL");
    killed.ended().await;
    drop(owner);
    let Some(next) = start(1) else { return };
    let again = next.client.insist("/orders", &done, "1").await;
    assert_eq!((again.is_replayed(), again.body), (true, stored.body));
    let refused = next.client.insist("/gated", &key, "1").await;
    assert_eq!((refused.status, refused.header("retry-after")), (409, Some("1")));
    upstream.open_gate();
    upstream.open_gate();
    let retries = async {
        loop {
            let reply = next.client.insist("/gated", &key, "1").await;
            if reply.status != 409 {
                return reply;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let reply = timeout(PATIENCE, retries).await.unwrap();
    assert_eq!((reply.status, reply.text(), upstream.taken()), (201, "{\"order\":3}", 3));
    assert!(upstream.heads()[2].contains("idempotency-attempt: 2"), "{:?}", upstream.heads());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_proxy_blocks_its_key_and_what_was_stored_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(folder.path());
    kill_half_way(|_, upstream, rules| Some(Program::start(upstream, &store, rules))).await;
}

/// The clock of the one that is killed is twenty minutes off the other's, either way.
async fn kill_with_clocks_apart(store: Option<String>) {
    let Some(store) = store else { return };
    for offsets in [["-10m", "+10m"], ["+10m", "-10m"]] {
        let start = |which: usize, upstream: &str, rules: &str| {
            Program::off_by(offsets[which], upstream, &store, rules, &[])
        };
        kill_half_way(start).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_proxy_blocks_its_key_on_redis_whatever_the_clocks_say() {
    kill_with_clocks_apart(redis()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_proxy_blocks_its_key_on_postgres_whatever_the_clocks_say() {
    kill_with_clocks_apart(postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_proxy_blocks_its_key_on_mysql_whatever_the_clocks_say() {
    kill_with_clocks_apart(mysql().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_not_there_leaves_the_key_free() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let proxy = Program::start(&address.to_string(), "memory:", "");
    let reply = proxy.client.post("/orders", Some("k"), "1").await;
    assert_eq!((reply.status, reply.problem()), (502, "upstream-unreachable"));
    let upstream = Upstream::at(TcpListener::bind(address).await.unwrap());
    // Even for another request: nothing was started.
    let reply = proxy.client.post("/orders", Some("k"), "2").await;
    assert_eq!((reply.status, reply.is_replayed()), (201, false));
    assert!(upstream.heads()[0].contains("idempotency-attempt: 1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_lost_half_way_is_tried_again_as_the_next_attempt() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "timeout = \"3s\"");
    for (path, status, problem) in
        [("/lost", 502, "upstream-lost"), ("/silent", 504, "upstream-timeout")]
    {
        let before = upstream.taken();
        let reply = proxy.client.post(path, Some("k"), "1").await;
        assert_eq!((reply.status, reply.problem()), (status, problem));
        assert_eq!(upstream.taken(), before + 1, "it is never sent twice by itself");
        let reply = proxy.client.post(path, Some("k"), "2").await;
        assert_eq!(reply.status, 422, "it may have been done, so it belongs to its request");
        let reply = proxy.client.post(path, Some("k"), "1").await;
        assert_eq!(reply.status, status);
        let last = upstream.heads().pop().unwrap();
        assert!(last.contains("idempotency-attempt: 2"), "{last}");
    }
    let unknown = "semel_idempotency_requests_total{outcome=\"unknown\"}";
    assert_eq!(proxy.metric(unknown).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_lost_half_way_is_never_tried_again_where_money_moves() {
    let upstream = Upstream::start().await;
    let more = "timeout = \"3s\"\n[proxy.route.money]\npath = \"/**\"\nafter_crash = \"uncertain\"";
    let proxy = Program::start(&upstream.address, "memory:", more);
    for (path, status) in [("/lost", 502), ("/silent", 504)] {
        let before = upstream.taken();
        assert_eq!(proxy.client.post(path, Some("k"), "1").await.status, status);
        for _ in 0..2 {
            let reply = proxy.client.post(path, Some("k"), "1").await;
            assert_eq!((reply.status, reply.problem()), (409, "outcome-unknown"));
        }
        assert_eq!(upstream.taken(), before + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_is_never_replayed_as_whole() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    proxy.client.say(post("/short", Some("k"), "1").as_bytes()).await;
    let reply = proxy.client.post("/short", Some("k"), "1").await;
    assert_eq!((reply.status, reply.problem()), (409, "not-retained"));
    assert!(reply.text().contains("\"original_status\":201"), "{reply:?}");
    assert_eq!(upstream.taken(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_ends_nothing() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let running = proxy.client.clone();
    let running = tokio::spawn(async move { running.post("/gated", Some("k"), "1").await });
    upstream.until_taken(1).await;
    proxy.signal("HUP");
    let told = async {
        while !proxy.log().contains("does not read its configuration again") {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("it says so");
    upstream.open_gate();
    let reply = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!((reply.status, reply.text()), (201, "{\"order\":1}"));
    assert_eq!(proxy.client.post("/orders", Some("l"), "1").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_when_it_is_told_to_stop_is_finished() {
    let (upstream, folder) = (Upstream::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(folder.path());
    let mut proxy = Program::start(&upstream.address, &store, "");
    let (running, idle) = (proxy.client.clone(), proxy.client.open(b"").await);
    let running = tokio::spawn(async move { running.post("/gated", Some("k"), "1").await });
    upstream.until_taken(1).await;
    assert_eq!(proxy.admin.get("/readyz").await.status, 200);
    proxy.signal("TERM");
    let unready = async {
        while proxy.admin.get("/readyz").await.status != 503 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, unready).await.expect("it says that it stops");
    upstream.open_gate();
    let reply = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!((reply.status, reply.text()), (201, "{\"order\":1}"));
    assert_eq!(proxy.ended().await, Some(0), "{}", proxy.log());
    drop(idle);
    let other = Program::start(&upstream.address, &store, "");
    let again = other.client.post("/gated", Some("k"), "1").await;
    assert_eq!((again.is_replayed(), again.body, upstream.taken()), (true, reply.body, 1));
}
