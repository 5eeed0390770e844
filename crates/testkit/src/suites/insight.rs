//! What every [`Insight`] must do.

use semel_core::{EventId, Insight};

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
