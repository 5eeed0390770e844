//! Marks, and transactions that begin with them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::inbox::{Opening, Seen};
use semel_core::letters::{DeadLetters, Letter};
use semel_core::marks::Step;
use semel_core::{EventId, InboxStore, Marks};

use super::{LettersProbe, message, put};
use crate::probe::Ran;
use crate::workload::{at_once, event};

/// Each consumer and scope has its own, which only rises.
pub async fn a_mark_rises_and_never_falls<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (store, marks) = (probe.store(), probe.marks());
    for (consumer, scope, to, rises) in [
        ("payments", "order/1", 5, true),
        ("payments", "order/1", 5, false),
        ("payments", "order/1", 4, false),
        ("payments", "order/1", 6, true),
        ("payments", "Order/1", 0, true),
        ("payments", "Order/1", 0, false),
        ("payment", "order/1", 1, true),
        ("payments", "order/1", u64::MAX / 4, true),
    ] {
        let mut tx = store.begin().await.expect("begin");
        let rose = marks.advance(&mut tx, consumer, scope, to).await.expect("advance");
        assert_eq!(rose, rises, "{consumer} {scope} {to}");
        store.commit(tx).await.expect("commit");
    }
    let mut tx = store.begin().await.expect("begin");
    let mut mark = async |scope| marks.mark(&mut tx, "payments", scope).await.expect("mark");
    assert_eq!(mark("Order/1").await, Some(0));
    assert_eq!(mark("order/1").await, Some(u64::MAX / 4));
    assert_eq!(mark("order/2").await, None);
    Ok(())
}

/// Nothing is left of a transaction that is rolled back.
pub async fn a_mark_counts_only_if_its_transaction_commits<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (store, marks) = (probe.store(), probe.marks());
    for rises in [true, true] {
        let mut tx = store.begin().await.expect("begin");
        assert_eq!(marks.advance(&mut tx, "payments", "a", 7).await.expect("advance"), rises);
        assert_eq!(marks.mark(&mut tx, "payments", "a").await.expect("mark"), Some(7));
        store.rollback(tx).await;
    }
    Ok(())
}

/// Of two transactions that raise the same mark, the second waits and sees what the first did.
pub async fn a_second_transaction_waits_for_the_mark<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    for begins_with in [None, Some(1)] {
        let scope = format!("begins with {begins_with:?}");
        let store = probe.store();
        if let Some(to) = begins_with {
            assert!(advance(probe, &scope, to).await);
        }
        let mut tx = store.begin().await.expect("begin");
        assert!(probe.marks().advance(&mut tx, "payments", &scope, 5).await.expect("advance"));
        let raise = |to| {
            let (inner, scope) = (Arc::clone(probe), scope.clone());
            tokio::spawn(async move { advance(&inner, &scope, to).await }.boxed())
        };
        let (lower, higher) = (raise(5), raise(6));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!lower.is_finished() && !higher.is_finished(), "the first is undecided");
        store.commit(tx).await.expect("commit");
        assert!(!lower.await.expect("no panic"), "it is not above");
        assert!(higher.await.expect("no panic"));
    }
    Ok(())
}

/// Several marks at once, each only if it is where it is thought to be.
pub async fn a_mark_moves_only_from_where_it_is<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    for scope in ["log:a", "log:b", "log:A"] {
        assert!(advance(probe, scope, 3).await);
    }
    let step = |scope, from, to| Step { scope, from, to };
    let steps = [
        step("log:a", 3, 9),
        step("log:b", 2, 9),
        step("log:none", 0, 9),
        step("log:A", 3, 1), // back, too
    ];
    let (store, marks) = (probe.store(), probe.marks());
    for expected in [[true, false, false, true], [false; 4]] {
        let mut tx = store.begin().await.expect("begin");
        let moved = marks.step_all(&mut tx, "payments", &steps).await.expect("moved");
        assert_eq!(moved, expected);
        assert!(marks.step_all(&mut tx, "payments", &[]).await.expect("nothing to do").is_empty());
        let others = marks.step_all(&mut tx, "others", &steps).await.expect("moved");
        assert_eq!(others, [false; 4], "each consumer has its own");
        store.commit(tx).await.expect("commit");
    }
    let mut tx = store.begin().await.expect("begin");
    for (scope, mark) in
        [("log:a", Some(9)), ("log:b", Some(3)), ("log:none", None), ("log:A", Some(1))]
    {
        assert_eq!(marks.mark(&mut tx, "payments", scope).await.expect("mark"), mark, "{scope}");
    }
    Ok(())
}

/// A transaction that begins with a step, an id, and without letters: all of it, or nothing.
pub async fn a_beginning_is_as_expected_or_empty<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (store, marks, letters) = (probe.store(), probe.marks(), probe.letters());
    if !marks.is_beside_inbox() || !letters.is_beside_inbox() {
        return Ok(()); // Nobody would expect anything of them.
    }
    let known = EventId::now();
    for (consumer, scope) in [("payments", "log:a"), ("Lager ü '\\", "log:'b $1 \\")] {
        let mut tx = store.begin().await.expect("begin");
        assert!(marks.advance(&mut tx, consumer, scope, 3).await.expect("advance"));
        store.record(&mut tx, consumer, known).await.expect("record");
        store.commit(tx).await.expect("commit");
    }
    for (consumer, scope) in [("payments", "log:a"), ("Lager ü '\\", "log:'b $1 \\")] {
        let mut mark = 3;
        for (from, is_known) in [(3, false), (9, true), (3, false), (9, false)] {
            let step = Step { scope, from, to: from + 6 };
            let id = if is_known { known } else { EventId::now() };
            let opening = Opening { steps: &[step], ids: &[id], no_letters: true };
            let begun = store.begin_with(consumer, opening).await.expect("begin_with");
            let (mut tx, is_so) = begun;
            assert!(!is_so || (from == mark && !is_known), "from {from}, known: {is_known}");
            mark = if is_so { step.to } else { mark };
            let found = marks.mark(&mut tx, consumer, scope).await.expect("mark");
            assert_eq!(found, Some(mark), "from {from}, known: {is_known}");
            let seen = store.record(&mut tx, consumer, id).await.expect("record");
            assert_eq!(seen == Seen::First, !is_so && !is_known);
            store.commit(tx).await.expect("commit");
        }
    }
    put(probe, &Letter::behind(message(&event("1", 1)))).await;
    let mut tx = store.begin().await.expect("begin");
    let mark = marks.mark(&mut tx, "payments", "log:a").await.expect("mark").expect("a mark");
    store.rollback(tx).await;
    let step = Step { scope: "log:a", from: mark, to: mark + 1 };
    let opening = Opening { steps: &[step], ids: &[EventId::now()], no_letters: true };
    let (mut tx, is_so) = store.begin_with("payments", opening).await.expect("begin_with");
    assert!(!is_so, "there is a letter");
    let moved = marks.step_all(&mut tx, "payments", &[step]).await.expect("moved");
    assert_eq!(moved, [true], "nothing of it is done");
    Ok(())
}

/// Of two transactions that begin with a step from the same place, the second waits and is told.
pub async fn of_two_that_begin_with_a_step_one_does<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    assert!(advance(probe, "log:a", 3).await);
    let begins = |probe: Arc<P>| {
        async move {
            let store = probe.store();
            let step = Step { scope: "log:a", from: 3, to: 9 };
            let opening = Opening { steps: &[step], ..Opening::default() };
            let begun = store.begin_with("payments", opening).await.expect("begin_with");
            let (mut tx, mut moved) = begun;
            if !moved {
                let all = probe.marks().step_all(&mut tx, "payments", &[step]).await;
                moved = all.expect("moved") == [true];
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            store.commit(tx).await.expect("commit");
            moved
        }
        .boxed()
    };
    let all = at_once((0..8).map(|_| begins(Arc::clone(probe)))).await;
    assert_eq!(all.into_iter().filter(|moved| *moved).count(), 1);
    Ok(())
}

/// Of two transactions that move the same mark from the same place, the second waits and is told.
pub async fn of_two_that_move_a_mark_one_does<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    assert!(advance(probe, "log:a", 3).await);
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    let step = Step { scope: "log:a", from: 3, to: 5 };
    assert_eq!(probe.marks().step_all(&mut tx, "payments", &[step]).await.expect("moved"), [true]);
    let inner = Arc::clone(probe);
    let second = async move {
        let mut tx = inner.store().begin().await.expect("begin");
        let moved = inner.marks().step_all(&mut tx, "payments", &[step]).await.expect("an answer");
        let mark = inner.marks().mark(&mut tx, "payments", "log:a").await.expect("mark");
        inner.store().commit(tx).await.expect("commit");
        (moved, mark)
    };
    let second = tokio::spawn(second.boxed());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!second.is_finished(), "the first is undecided");
    store.commit(tx).await.expect("commit");
    assert_eq!(second.await.expect("no panic"), (vec![false], Some(5)));
    Ok(())
}

async fn advance<P: LettersProbe>(probe: &Arc<P>, scope: &str, to: u64) -> bool {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    let rose = probe.marks().advance(&mut tx, "payments", scope, to).await.expect("advance");
    store.commit(tx).await.expect("commit");
    rose
}
