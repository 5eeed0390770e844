//! What every [`Insight`] must do.

use std::collections::BTreeSet;

use semel_core::inbox::Tally;
use semel_core::insight::Outage;
use semel_core::{EventId, Failure, InboxStore, Insight};

/// Consumers: what took effect for each, when, for which event, and what they counted themselves.
///
/// # Panics
/// When it is not so.
pub async fn consumers_are_known_by_what_they_did(insight: &dyn Insight, inbox: &impl InboxStore) {
    let (id, other) = (EventId::now(), EventId::now());
    for (consumer, id) in [("payments", id), ("payments", other), ("emails", id)] {
        let mut tx = inbox.begin().await.expect("a transaction");
        inbox.record(&mut tx, consumer, id).await.expect("recorded");
        inbox.commit(tx).await.expect("committed");
    }
    for tally in [Tally { applied: 5, duplicates: 0 }, Tally { applied: 2, duplicates: 3 }] {
        inbox.count("payments", tally).await.expect("counted");
    }
    // It remembers positions, and no ids.
    inbox.count("stock", Tally { applied: 9, duplicates: 1 }).await.expect("counted");
    let found = insight.consumers().await.expect("consumers");
    let told: Vec<_> = found
        .iter()
        .map(|view| (view.name.as_str(), view.applied, view.duplicates, view.last.is_some()))
        .collect();
    let expected = [("emails", 1, 0, true), ("payments", 7, 3, true), ("stock", 9, 1, false)];
    assert_eq!(told, expected);
    let effects = insight.effects(id).await.expect("effects");
    let who: BTreeSet<_> = effects.iter().map(|effect| effect.consumer.as_str()).collect();
    assert_eq!(who, BTreeSet::from(["payments", "emails"]));
    assert!(effects.is_sorted_by_key(|effect| effect.at), "the earliest first: {effects:?}");
    let nobody = insight.effects(EventId::now()).await.expect("effects");
    assert!(nobody.is_empty(), "{nobody:?}");
}

/// The log of changes: newest first, in pages, each with its own end; and what a pipeline that never
/// ran looks like.
///
/// # Panics
/// When it is not so.
pub async fn the_log_of_changes_is_kept(insight: &dyn Insight) {
    let pipeline = format!("p-{}", EventId::now());
    let note = |what: &'static str| insight.note("alice", what, "orders", "state:dead 'x' \"y\"");
    let mut made = Vec::new();
    for what in ["retry", "discard", "replay"] {
        made.push(note(what).await.expect("an entry"));
    }
    assert!(made.is_sorted(), "{made:?}");
    insight.conclude(made[1], 7).await.expect("concluded");
    insight.conclude(made[1], 7).await.expect("repetition changes nothing");
    let newest = insight.activity(None, 2).await.expect("activity");
    let shown: Vec<_> = newest.iter().map(|entry| (entry.what.as_str(), entry.events)).collect();
    assert_eq!(shown, [("replay", None), ("discard", Some(7))]);
    assert_eq!(newest[0].filter, "state:dead 'x' \"y\"");
    let before = insight.activity(Some(made[1]), 1).await.expect("activity");
    assert_eq!((before[0].id, before[0].what.as_str()), (made[0], "retry"));

    let workings = insight.workings(&pipeline).await.expect("workings");
    assert!(workings.relays.is_empty(), "{workings:?}");
    assert!(workings.written.is_some());
    insight.consumers().await.expect("consumers");
}

/// Outages: each relay has one in a pipeline; it is known since when, and until it is told to be over or
/// not told of any more. `silence` lets more than [`Outage::HOLDS`] pass.
///
/// # Panics
/// When it is not so.
pub async fn outages_are_known_while_they_last(insight: &dyn Insight, silence: impl AsyncFn()) {
    let down = |what: &str| Outage::of(&Failure::unavailable("E-DOWN", what), &["out"]);
    let tell = async |relay: &str, outage: Option<&Outage>| {
        insight.tell_outage("orders", relay, outage).await.expect("told");
    };
    let known = async || insight.outages("orders").await.expect("outages");
    assert!(known().await.is_empty());
    tell("r1", Some(&down("refused"))).await;
    let first = known().await;
    assert_eq!((first[0].relay.as_str(), &first[0].outage), ("r1", &down("refused")));
    assert_eq!(insight.workings("orders").await.expect("workings").outages, first);
    assert!(insight.outages("payments").await.expect("outages").is_empty());

    let fix = "look after \"the broker's\"\n host";
    let late = Outage::of(&Failure::unavailable("E-LATE", "no \0 answer").with_fix(fix), &["", ""]);
    tell("r1", Some(&late)).await;
    let second = known().await;
    assert_eq!((second.len(), second[0].since), (1, first[0].since), "it is the same outage");
    let Outage { sink, code, error, fix: told } = &second[0].outage;
    assert_eq!((sink, code.as_str(), told.as_deref()), (&None, "E-LATE", Some(fix)));
    assert!(error.starts_with("no ") && error.ends_with(" answer"), "{error:?}");

    tell("r2", Some(&down("refused"))).await;
    tell("r1", None).await;
    tell("r1", None).await;
    let left = known().await;
    assert_eq!((left.len(), left[0].relay.as_str()), (1, "r2"));
    silence().await;
    assert!(known().await.is_empty(), "r2 is gone");
    tell("r2", Some(&down("refused"))).await;
    assert!(known().await[0].since > left[0].since, "it is another outage");
    tell("r2", None).await;
    assert!(known().await.is_empty());
}
