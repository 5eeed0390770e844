//! Who waits for whom, and what the server's refusals become.

use std::time::Duration;

use futures_util::FutureExt;
use semel_backends::mysql::MysqlInbox;
use semel_core::inbox::{InboxStore, Seen};
use semel_core::outbox::AppendError;
use semel_core::{Event, EventId, Fault, Outcome};
use semel_testkit::workload::{at_once, delivered_numbers, event, events};
use tokio::time::timeout;

use super::{Database, database};

const MOMENT: Duration = Duration::from_secs(5);

fn keyed(number: u64, key: &str) -> Event {
    event("a", number).with_idempotency_key(key)
}

/// A writer that holds rows of the outbox for long holds up nobody else, relay or writer.
#[tokio::test]
async fn nobody_waits_for_an_open_writer() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut open = database.begin().await;
    database.append(&mut open, &events("open", 0..1_000)).await;
    let work = async {
        for number in 0..20 {
            database.commit(&[event("b", number)]).await;
            assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [number]);
        }
    };
    timeout(MOMENT, work).await.expect("nobody waits");
    open.commit().await.unwrap();
    assert_eq!(relay.deliver_all(100).await.len(), 1_000);
}

/// A relay that dies or stands still while it numbers rows holds up no writer.
#[tokio::test]
async fn no_writer_waits_for_a_relay() {
    let database = database!();
    database.commit(&events("a", 0..10)).await;
    let mut relay = database.begin().await;
    for sql in [
        "SELECT last FROM semel_counter WHERE name = 'position' FOR UPDATE",
        "UPDATE semel_outbox SET position = seq",
        "UPDATE semel_counter SET last = 10",
    ] {
        sqlx::query(sql).execute(&mut *relay).await.unwrap();
    }
    let write = async {
        for number in 10..20 {
            let mut tx = database.pool().begin().await.unwrap(); // REPEATABLE READ
            database.append(&mut tx, &[event("a", number)]).await;
            tx.commit().await.unwrap();
        }
    };
    timeout(MOMENT, write).await.expect("no writer waits");
    relay.rollback().await.unwrap();
    let all = database.relay().await.deliver_all(100).await;
    assert_eq!(delivered_numbers(&all), (0..20).collect::<Vec<_>>());
}

/// The first of many rolls back while the others wait for it: one of them takes effect. InnoDB may
/// end others to break a deadlock; they come again and are duplicates.
#[tokio::test]
async fn messages_that_wait_for_a_failed_first_take_effect_once() {
    let database = database!();
    let (inbox, id) = (database.store.inbox(), EventId::now());
    let mut first = inbox.begin().await.unwrap();
    assert_eq!(inbox.record(&mut first, "payments", id).await.unwrap(), Seen::First);
    let others = (0..8).map(|_| record_again(inbox.clone(), id).boxed()).collect::<Vec<_>>();
    let others = tokio::spawn(at_once(others));
    tokio::time::sleep(Duration::from_millis(50)).await;
    inbox.rollback(first).await;
    let seen = others.await.unwrap();
    assert_eq!(seen.iter().filter(|seen| **seen == Seen::First).count(), 1, "{seen:?}");
}

/// Records until it is known whether the message is new, as a consumer does.
async fn record_again(inbox: MysqlInbox, id: EventId) -> Seen {
    loop {
        let mut tx = inbox.begin().await.unwrap();
        match inbox.record(&mut tx, "payments", id).await {
            Ok(seen) => {
                inbox.commit(tx).await.unwrap();
                return seen;
            }
            Err(failure) => {
                assert_eq!(failure.code(), "E-MYSQL-CONFLICT", "{failure:?}");
                inbox.rollback(tx).await;
            }
        }
    }
}

/// A snapshot from before the first one's commit does not hide its result; and two that look at
/// the same duplicates in another order do not wait for each other.
#[tokio::test]
async fn duplicates_are_seen_at_every_isolation_level() {
    let database = database!();
    let inbox = database.store.inbox();
    let (id, other) = (EventId::now(), EventId::now());
    let mut old = database.pool().begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM semel_inbox").execute(&mut *old).await.unwrap();
    let mut first = inbox.begin().await.unwrap();
    inbox.record(&mut first, "payments", id).await.unwrap();
    inbox.store_result(&mut first, "payments", id, "paid".into()).await.unwrap();
    inbox.record(&mut first, "payments", other).await.unwrap();
    inbox.commit(first).await.unwrap();
    let new = inbox.begin().await.unwrap();
    let duplicate =
        |result: Option<&'static str>| Seen::Duplicate { result: result.map(Into::into) };
    let mut transactions = [old, new];
    for (tx, id, result) in
        [(0, id, Some("paid")), (1, other, None), (0, other, None), (1, id, Some("paid"))]
    {
        let tx = &mut transactions[tx];
        let seen = timeout(MOMENT, inbox.record(tx, "payments", id)).await.expect("no wait");
        assert_eq!(seen.unwrap(), duplicate(result));
    }
}

#[tokio::test]
async fn a_lock_that_is_not_had_in_time_is_transient() {
    let database = database!();
    let (inbox, id) = (database.store.inbox(), EventId::now());
    let mut first = inbox.begin().await.unwrap();
    inbox.record(&mut first, "payments", id).await.unwrap();
    let mut second = inbox.begin().await.unwrap();
    let impatient = "SET SESSION innodb_lock_wait_timeout = 1";
    sqlx::query(impatient).execute(&mut *second).await.unwrap();
    let failure = inbox.record(&mut second, "payments", id).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-MYSQL-CONFLICT"));
    inbox.rollback(second).await;
    inbox.commit(first).await.unwrap();
}

#[tokio::test]
async fn a_deadlock_is_transient_and_ends_one_of_the_two() {
    let database = database!();
    let outbox = database.store.outbox();
    let (mut one, mut two) = (database.begin().await, database.begin().await);
    database.append(&mut one, &[keyed(1, "k1")]).await;
    database.append(&mut two, &[keyed(2, "k2")]).await;
    let crossing = outbox.clone();
    let first = tokio::spawn(async move {
        let appended = crossing.append(&mut one, keyed(3, "k2")).await;
        (appended, one)
    });
    let second = outbox.append(&mut two, keyed(4, "k1")).await;
    let (first, one) = match second {
        // The server chose the second, and its locks are free: the first goes on.
        Err(AppendError::Store(_)) => {
            drop(two);
            first.await.unwrap()
        }
        Err(AppendError::Duplicate { .. }) | Ok(()) => {
            two.commit().await.unwrap();
            first.await.unwrap()
        }
        Err(other) => panic!("{other:?}"),
    };
    let failures: Vec<_> = [first, second]
        .into_iter()
        .filter_map(|ended| match ended {
            Err(AppendError::Store(failure)) => Some((failure.fault(), failure.code())),
            _ => None,
        })
        .collect();
    assert_eq!(failures, [(Fault::Transient, "E-MYSQL-CONFLICT")]);
    drop(one);
}

/// InnoDB undoes the statement that is refused and nothing else, at its own isolation level too.
#[tokio::test]
async fn a_transaction_goes_on_after_a_duplicate() {
    let database = database!();
    database.commit(&[keyed(0, "taken")]).await;
    let outbox = database.store.outbox();
    for size in [1, 3, 1_200] {
        let mut tx = database.pool().begin().await.unwrap();
        database.append(&mut tx, &[event("before", size)]).await;
        let mut many = events("many", 1..size);
        many.push(keyed(size, "taken"));
        let refused = outbox.append_all(&mut tx, &many).await.unwrap_err();
        let AppendError::Duplicate { key, transaction_usable } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((key.as_deref(), transaction_usable), (Some("taken"), true));
        database.append(&mut tx, &[event("after", size)]).await;
        tx.commit().await.unwrap();
    }
    let lanes = database.relay().await.lanes().await;
    assert_eq!(lanes, ["a", "before", "after", "before", "after", "before", "after"]);
}

/// More than the server takes in one packet.
#[tokio::test]
async fn an_append_larger_than_a_packet_is_split() {
    let database = database!();
    let megabyte = 1024 * 1024;
    let packet = database.number("SELECT cast(@@max_allowed_packet AS SIGNED)").await;
    let count = u64::try_from(packet).unwrap() / megabyte + 4;
    let large = |number: u64| {
        let zeros = usize::try_from(megabyte - 10).unwrap();
        event("a", number).with_bytes("text/plain", format!("{}{number}", "0".repeat(zeros)))
    };
    database.commit(&(0..count).map(large).collect::<Vec<_>>()).await;
    let all = database.relay().await.deliver_all(100).await;
    assert_eq!(delivered_numbers(&all), (0..count).collect::<Vec<_>>());
}

/// Whoever waits for the cursor of a pipeline finds out who owns it when the lock is free.
#[tokio::test]
async fn an_owner_that_was_replaced_while_it_waited_is_fenced_off() {
    let database: Database = database!();
    database.commit(&events("a", 0..3)).await;
    let mut old = database.relay().await;
    let first = old.take(1).await;
    // From here on, for a second, settling is one UPDATE.
    old.settle(&first, |_| Outcome::Delivered).await;
    let taken = old.take(10).await;
    let mut successor = database.begin().await;
    sqlx::query("UPDATE semel_cursor SET epoch = epoch + 1")
        .execute(&mut *successor)
        .await
        .unwrap();
    for outcome in [Outcome::Delivered, Outcome::Released] {
        let settlements = semel_testkit::workload::settlements(
            taken.iter().map(|got| (got.receipt, outcome.clone())),
        );
        let settling = semel_core::Source::settle(&mut old.source, &settlements);
        if outcome == Outcome::Delivered {
            let (settled, ()) = tokio::join!(settling, async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                successor.commit().await.unwrap();
            });
            assert!(!settled.unwrap().is_held());
            successor = database.begin().await;
        } else {
            assert!(!settling.await.unwrap().is_held());
        }
    }
    assert_eq!(database.relay().await.deliver_all(10).await.len(), 2);
}
