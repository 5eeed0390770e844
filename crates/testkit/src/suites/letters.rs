//! What every store of [`DeadLetters`] and [`Marks`] must do.

mod marks;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::inbox::Seen;
use semel_core::letters::{DeadLetters, Letter, LetterBook, LetterState, Standing};
use semel_core::{Event, EventId, Failure, InboxStore, Marks, Message};

use super::inbox::InboxProbe;
use crate::probe::Ran;
use crate::workload::{at_once, event};

pub use marks::*;

/// The transaction of a probe's effects.
pub type TxOf<P> = <<P as InboxProbe>::Store as InboxStore>::Tx<'static>;

/// How the suite gets at letters and marks.
pub trait LettersProbe: InboxProbe {
    /// The letters.
    type Letters: DeadLetters<TxOf<Self>>;
    /// The marks.
    type Marks: Marks<TxOf<Self>>;
    /// Whether the letters tell what they [concern](DeadLetters::concerned) from all else; false for
    /// those that leave that to the default.
    const TELLS_APART: bool = true;

    /// The letters.
    fn letters(&self) -> &Self::Letters;

    /// The marks.
    fn marks(&self) -> &Self::Marks;
}

/// One test per scenario of the [`DeadLetters`](semel_core::DeadLetters) and
/// [`Marks`](semel_core::Marks) contracts, for a
/// [`LettersProbe`](crate::suites::letters::LettersProbe).
#[macro_export]
macro_rules! letters_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { letters, $probe,
            a_letter_is_kept_as_it_was
            a_letter_is_kept_whatever_its_error_is
            a_letter_counts_only_if_its_transaction_commits
            a_message_knows_where_it_stands
            many_messages_know_at_once_whether_letters_concern_them
            a_letter_that_is_put_again_keeps_its_place
            letters_of_a_lane_are_due_one_after_the_other
            a_letter_waits_for_those_before_it
            what_is_discarded_counts_as_taken_effect_for
            what_is_held_back_goes_when_its_turn_comes
            what_is_held_back_too_long_goes_in_sequence
            whatever_is_held_back_too_long_goes
            what_is_held_back_too_long_goes_when_the_letter_before_it_leaves
            what_is_retried_goes_when_the_letter_before_it_leaves
            what_is_behind_a_discarded_letter_goes_when_the_one_before_it_leaves
            nobody_is_put_behind_a_letter_that_leaves
            a_mark_rises_and_never_falls
            a_mark_counts_only_if_its_transaction_commits
            a_second_transaction_waits_for_the_mark
            a_mark_moves_only_from_where_it_is
            of_two_that_move_a_mark_one_does
            a_beginning_is_as_expected_or_empty
            of_two_that_begin_with_a_step_one_does
        }
    };
}

/// Message, attempts and error come back; consumers are told apart.
pub async fn a_letter_is_kept_as_it_was<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let odd = event("Lager ü 🚀", 1)
        .with_header("note", "a\nb")
        .with_bytes("image/png", vec![0, 159, 146, 150])
        .with_idempotency_key("key");
    let mut message = Message::first("orders/ü", odd);
    message.key = Some("other".into());
    message.attempt = 5;
    let failure = Failure::refused("E-TEST", "no such product");
    put(probe, &Letter::dead(message.clone(), &failure)).await;
    let id = message.event.id;
    let found = probe.letters().find("payments", id).await.expect("find").expect("a letter");
    assert_eq!((found.message.event.as_ref(), found.attempts), (message.event.as_ref(), 5));
    assert_eq!((found.message.topic, found.message.key), (message.topic, message.key));
    assert_eq!(found.error.as_deref(), Some("E-TEST: no such product"));
    assert_eq!(found.state, LetterState::Dead);
    assert!(probe.letters().find("payment", id).await.expect("find").is_none());
    for number in 2..=4 {
        put(probe, &dead(&event("b", number))).await;
    }
    let first = probe.letters().page("payments", 0, 3).await.expect("page");
    let second = probe.letters().page("payments", first[2].0, 3).await.expect("page");
    assert_eq!((first.len(), second.len()), (3, 1));
    Ok(())
}

/// An error may hold what no table takes, or more than fits: the letter is kept all the same.
pub async fn a_letter_is_kept_whatever_its_error_is<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let errors = ["unknown variant `a\0b`".to_owned(), "ü🚀".repeat(12_000), "\0".repeat(70_000)];
    for (number, error) in (1..).zip(errors) {
        let message = message(&event("a", number));
        let failure = Failure::refused("E-TEST", error);
        put(probe, &Letter::dead(message.clone(), &failure)).await;
        let found = probe.letters().find("payments", message.event.id).await.expect("find");
        let kept = found.expect("a letter").error.expect("an error");
        let shown = failure.to_string().replace('\0', "\u{fffd}");
        let begins = kept.strip_prefix("E-TEST: ").is_some_and(|kept| shown.starts_with(kept));
        assert!(begins && kept.len() > 20, "{kept}");
    }
    Ok(())
}

/// Nothing is left of a transaction that is rolled back.
pub async fn a_letter_counts_only_if_its_transaction_commits<P: LettersProbe>(
    probe: &Arc<P>,
) -> Ran {
    let (store, letters, event) = (probe.store(), probe.letters(), event("a", 1));
    let mut tx = store.begin().await.expect("begin");
    letters.put(&mut tx, "payments", &dead(&event)).await.expect("put");
    assert!(letters.any(&mut tx, "payments").await.expect("any"));
    store.rollback(tx).await;
    assert_eq!(standing(probe, &event).await, (false, Standing::Free));

    put(probe, &dead(&event)).await;
    let mut tx = store.begin().await.expect("begin");
    letters.remove(&mut tx, "payments", &event).await.expect("remove");
    store.rollback(tx).await;
    assert_eq!(standing(probe, &event).await, (true, Standing::Own));
    Ok(())
}

/// Itself among the letters, others of its lane, or neither.
pub async fn a_message_knows_where_it_stands<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (first, second, other) = (event("a", 1), event("a", 2), event("b", 3));
    assert_eq!(standing(probe, &first).await, (false, Standing::Free));
    put(probe, &dead(&first)).await;
    assert_eq!(standing(probe, &first).await, (true, Standing::Own));
    assert_eq!(standing(probe, &second).await, (true, Standing::Behind));
    assert_eq!(standing(probe, &other).await, (true, Standing::Free));
    take_up(probe, &first).await;
    assert_eq!(standing(probe, &second).await, (false, Standing::Free));
    Ok(())
}

/// Whoever is a letter, or has one in its lane; the letters of other consumers are nobody's affair.
pub async fn many_messages_know_at_once_whether_letters_concern_them<P: LettersProbe>(
    probe: &Arc<P>,
) -> Ran {
    let events: Vec<_> = (0..700).map(|n| event(&format!("lane {}", n % 350), n)).collect();
    put(probe, &dead(&events[3])).await;
    put(probe, &Letter::behind(message(&events[353]))).await;
    put(probe, &dead(&events[649])).await;
    let (asked, store) = (events.iter().collect::<Vec<_>>(), probe.store());
    let mut tx = store.begin().await.expect("begin");
    // One that leaves in the same transaction.
    probe.letters().remove(&mut tx, "payments", &events[649]).await.expect("remove");
    let held = Letter::held(message(&events[10]), probe.now() + Duration::from_secs(3600));
    probe.letters().put(&mut tx, "payments", &held).await.expect("put");
    for (consumer, of_lanes) in [("payments", vec![3]), ("payment", vec![])] {
        let concerned =
            probe.letters().concerned(&mut tx, consumer, &asked).await.expect("concerned");
        assert_eq!(concerned.len(), asked.len());
        for ((place, event), is_concerned) in events.iter().enumerate().zip(concerned) {
            let is_held = consumer == "payments" && place % 350 == 10;
            let expected = of_lanes.contains(&(place % 350));
            let standing = probe.letters().standing(&mut tx, consumer, event);
            if is_concerned || place % 50 == 0 {
                let is_free = standing.await.expect("standing") == Standing::Free;
                assert!(is_concerned || is_free, "{consumer}: {place} is among the letters");
            }
            let is_as_told = is_concerned == expected || is_held || !P::TELLS_APART;
            assert!(is_as_told, "{consumer}: {place}: {is_concerned}");
        }
    }
    let none = probe.letters().concerned(&mut tx, "payments", &[]).await.expect("concerned");
    assert!(none.is_empty());
    store.rollback(tx).await;
    Ok(())
}

/// The last error counts, the place stays.
pub async fn a_letter_that_is_put_again_keeps_its_place<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (first, second) = (event("a", 1), event("a", 2));
    put(probe, &dead(&first)).await;
    put(probe, &Letter::behind(message(&second))).await;
    let again = Letter::dead(message(&first), &Failure::transient("E-TEST", "again"));
    put(probe, &again).await;
    let page = probe.letters().page("payments", 0, 10).await.expect("page");
    let ids: Vec<_> = page.iter().map(|(_, letter)| letter.message.event.id).collect();
    assert_eq!(ids, [first.id, second.id]);
    assert_eq!(page[0].1.error.as_deref(), Some("E-TEST: again"));
    Ok(())
}

/// The first is due when it is asked for, the next when the first has gone.
pub async fn letters_of_a_lane_are_due_one_after_the_other<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (first, second, third, other) =
        (event("a", 1), event("a", 2), event("a", 3), event("b", 4));
    put(probe, &dead(&first)).await;
    put(probe, &dead(&other)).await;
    for behind in [&second, &third] {
        put(probe, &Letter::behind(message(behind))).await;
    }
    assert_eq!(due(probe).await, []);
    let ids = [first.id, other.id, second.id, EventId::now()];
    assert_eq!(probe.letters().retry("payments", &ids).await.expect("retry"), 2, "the dead ones");
    assert_eq!(probe.letters().retry("payments", &ids).await.expect("retry"), 0, "once");
    assert_eq!(due(probe).await, [first.id, other.id]);
    for (gone, left) in [(&first, vec![other.id, second.id]), (&second, vec![other.id, third.id])] {
        take_up(probe, gone).await;
        assert_eq!(due(probe).await, left);
    }
    Ok(())
}

/// A letter that is retried before an earlier one waits for it.
pub async fn a_letter_waits_for_those_before_it<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (first, second) = (event("a", 1), event("a", 2));
    put(probe, &dead(&first)).await;
    put(probe, &dead(&second)).await;
    probe.letters().retry("payments", &[second.id]).await.expect("retry");
    assert_eq!(due(probe).await, []);
    probe.letters().retry("payments", &[first.id]).await.expect("retry");
    assert_eq!(due(probe).await, [first.id]);
    take_up(probe, &first).await;
    assert_eq!(due(probe).await, [second.id]);
    Ok(())
}

/// A letter that is given up is not taken up when the broker brings it again, and its lane goes on.
pub async fn what_is_discarded_counts_as_taken_effect_for<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (first, second) = (event("a", 1), event("a", 2));
    put(probe, &dead(&first)).await;
    put(probe, &Letter::behind(message(&second))).await;
    let ids = [first.id, EventId::now()];
    assert_eq!(probe.letters().discard("payments", &ids).await.expect("discard"), 1);
    assert_eq!(due(probe).await, [second.id]);
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    let seen = store.record(&mut tx, "payments", first.id).await.expect("record");
    assert_eq!(seen, Seen::Duplicate { result: None });
    Ok(())
}

/// An event whose predecessor was missing is due once that has taken effect; its lane is free.
pub async fn what_is_held_back_goes_when_its_turn_comes<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let numbered = |number| event("a", number).with_sequence(number);
    let (second, third, fourth) = (numbered(2), numbered(3), numbered(4));
    let until = probe.now() + Duration::from_secs(3600);
    for early in [&fourth, &third] {
        put(probe, &Letter::held(message(early), until)).await;
    }
    assert_eq!(standing(probe, &second).await, (true, Standing::Free));
    assert_eq!(standing(probe, &third).await, (true, Standing::Own));
    assert_eq!(due(probe).await, []);
    release(probe, &second).await;
    assert_eq!(due(probe).await, [third.id]);
    take_up(probe, &third).await;
    release(probe, &third).await;
    assert_eq!(due(probe).await, [fourth.id]);
    Ok(())
}

/// When the patience ends, what was held back goes in the order of its sequence.
pub async fn what_is_held_back_too_long_goes_in_sequence<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let numbered = |number| event("a", number).with_sequence(number);
    let (third, fourth) = (numbered(3), numbered(4));
    let until = probe.now() + P::TICK;
    for early in [&fourth, &third] {
        put(probe, &Letter::held(message(early), until)).await;
    }
    probe.pass(P::TICK * 2).await;
    assert_eq!(due(probe).await, [third.id]);
    take_up(probe, &third).await;
    assert_eq!(due(probe).await, [fourth.id]);
    Ok(())
}

/// Also what is put while others are given up, whoever looks at the same time.
pub async fn whatever_is_held_back_too_long_goes<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    const LANES: u64 = 100;
    const WRITERS: u64 = 4;
    let until = probe.now();
    probe.pass(P::TICK).await;
    let write = |writer| {
        let probe = Arc::clone(probe);
        async move {
            for lane in (writer..LANES).step_by(usize::try_from(WRITERS).expect("few")) {
                let early = event(&lane.to_string(), lane + 2).with_sequence(2);
                put(&probe, &Letter::held(message(&early), until)).await;
            }
        }
        .boxed()
    };
    let looking = {
        let probe = Arc::clone(probe);
        let look = async move {
            loop {
                due(&probe).await;
                tokio::task::yield_now().await;
            }
        };
        tokio::spawn(look.boxed())
    };
    at_once((0..WRITERS).map(write)).await;
    looking.abort();
    looking.await.ok();
    let all = probe.letters().due("payments", 1_000).await.expect("due");
    assert_eq!(all.len() as u64, LANES, "others wait for ever");
    Ok(())
}

/// What was held back is not left behind a letter that is just leaving.
pub async fn what_is_held_back_too_long_goes_when_the_letter_before_it_leaves<P: LettersProbe>(
    probe: &Arc<P>,
) -> Ran {
    let numbered = |number| event("a", number).with_sequence(number);
    let (first, third) = (numbered(1), numbered(3));
    put(probe, &dead(&first)).await;
    probe.letters().retry("payments", &[first.id]).await.expect("retry");
    put(probe, &Letter::held(message(&third), probe.now() + P::TICK)).await;
    probe.pass(P::TICK * 2).await;
    let looks = async |probe: Arc<P>| drop(due(&probe).await);
    while_it_leaves(probe, &first, looks(Arc::clone(probe))).await;
    assert_eq!(due(probe).await, [third.id]);
    Ok(())
}

/// A letter that is retried is not left behind one that is just leaving.
pub async fn what_is_retried_goes_when_the_letter_before_it_leaves<P: LettersProbe>(
    probe: &Arc<P>,
) -> Ran {
    let (first, second) = (event("a", 1), event("a", 2));
    put(probe, &dead(&first)).await;
    put(probe, &dead(&second)).await;
    probe.letters().retry("payments", &[first.id]).await.expect("retry");
    let (inner, id) = (Arc::clone(probe), second.id);
    let retries = async move {
        assert_eq!(inner.letters().retry("payments", &[id]).await.expect("retry"), 1);
    };
    while_it_leaves(probe, &first, retries).await;
    assert_eq!(due(probe).await, [second.id]);
    Ok(())
}

/// Nor is what was behind a letter that is discarded.
pub async fn what_is_behind_a_discarded_letter_goes_when_the_one_before_it_leaves<
    P: LettersProbe,
>(
    probe: &Arc<P>,
) -> Ran {
    let (first, second, third) = (event("a", 1), event("a", 2), event("a", 3));
    put(probe, &dead(&first)).await;
    put(probe, &dead(&second)).await;
    put(probe, &Letter::behind(message(&third))).await;
    probe.letters().retry("payments", &[first.id]).await.expect("retry");
    let (inner, id) = (Arc::clone(probe), second.id);
    let discards = async move {
        assert_eq!(inner.letters().discard("payments", &[id]).await.expect("discard"), 1);
    };
    while_it_leaves(probe, &first, discards).await;
    assert_eq!(due(probe).await, [third.id]);
    Ok(())
}

/// Whoever asks where it stands waits for a letter of its lane that is just leaving.
pub async fn nobody_is_put_behind_a_letter_that_leaves<P: LettersProbe>(probe: &Arc<P>) -> Ran {
    let (first, second) = (event("a", 1), event("a", 2));
    put(probe, &dead(&first)).await;
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    probe.letters().remove(&mut tx, "payments", &first).await.expect("remove");
    let inner = Arc::clone(probe);
    let asking = tokio::spawn(async move { standing(&inner, &second).await }.boxed());
    // Time for a wrong store to answer; a right one waits for as long as it takes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!asking.is_finished(), "answered while the first was undecided");
    store.commit(tx).await.expect("commit");
    assert_eq!(asking.await.expect("no panic").1, Standing::Free);
    Ok(())
}

fn message(event: &Event) -> Message {
    Message::first("orders", event.clone())
}

fn dead(event: &Event) -> Letter {
    Letter::dead(message(event), &Failure::refused("E-TEST", "no"))
}

async fn put<P: LettersProbe>(probe: &Arc<P>, letter: &Letter) {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    probe.letters().put(&mut tx, "payments", letter).await.expect("put");
    store.commit(tx).await.expect("commit");
}

/// It has taken effect.
async fn take_up<P: LettersProbe>(probe: &Arc<P>, event: &Event) {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    probe.letters().remove(&mut tx, "payments", event).await.expect("remove");
    store.commit(tx).await.expect("commit");
}

/// Does something while the transaction is open in which a letter takes effect.
async fn while_it_leaves<P: LettersProbe>(
    probe: &Arc<P>,
    leaving: &Event,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    probe.letters().remove(&mut tx, "payments", leaving).await.expect("remove");
    let work = tokio::spawn(work.boxed());
    // Time for it to be done, or to wait.
    tokio::time::sleep(Duration::from_millis(200)).await;
    store.commit(tx).await.expect("commit");
    work.await.expect("no panic");
}

async fn release<P: LettersProbe>(probe: &Arc<P>, event: &Event) {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    probe.letters().release(&mut tx, "payments", event).await.expect("release");
    store.commit(tx).await.expect("commit");
}

/// Whether there is any letter, and where the event stands.
async fn standing<P: LettersProbe>(probe: &Arc<P>, event: &Event) -> (bool, Standing) {
    let store = probe.store();
    let mut tx = store.begin().await.expect("begin");
    let standing = probe.letters().standing(&mut tx, "payments", event).await.expect("standing");
    let any = probe.letters().any(&mut tx, "payments").await.expect("any");
    store.commit(tx).await.expect("commit");
    (any, standing)
}

async fn due<P: LettersProbe>(probe: &Arc<P>) -> Vec<EventId> {
    let due = probe.letters().due("payments", 10).await.expect("due");
    due.iter().map(|message| message.event.id).collect()
}
