//! What a database notes about a pipeline's progress, and who worked on it, does not become more and more.

use std::time::Duration;

use semel_core::AdminStore;
use semel_core::admin::{Filter, Selection};

const HOUR: Duration = Duration::from_secs(3_600);

/// The values of notes that are so many seconds old: those of an hour, and later those of a minute.
pub(crate) fn notes(of: impl Fn(i64) -> String) -> String {
    let ages = (7_200..10_800).rev().chain((1..=60).rev());
    ages.map(of).collect::<Vec<_>>().join(", ")
}

/// A dead letter stays, and there are [`notes`] from after it.
pub(crate) async fn old_progress_is_thinned_out_while_an_event_stays(
    admin: &impl AdminStore,
    count: impl AsyncFn() -> i64,
) {
    assert!(count().await >= 3_660);
    for (age, left) in [(24 * HOUR, 60 + 60), (HOUR, 1 + 60)] {
        assert_eq!(admin.clean(age, 10_000).await.unwrap(), 0, "the event stays");
        let notes = count().await;
        // A minute more, as they are not whole ones, and what the relay noted itself.
        assert!((left..left + 5).contains(&notes), "{notes} notes, {age:?}");
    }
}

/// There is nothing else but that dead letter.
pub(crate) async fn no_progress_is_kept_for_events_that_are_gone(
    admin: &impl AdminStore,
    count: impl AsyncFn() -> i64,
    wait: impl AsyncFn(),
) {
    let all = Selection::Matching(Filter::default());
    assert_eq!(admin.discard(&all).await.unwrap(), 1);
    wait().await;
    assert_eq!(admin.clean(Duration::ZERO, 10_000).await.unwrap(), 1);
    assert!(count().await <= 1, "{} notes", count().await);
}
