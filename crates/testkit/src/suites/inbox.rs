//! What every [`InboxStore`] must do.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::inbox::{Opening, Processed, Seen};
use semel_core::{EventId, Failure, InboxStore};

use crate::probe::{Probe, Ran};
use crate::workload::at_once;

/// How the suite gets at an inbox and at effects beside it.
pub trait InboxProbe: Probe {
    /// The inbox.
    type Store: InboxStore + 'static;

    /// The inbox.
    fn store(&self) -> &Self::Store;

    /// Takes an effect in the transaction that shows when it is taken twice: one more row.
    fn take_effect(
        &self,
        tx: &mut <Self::Store as InboxStore>::Tx<'_>,
    ) -> impl Future<Output = ()> + Send;

    /// How many effects are committed.
    fn effects(&self) -> impl Future<Output = u64> + Send;

    /// Whether ids stay until [`forget`](InboxStore::forget) is called.
    ///
    /// # Errors
    /// Why not.
    fn keeps_ids(&self) -> Ran {
        Ok(())
    }
}

/// One test per scenario of the [`InboxStore`](semel_core::InboxStore) contract, for an
/// [`InboxProbe`](crate::suites::inbox::InboxProbe).
#[macro_export]
macro_rules! inbox_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { inbox, $probe,
            the_second_record_is_a_duplicate
            the_second_record_in_one_transaction_is_a_duplicate
            several_records_at_once_say_which_were_new
            a_beginning_records_all_or_nothing
            of_concurrent_beginnings_one_takes_effect
            a_duplicate_gets_the_stored_result
            the_last_stored_result_counts
            each_consumer_has_its_own_effect
            a_rolled_back_record_is_forgotten
            a_dropped_transaction_is_forgotten
            a_failed_effect_can_be_tried_again
            a_second_transaction_waits_for_the_first
            of_concurrent_duplicates_one_takes_effect
            concurrent_messages_all_take_effect
            old_ids_are_forgotten_and_young_ones_kept
            at_most_the_limit_is_forgotten
            what_was_forgotten_takes_effect_again
        }
    };
}

/// `record` says whether the id was new.
pub async fn the_second_record_is_a_duplicate<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let id = EventId::now();
    assert_eq!(record(&**probe, "payments", id).await, Seen::First);
    for _ in 0..2 {
        assert_eq!(record(&**probe, "payments", id).await, Seen::Duplicate { result: None });
    }
    assert_eq!(record(&**probe, "payments", EventId::now()).await, Seen::First);
    Ok(())
}

/// A handler that sees a message twice in one batch takes effect once.
pub async fn the_second_record_in_one_transaction_is_a_duplicate<P: InboxProbe>(
    probe: &Arc<P>,
) -> Ran {
    let (store, id, other) = (probe.store(), EventId::now(), EventId::now());
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(store.record(&mut tx, "payments", id).await.expect("record"), Seen::First);
    store.store_result(&mut tx, "payments", id, "paid".into()).await.expect("store_result");
    assert_eq!(store.record(&mut tx, "payments", other).await.expect("record"), Seen::First);
    let again = store.record(&mut tx, "payments", id).await.expect("record");
    assert_eq!(again, Seen::Duplicate { result: Some("paid".into()) });
    store.commit(tx).await.expect("commit");
    assert_eq!(record(&**probe, "payments", id).await, again);
    Ok(())
}

/// Ids that were known, and those that come again in the same call, are not new.
pub async fn several_records_at_once_say_which_were_new<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let (store, [known, one, two]) = (probe.store(), [(); 3].map(|()| EventId::now()));
    record(&**probe, "payments", known).await;
    record(&**probe, "stock", one).await;
    let mut tx = store.begin().await.expect("begin");
    let ids = [one, known, two, one, two];
    let new = store.record_all(&mut tx, "payments", &ids).await.expect("record_all");
    assert_eq!(new, [true, false, true, false, false]);
    assert!(store.record_all(&mut tx, "payments", &[]).await.expect("record_all").is_empty());
    store.store_result(&mut tx, "payments", two, "paid".into()).await.expect("store_result");
    store.commit(tx).await.expect("commit");
    let seen = record(&**probe, "payments", two).await;
    assert_eq!(seen, Seen::Duplicate { result: Some("paid".into()) });
    Ok(())
}

/// A transaction may begin with ids recorded, if all are new; they are forgotten with it.
pub async fn a_beginning_records_all_or_nothing<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let (store, [one, two, three]) = (probe.store(), [(); 3].map(|()| EventId::now()));
    for consumer in ["payments", "Lager ü 🚀", "O'Reilly \\' --"] {
        for ids in [&[one, two][..], &[three], &[]] {
            let (mut tx, recorded) =
                store.begin_with(consumer, with(ids)).await.expect("begin_with");
            let new = store.record_all(&mut tx, consumer, ids).await.expect("record_all");
            assert!(new.iter().all(|new| *new != recorded), "{ids:?} are recorded: {recorded}");
            store.rollback(tx).await;
        }
        let (mut tx, recorded) =
            store.begin_with(consumer, with(&[two])).await.expect("begin_with");
        if !recorded {
            assert_eq!(store.record(&mut tx, consumer, two).await.expect("record"), Seen::First);
        }
        store.commit(tx).await.expect("commit");
        assert_eq!(record(&**probe, consumer, two).await, Seen::Duplicate { result: None });
    }
    for ids in [&[one, two, three][..], &[two], &[one, three, one]] {
        let (mut tx, recorded) = store.begin_with("payments", with(ids)).await.expect("begin_with");
        assert!(!recorded, "not all of them are new");
        let new = store.record_all(&mut tx, "payments", &[one, two]).await.expect("record_all");
        assert_eq!(new, [true, false], "the transaction is empty");
        store.rollback(tx).await;
    }
    Ok(())
}

fn with(ids: &[EventId]) -> Opening<'_> {
    Opening { ids, ..Opening::default() }
}

/// Transactions that begin with the same ids wait for each other too.
pub async fn of_concurrent_beginnings_one_takes_effect<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    for ids in [vec![EventId::now()], vec![EventId::now(), EventId::now()]] {
        let before = probe.effects().await;
        let copies = at_once((0..16).map(|_| {
            let (probe, ids) = (Arc::clone(probe), ids.clone());
            async move {
                let store = probe.store();
                let begun = store.begin_with("payments", with(&ids)).await;
                let (mut tx, mut new) = begun.expect("begin_with");
                if !new {
                    let all = store.record_all(&mut tx, "payments", &ids).await;
                    new = all.expect("record_all").contains(&true);
                }
                if new {
                    probe.take_effect(&mut tx).await;
                }
                store.commit(tx).await.expect("commit");
            }
            .boxed()
        }));
        copies.await;
        assert_eq!(probe.effects().await, before + 1);
    }
    Ok(())
}

/// A duplicate gets what the first one returned, byte for byte.
pub async fn a_duplicate_gets_the_stored_result<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let results = [(0..=255).collect::<Vec<u8>>(), b"{\"total\": 99}".to_vec(), vec![0; 70_000]];
    for result in results {
        let id = EventId::now();
        let applied = once(probe, "payments", id, &result).await;
        assert_eq!(applied, Processed::Applied(result.clone().into()));
        let again = once(probe, "payments", id, b"another").await;
        assert_eq!(again, Processed::Duplicate(Some(result.into())));
    }
    assert_eq!(probe.effects().await, 3);
    Ok(())
}

/// A second `store_result` replaces the first.
pub async fn the_last_stored_result_counts<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let (store, id) = (probe.store(), EventId::now());
    let mut tx = store.begin().await.expect("begin");
    store.record(&mut tx, "payments", id).await.expect("record");
    for result in ["first", "second"] {
        store.store_result(&mut tx, "payments", id, result.into()).await.expect("store_result");
    }
    store.commit(tx).await.expect("commit");
    let seen = record(&**probe, "payments", id).await;
    assert_eq!(seen, Seen::Duplicate { result: Some("second".into()) });
    Ok(())
}

/// Consumers are told apart by name.
pub async fn each_consumer_has_its_own_effect<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let id = EventId::now();
    let consumers = ["payments", "payment", "Payments", "Lager ü 🚀"];
    for consumer in consumers {
        let applied = once(probe, consumer, id, consumer.as_bytes()).await;
        assert!(!applied.is_duplicate(), "{consumer} has not seen it");
    }
    for consumer in consumers {
        let again = once(probe, consumer, id, b"").await;
        assert_eq!(again, Processed::Duplicate(Some(consumer.into())));
    }
    assert_eq!(probe.effects().await, 4);
    Ok(())
}

/// The id is remembered only if the transaction commits.
pub async fn a_rolled_back_record_is_forgotten<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let (store, id) = (probe.store(), EventId::now());
    let mut tx = store.begin().await.expect("begin");
    store.record(&mut tx, "payments", id).await.expect("record");
    store.store_result(&mut tx, "payments", id, "paid".into()).await.expect("store_result");
    probe.take_effect(&mut tx).await;
    store.rollback(tx).await;
    assert_eq!(probe.effects().await, 0);
    assert_eq!(record(&**probe, "payments", id).await, Seen::First);
    Ok(())
}

/// Dropping the transaction has the same effect, later.
pub async fn a_dropped_transaction_is_forgotten<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let (store, id) = (probe.store(), EventId::now());
    let mut tx = store.begin().await.expect("begin");
    store.record(&mut tx, "payments", id).await.expect("record");
    probe.take_effect(&mut tx).await;
    drop(tx);
    assert_eq!(record(&**probe, "payments", id).await, Seen::First);
    assert_eq!(probe.effects().await, 0);
    Ok(())
}

/// An effect that fails is rolled back with its id, and redelivery tries again.
pub async fn a_failed_effect_can_be_tried_again<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let (store, id) = (probe.store(), EventId::now());
    let mut tx = store.begin().await.expect("begin");
    let inner = Arc::clone(probe);
    let failed = store
        .process(&mut tx, "payments", id, move |tx| {
            Box::pin(async move {
                inner.take_effect(tx).await;
                Err(Failure::transient("E-TEST", "the card terminal is busy"))
            })
        })
        .await;
    assert_eq!(failed.expect_err("the effect's own error").code(), "E-TEST");
    store.rollback(tx).await;

    assert!(!once(probe, "payments", id, b"").await.is_duplicate());
    assert_eq!(once(probe, "payments", id, b"").await, Processed::Duplicate(None));
    assert_eq!(probe.effects().await, 1);
    Ok(())
}

/// Of two transactions that record the same id, the second waits until the first ends, and then
/// sees it, or finds it free.
pub async fn a_second_transaction_waits_for_the_first<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    for commits in [true, false] {
        let (store, id) = (probe.store(), EventId::now());
        let mut tx = store.begin().await.expect("begin");
        store.record(&mut tx, "payments", id).await.expect("record");
        store.store_result(&mut tx, "payments", id, "paid".into()).await.expect("store_result");
        let inner = Arc::clone(probe);
        let second = tokio::spawn(async move { record(&*inner, "payments", id).await }.boxed());
        // Time for a wrong store to answer; a right one waits for as long as it takes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!second.is_finished(), "answered while the first was undecided");
        let expected = if commits {
            store.commit(tx).await.expect("commit");
            Seen::Duplicate { result: Some("paid".into()) }
        } else {
            store.rollback(tx).await;
            Seen::First
        };
        assert_eq!(second.await.expect("no panic"), expected);
    }
    Ok(())
}

/// However many copies of a message come at once, one takes effect and all get its result.
pub async fn of_concurrent_duplicates_one_takes_effect<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let id = EventId::now();
    let copies = at_once((0..64_u8).map(|copy| {
        let probe = Arc::clone(probe);
        async move { once(&probe, "payments", id, &[b'r', copy]).await }.boxed()
    }));
    let (again, first): (Vec<_>, Vec<_>) =
        copies.await.into_iter().partition(Processed::is_duplicate);
    let [Processed::Applied(result)] = first.as_slice() else {
        panic!("one takes effect, not {}", first.len());
    };
    let expected = Processed::Duplicate(Some(result.clone()));
    assert!(again.iter().all(|seen| *seen == expected), "{again:?} got {expected:?}");
    assert_eq!(probe.effects().await, 1);
    Ok(())
}

/// Different messages at once do not disturb each other.
pub async fn concurrent_messages_all_take_effect<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    let messages = at_once((0..64).map(|_| {
        let (probe, id) = (Arc::clone(probe), EventId::now());
        async move { once(&probe, "payments", id, b"paid").await }.boxed()
    }));
    assert!(!messages.await.iter().any(Processed::is_duplicate));
    assert_eq!(probe.effects().await, 64);
    Ok(())
}

/// Ids recorded longer ago than `age`, by the store's clock, are forgotten; others are not.
pub async fn old_ids_are_forgotten_and_young_ones_kept<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    probe.keeps_ids()?;
    let (old, young) = (EventId::now(), EventId::now());
    record(&**probe, "payments", old).await;
    record(&**probe, "stock", old).await;
    probe.pass(P::TICK * 2).await;
    record(&**probe, "payments", young).await;
    assert_eq!(forget(&**probe, P::TICK * 100, 10).await, 0, "nothing is that old");
    assert_eq!(forget(&**probe, P::TICK, 10).await, 2);
    assert_eq!(forget(&**probe, P::TICK, 10).await, 0);
    assert_eq!(record(&**probe, "payments", young).await, Seen::Duplicate { result: None });
    Ok(())
}

/// One call forgets at most `limit`, so that clean-up never holds anybody up.
pub async fn at_most_the_limit_is_forgotten<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    probe.keeps_ids()?;
    for _ in 0..7 {
        record(&**probe, "payments", EventId::now()).await;
    }
    probe.pass(P::TICK * 2).await;
    for expected in [3, 3, 1, 0] {
        assert_eq!(forget(&**probe, P::TICK, 3).await, expected);
    }
    Ok(())
}

/// A message that comes again after that takes effect again.
pub async fn what_was_forgotten_takes_effect_again<P: InboxProbe>(probe: &Arc<P>) -> Ran {
    probe.keeps_ids()?;
    let id = EventId::now();
    once(probe, "payments", id, b"first").await;
    probe.pass(P::TICK * 2).await;
    assert_eq!(forget(&**probe, P::TICK, 10).await, 1);
    let again = once(probe, "payments", id, b"second").await;
    assert_eq!(again, Processed::Applied("second".into()));
    assert_eq!(probe.effects().await, 2);
    Ok(())
}

/// Records an id in a transaction of its own.
async fn record<P: InboxProbe>(probe: &P, consumer: &str, id: EventId) -> Seen {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    let seen = store.record(&mut tx, consumer, id).await.expect("record");
    store.commit(tx).await.expect("commit");
    seen
}

/// Handles a message as a consumer does: one effect, one transaction.
async fn once<P: InboxProbe>(
    probe: &Arc<P>,
    consumer: &str,
    id: EventId,
    result: &[u8],
) -> Processed {
    let store = probe.store();
    let (inner, result) = (Arc::clone(probe), result.to_vec());
    let mut tx = store.begin().await.expect("begin");
    let processed = store
        .process(&mut tx, consumer, id, move |tx| {
            Box::pin(async move {
                inner.take_effect(tx).await;
                Ok::<_, Failure>(result.into())
            })
        })
        .await
        .expect("processed");
    store.commit(tx).await.expect("commit");
    processed
}

async fn forget<P: InboxProbe>(probe: &P, age: Duration, limit: usize) -> usize {
    probe.store().forget(age, limit).await.expect("forget")
}
