//! Order in a lane when something in its middle fails.

use redis::cmd;
use semel_core::{Failure, Fault, Message, Published, Verdict};
use semel_testkit::workload::{event, events, numbers};

use super::server::OwnServer;
use super::{Stream, connect, failure_of, publish, random_name, send};

fn verdicts(published: Published) -> Vec<Verdict> {
    if let Published::Each(verdicts) = published { verdicts } else { vec![] }
}

fn failed(verdict: &Verdict) -> &Failure {
    let failure = if let Verdict::Failed(failure) = verdict { Some(failure) } else { None };
    failure.expect("it failed")
}

/// The third of five goes to a stream that cannot take it; the fourth and fifth could be taken.
#[tokio::test]
async fn what_follows_a_failure_to_other_streams_waits() {
    let Some(stream) = Stream::fresh().await else { return };
    let taken = random_name("no-stream");
    stream.reader.ask::<()>(cmd("SET").arg(&taken).arg("a string")).await;
    let mut batch: Vec<_> = events("a", 0..5)
        .into_iter()
        .map(|event| Message::first(stream.name.as_str(), event))
        .collect();
    batch[2].topic = taken.as_str().into();
    batch.extend(events("b", 0..5).into_iter().map(|event| Message::first(&*stream.name, event)));
    let verdicts = verdicts(send(&stream.sink, &batch).await);
    assert_eq!(verdicts[..2], [Verdict::Confirmed, Verdict::Confirmed]);
    assert_eq!(failed(&verdicts[2]).fault(), Fault::Misconfigured);
    assert_eq!(verdicts[3..5], [Verdict::Behind, Verdict::Behind]);
    assert!(verdicts[5..].iter().all(|verdict| *verdict == Verdict::Confirmed));
    let arrived = stream.arrived().await;
    let lane = |name: &str| numbers(arrived.iter().filter(|event| event.aggregate_id == name));
    assert_eq!((lane("a"), lane("b")), (vec![0, 1], vec![0, 1, 2, 3, 4]));
    stream.reader.ask::<()>(cmd("DEL").arg(&taken)).await;
    assert!(send(&stream.sink, &batch[2..5]).await.all_confirmed());
}

/// Memory runs out while the batch is on its way, and there is some again a moment later.
#[tokio::test]
async fn a_transaction_that_fails_half_way_leaves_nothing() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let reader = server.reader().await;
    let sink = connect(server.config()).await.unwrap();
    assert!(publish(&sink, "orders", [event("a", 0)]).await.all_confirmed());
    let used: String = reader.ask(cmd("INFO").arg("memory")).await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    // Enough for the beginning of the batch, which is queued on the server, and not for all of it.
    let room = used.trim().parse::<u64>().unwrap() + 1_000_000;
    reader.set("maxmemory", &room.to_string()).await;
    let large = |number| event("a", number).with_header("filler", "x".repeat(20_000));
    let published = publish(&sink, "orders", (1..400).map(large)).await;
    let failure = failure_of(published.clone());
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-REDIS-MEMORY"));
    assert!(verdicts(published)[1..].iter().all(|verdict| *verdict == Verdict::Behind));
    assert_eq!(reader.count("orders").await, 1, "nothing of it is visible");
    reader.set("maxmemory", "0").await;
    assert!(publish(&sink, "orders", (1..400).map(large)).await.all_confirmed());
    assert_eq!(numbers(&reader.arrived("orders").await), (0..400).collect::<Vec<_>>());
}
