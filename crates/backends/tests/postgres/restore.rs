//! The outbox on another server, where transactions are counted from somewhere else.

use std::process::{Command, Stdio};
use std::time::Duration;

use semel_core::{Fault, Holding, Outcome, Settlement, Source, Timestamp};
use semel_testkit::workload::{by_lane, delivered_numbers, event, events, retry};

use super::{Database, Relay, database, on_server, unmigrated};

/// A database in the middle of its work: some events delivered, one of them ahead of an open one,
/// one failed with a follower, one scheduled, some not read, one written by a transaction that
/// commits late. Lanes are named by what should come of them.
async fn in_the_middle_of_its_work(database: &Database) {
    let mut relay = database.relay().await;
    database.commit(&events("done", 0..5)).await;
    relay.deliver_all(10).await;
    let mut late = database.begin().await;
    database.append(&mut late, &[event("late", 1)]).await;
    database.commit(&[event("failed", 1)]).await;
    let taken = relay.take(10).await;
    relay.settle(&taken, |_| retry(Timestamp::now(), 3)).await;
    let later = Timestamp::now() + Duration::from_secs(86_400);
    database.commit(&[event("scheduled", 1).available_at(later)]).await;
    assert!(!relay.take(1).await.is_empty(), "the failed one, which is not settled again");
    database.commit(&[event("open", 1), event("ahead", 1)]).await;
    let taken = relay.take(10).await;
    relay.settle(&taken[1..], |_| Outcome::Delivered).await;
    late.commit().await.unwrap();
    database.commit(&[event("unread", 1), event("failed", 2), event("unread", 2)]).await;
}

/// `pg_dump | psql`, everything in it.
pub(super) fn copy(from: &Database, to: &Database) {
    let mut dump = Command::new("pg_dump")
        .arg(from.url())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pg_dump, which comes with psql");
    let restored = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", &to.url()])
        .stdin(dump.stdout.take().unwrap())
        .stdout(Stdio::null())
        .status()
        .expect("psql");
    assert!(dump.wait().unwrap().success() && restored.success());
}

/// Makes the numbers those of a server that has counted further, or less far.
async fn shift_transaction_ids(database: &Database, by: i64) {
    let shifted = |snapshot: &str| {
        let parts: Vec<_> = snapshot
            .split(':')
            .map(|part| {
                let ids = part.split(',').filter(|id| !id.is_empty());
                ids.map(|id| (id.parse::<i64>().unwrap() + by).to_string())
                    .collect::<Vec<_>>()
                    .join(",")
            })
            .collect();
        parts.join(":")
    };
    let (passed, end): (String, Option<String>) =
        sqlx::query_as("select passed::text, window_end::text from semel.cursor")
            .fetch_one(database.pool())
            .await
            .unwrap();
    sqlx::query(
        "update semel.cursor set server = 'another/1', passed = $1::text::pg_snapshot,
        window_end = $2::text::pg_snapshot",
    )
    .bind(shifted(&passed))
    .bind(end.map(|end| shifted(&end)))
    .execute(database.pool())
    .await
    .unwrap();
    sqlx::query("update semel.outbox set txid = (txid::text::bigint + $1)::text::xid8")
        .bind(by)
        .execute(database.pool())
        .await
        .unwrap();
}

/// Everything that was open comes once, in order; nothing that was settled comes again.
async fn goes_on_where_it_was(database: &Database) {
    database.commit(&[event("new", 1), event("unread", 3)]).await;
    let mut relay = database.relay().await;
    let delivered = relay.deliver_all(2).await;
    let failed = delivered.iter().find(|got| got.message.event.aggregate_id == "failed").unwrap();
    assert_eq!(failed.message.attempt, 4, "its attempts are not forgotten");
    let lanes = by_lane(&delivered);
    let expected = [
        ("order/failed", vec![1, 2]),
        ("order/late", vec![1]),
        ("order/new", vec![1]),
        ("order/open", vec![1]),
        ("order/unread", vec![1, 2, 3]),
    ];
    assert_eq!(lanes, expected.map(|(lane, numbers)| (lane.to_owned(), numbers)).into());

    for number in 2..6 {
        database.commit(&[event("new", number)]).await;
        assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [number]);
        relay = database.relay().await;
    }
    let scheduled = "select count(*) from semel.parked where state = 'scheduled'";
    assert_eq!(database.number(scheduled).await, 1, "it still waits");
}

#[tokio::test]
async fn a_dump_goes_on_in_another_database() {
    let (original, restored) = (database!(), unmigrated!());
    in_the_middle_of_its_work(&original).await;
    copy(&original, &restored);
    goes_on_where_it_was(&restored).await;
    // The original goes on by itself.
    let mut relay = original.relay().await;
    let lanes = by_lane(&relay.deliver_all(10).await);
    assert_eq!(lanes.len(), 4, "{lanes:?}");
}

/// All old numbers lie in the future of the new server, and would come up there one day.
#[tokio::test]
async fn a_dump_of_a_server_that_counted_further_goes_on() {
    let (original, restored) = (database!(), unmigrated!());
    in_the_middle_of_its_work(&original).await;
    copy(&original, &restored);
    shift_transaction_ids(&restored, 1_000_000_000).await;
    goes_on_where_it_was(&restored).await;
    let next = "select count(*) from semel.outbox where txid >= pg_current_xact_id()";
    assert_eq!(restored.number(next).await, 0, "no number is left that could come up");
}

/// The old numbers are those of transactions that were over long ago.
#[tokio::test]
async fn a_dump_of_a_server_that_counted_less_far_goes_on() {
    let (original, restored) = (database!(), unmigrated!());
    in_the_middle_of_its_work(&original).await;
    copy(&original, &restored);
    // Somebody else's older transaction may have been open, and is in the snapshot then.
    let lowest = "select least(min(o.txid::text::bigint),
        min(pg_snapshot_xmin(c.passed)::text::bigint)) from semel.outbox o, semel.cursor c";
    let lowest = restored.number(lowest).await;
    shift_transaction_ids(&restored, 20 - lowest).await;
    goes_on_where_it_was(&restored).await;
}

/// A new pipeline on a copy reads all of it, whatever the numbers are.
#[tokio::test]
async fn a_new_pipeline_reads_a_copy_from_the_beginning() {
    let database = database!();
    database.commit(&events("a", 0..3)).await;
    let raise = "update semel.outbox set txid = (txid::text::bigint + 1000000000)::text::xid8";
    database.run(raise).await;
    let mut relay = database.relay().await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [0, 1, 2]);
    assert!(database.relay().await.lanes().await.is_empty());
}

/// Without the sequence, old and new rows cannot be told apart: all comes again, nothing is missed.
#[tokio::test]
async fn a_sequence_that_was_left_behind_makes_everything_come_again() {
    let (original, restored) = (database!(), unmigrated!());
    in_the_middle_of_its_work(&original).await;
    copy(&original, &restored);
    restored.run("select setval(pg_get_serial_sequence('semel.outbox', 'seq'), 1)").await;
    let mut relay = restored.relay().await;
    let lanes = by_lane(&relay.deliver_all(10).await);
    assert_eq!(lanes["order/done"], [0, 1, 2, 3, 4]);
    assert_eq!(lanes["order/ahead"], [1]);
    assert_eq!(lanes["order/unread"], [1, 2]);
    assert_eq!(lanes["order/failed"], [1, 2]);
}

/// Logical replication copies rows and no sequence, which then says nothing of how far the rows go.
#[tokio::test]
async fn a_new_pipeline_reads_a_backlog_whose_sequence_was_left_behind() {
    let database = database!();
    database
        .run(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', (n % 10)::text, 'T', n::text from generate_series(1, 1500) n",
        )
        .await;
    let never_asked = "alter table semel.outbox alter column seq restart";
    let asked_once = "select setval(pg_get_serial_sequence('semel.outbox', 'seq'), 1)";
    for (pipeline, left_behind) in [("first", never_asked), ("second", asked_once)] {
        database.run(left_behind).await;
        let mut relay = Relay { source: database.store.source(pipeline).await.unwrap() };
        let delivered = relay.deliver_all(400).await;
        assert_eq!(delivered_numbers(&delivered), (1..=1500).collect::<Vec<_>>(), "{left_behind}");
    }
}

/// The database behind the address is another one now: whoever worked on the old one starts anew.
#[tokio::test]
async fn a_source_notices_that_its_database_was_exchanged() {
    let (original, restored) = (database!(), unmigrated!());
    original.commit(&[event("a", 1)]).await;
    copy(&original, &restored);
    let mut relay = original.relay().await;
    let taken = relay.take(1).await;
    let aside = format!("{}_aside", original.name);
    for (from, to) in [(&original.name, &aside), (&restored.name, &original.name)] {
        let end = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{from}'"
        );
        on_server(&original.server, &end).await;
        on_server(&original.server, &format!("alter database {from} rename to {to}")).await;
    }
    let receipt = taken[0].receipt;
    let settlement = Settlement { receipt, outcome: Outcome::Delivered };
    let cut_off = relay.source.settle(std::slice::from_ref(&settlement)).await.unwrap_err();
    assert_eq!(cut_off.fault(), Fault::Unavailable);
    assert_eq!(relay.source.settle(&[settlement]).await.unwrap(), Holding::Lost);
    assert!(relay.take(1).await.is_empty());
    let mut relay = original.relay().await;
    assert_eq!(delivered_numbers(&relay.deliver_all(1).await), [1]);
    on_server(&original.server, &format!("drop database {aside} with (force)")).await;
}
