//! What every [`OutboxWriter`](semel_core::OutboxWriter) must do.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use semel_core::outbox::AppendError;
use semel_core::{Event, Fault};

use crate::probe::{Ran, WriteProbe};
use crate::workload::{assert_intact, at_once, awkward_events, event, events, numbers};

/// How the suite gets at an outbox and at the business data beside it.
pub trait OutboxProbe: WriteProbe {
    /// Changes something of the caller's own in the transaction: one more row in some table.
    fn change_business(&self, tx: &mut Self::Tx) -> impl Future<Output = ()> + Send;

    /// How many such changes are committed.
    fn business_changes(&self) -> impl Future<Output = u64> + Send;

    /// All committed events, in the order they will be published.
    fn committed(&self) -> impl Future<Output = Vec<Event>> + Send;
}

/// One test per scenario of the [`OutboxWriter`](semel_core::OutboxWriter) contract, for an
/// [`OutboxProbe`](crate::suites::outbox::OutboxProbe).
#[macro_export]
macro_rules! outbox_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { outbox, $probe,
            events_and_business_change_commit_together
            events_and_business_change_roll_back_together
            a_dropped_transaction_leaves_nothing
            order_is_kept_within_and_over_appends
            content_is_stored_unchanged
            an_empty_append_is_fine
            thousands_of_events_fit_one_append
            a_duplicate_in_one_append_is_refused
            a_duplicate_in_one_transaction_is_refused
            a_duplicate_of_a_committed_event_is_refused
            a_rolled_back_key_is_free_again
            nothing_of_a_refused_append_is_written
            a_usable_transaction_can_go_on
            of_concurrent_duplicates_one_is_written
            an_invalid_event_is_refused
            a_header_with_control_characters_is_kept_or_refused
        }
    };
}

/// The events exist once the caller's transaction commits, not before.
pub async fn events_and_business_change_commit_together<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    probe.change_business(&mut tx).await;
    probe.append(&mut tx, &events("a", 0..2)).await.expect("append");
    probe.change_business(&mut tx).await;
    probe.commit(tx).await;
    assert_eq!(probe.business_changes().await, 2);
    assert_eq!(committed_numbers(&**probe).await, [0, 1]);
    Ok(())
}

/// If the caller rolls back, neither the change nor the events exist.
pub async fn events_and_business_change_roll_back_together<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    probe.change_business(&mut tx).await;
    probe.append(&mut tx, &events("a", 0..2)).await.expect("append");
    probe.roll_back(tx).await;
    assert_eq!(probe.business_changes().await, 0);
    assert_eq!(committed_numbers(&**probe).await, NONE);
    Ok(())
}

/// A caller that panics or returns early drops its transaction: the same as rolling back.
pub async fn a_dropped_transaction_leaves_nothing<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &events("a", 0..2)).await.expect("append");
    drop(tx);
    probe.commit_all(&events("a", 5..6)).await;
    assert_eq!(committed_numbers(&**probe).await, [5]);
    Ok(())
}

/// Order of commits, and the order of the slice inside one transaction.
pub async fn order_is_kept_within_and_over_appends<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    for start in [0, 30, 60] {
        let mut tx = probe.begin().await;
        probe.append(&mut tx, &events("a", start..start + 20)).await.expect("append");
        probe.append(&mut tx, &events("a", start + 20..start + 21)).await.expect("append");
        probe.append(&mut tx, &events("a", start + 21..start + 30)).await.expect("append");
        probe.commit(tx).await;
    }
    assert_eq!(committed_numbers(&**probe).await, (0..90).collect::<Vec<_>>());
    Ok(())
}

/// What is read back is what was written, byte for byte.
pub async fn content_is_stored_unchanged<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let written = awkward_events();
    probe.commit_all(&written).await;
    let stored = probe.committed().await;
    assert_eq!(stored.len(), written.len());
    for (written, stored) in written.iter().zip(&stored) {
        assert_intact(written, stored);
    }
    Ok(())
}

/// Nothing to append is nothing to do.
pub async fn an_empty_append_is_fine<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &[]).await.expect("append");
    probe.append(&mut tx, &events("a", 0..1)).await.expect("append");
    probe.commit(tx).await;
    assert_eq!(committed_numbers(&**probe).await, [0]);
    Ok(())
}

/// One call takes any number of events, whatever the database allows in one statement.
pub async fn thousands_of_events_fit_one_append<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&events("a", 0..8_000)).await;
    assert_eq!(committed_numbers(&**probe).await, (0..8_000).collect::<Vec<_>>());
    Ok(())
}

/// The same key twice in one call.
pub async fn a_duplicate_in_one_append_is_refused<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    let twice = [keyed(0, "k"), event("a", 1), keyed(2, "k")];
    expect_duplicate(probe.append(&mut tx, &twice).await, "k");
    probe.roll_back(tx).await;
    assert_eq!(committed_numbers(&**probe).await, NONE);
    Ok(())
}

/// The same key twice in one transaction.
pub async fn a_duplicate_in_one_transaction_is_refused<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &[keyed(0, "k")]).await.expect("append");
    expect_duplicate(probe.append(&mut tx, &[keyed(1, "k")]).await, "k");
    probe.roll_back(tx).await;
    assert_eq!(committed_numbers(&**probe).await, NONE);
    Ok(())
}

/// A key that is committed; an event without a key of its own has its id as key.
pub async fn a_duplicate_of_a_committed_event_is_refused<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let unkeyed = event("a", 1);
    probe.commit_all(&[keyed(0, "k"), unkeyed.clone()]).await;
    let id = unkeyed.id.to_string();
    for (again, key) in [(keyed(2, "k"), "k"), (unkeyed, &id), (keyed(3, &id), &id)] {
        let mut tx = probe.begin().await;
        expect_duplicate(probe.append(&mut tx, &[again]).await, key);
        probe.roll_back(tx).await;
    }
    probe.commit_all(&[keyed(4, "K"), keyed(5, "k ")]).await;
    assert_eq!(committed_numbers(&**probe).await, [0, 1, 4, 5]);
    Ok(())
}

/// A key whose transaction was rolled back was never used.
pub async fn a_rolled_back_key_is_free_again<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &[keyed(0, "k")]).await.expect("append");
    probe.roll_back(tx).await;
    probe.commit_all(&[keyed(1, "k")]).await;
    assert_eq!(committed_numbers(&**probe).await, [1]);
    Ok(())
}

/// Nothing of a call that failed is written, also if the caller commits the rest.
pub async fn nothing_of_a_refused_append_is_written<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&[keyed(0, "k")]).await;
    let mut tx = probe.begin().await;
    let mixed = [event("a", 1), event("b", 2), keyed(3, "k"), event("a", 4)];
    let usable = expect_duplicate(probe.append(&mut tx, &mixed).await, "k");
    if usable {
        probe.commit(tx).await;
    } else {
        probe.roll_back(tx).await;
    }
    assert_eq!(committed_numbers(&**probe).await, [0]);
    Ok(())
}

/// `transaction_usable` is true to its word: what came before and comes after is committed.
pub async fn a_usable_transaction_can_go_on<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&[keyed(0, "k")]).await;
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &[event("a", 1)]).await.expect("append");
    probe.change_business(&mut tx).await;
    if expect_duplicate(probe.append(&mut tx, &[keyed(2, "k")]).await, "k") {
        probe.change_business(&mut tx).await;
        probe.append(&mut tx, &[event("a", 3)]).await.expect("append after a duplicate");
        probe.commit(tx).await;
        assert_eq!(committed_numbers(&**probe).await, [0, 1, 3]);
        assert_eq!(probe.business_changes().await, 2);
    } else {
        probe.roll_back(tx).await;
        assert_eq!(committed_numbers(&**probe).await, [0]);
        assert_eq!(probe.business_changes().await, 0);
        probe.commit_all(&[event("a", 4)]).await;
    }
    Ok(())
}

/// Of any number of transactions that write the same key at the same time, one commits.
pub async fn of_concurrent_duplicates_one_is_written<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let written = at_once((0..16).map(|number| {
        let probe = Arc::clone(probe);
        async move {
            let mut tx = probe.begin().await;
            match probe.append(&mut tx, &[keyed(number, "k")]).await {
                Ok(()) => {
                    probe.change_business(&mut tx).await;
                    probe.commit(tx).await;
                    true
                }
                refused => {
                    expect_duplicate(refused, "k");
                    probe.roll_back(tx).await;
                    false
                }
            }
        }
        .boxed()
    }));
    assert_eq!(written.await.into_iter().filter(|written| *written).count(), 1);
    assert_eq!(committed_numbers(&**probe).await.len(), 1);
    assert_eq!(probe.business_changes().await, 1);
    Ok(())
}

/// A malformed event is not sent to the database, so the transaction can go on without it.
pub async fn an_invalid_event_is_refused<P: OutboxProbe>(probe: &Arc<P>) -> Ran {
    let invalid = [
        Event::new("", "1", "Happened"),
        Event::new("order", "x".repeat(256), "Happened"),
        Event::new("order", "1", "Happened\0"),
        keyed(9, ""),
        event("a", 9).with_bytes("application/octet-stream", vec![0; 1024 * 1024 + 1]),
        (0..65).fold(event("a", 9), |event, n| event.with_header(format!("h{n}"), "x")),
    ];
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &[event("a", 0)]).await.expect("append");
    for invalid in invalid {
        match probe.append(&mut tx, &[event("a", 1), invalid]).await {
            Err(AppendError::Invalid(failure)) => assert_eq!(failure.fault(), Fault::Refused),
            other => panic!("expected AppendError::Invalid, got {other:?}"),
        }
    }
    probe.append(&mut tx, &[event("a", 2)]).await.expect("append");
    probe.commit(tx).await;
    assert_eq!(committed_numbers(&**probe).await, [0, 2]);
    Ok(())
}

/// Not every database can store every character: then the event is invalid, and the caller is told
/// so before anything is sent.
pub async fn a_header_with_control_characters_is_kept_or_refused<P: OutboxProbe>(
    probe: &Arc<P>,
) -> Ran {
    let sent = event("a", 0).with_header("note", "one\r\ntwo\0three\u{7}");
    let mut tx = probe.begin().await;
    let appended = probe.append(&mut tx, std::slice::from_ref(&sent)).await;
    probe.append(&mut tx, &[event("a", 1)]).await.expect("append");
    probe.commit(tx).await;
    match appended {
        Ok(()) => assert_intact(&sent, &probe.committed().await[0]),
        Err(AppendError::Invalid(_)) => assert_eq!(committed_numbers(&**probe).await, [1]),
        Err(other) => panic!("expected AppendError::Invalid, got {other:?}"),
    }
    Ok(())
}

const NONE: [u64; 0] = [];

fn keyed(number: u64, key: &str) -> Event {
    event("a", number).with_idempotency_key(key)
}

/// Checks for the typed error; says whether the transaction can still be used.
fn expect_duplicate(result: Result<(), AppendError>, expected: &str) -> bool {
    match result {
        Err(AppendError::Duplicate { key, transaction_usable }) => {
            // Not every database says which key it was.
            assert!(key.as_deref().is_none_or(|key| key == expected), "{key:?} is not {expected}");
            transaction_usable
        }
        other => panic!("expected AppendError::Duplicate of {expected}, got {other:?}"),
    }
}

/// The numbers of the committed events.
async fn committed_numbers<P: OutboxProbe>(probe: &P) -> Vec<u64> {
    numbers(&probe.committed().await)
}
