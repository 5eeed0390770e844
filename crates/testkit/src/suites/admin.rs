//! What every [`AdminStore`] must do.

mod look;
mod repair;

use std::sync::Arc;

use semel_core::admin::{Cursor, EventView, Filter, Page, Selection, State};
use semel_core::{AdminStore, Event, EventId, Outcome};

use crate::probe::{Ran, Skip};
use crate::suites::source::SourceProbe;
use crate::workload::{Drive, number};

pub use look::*;
pub use repair::*;

/// How the suite gets at an outbox as its operator does, while a source works on it.
pub trait AdminProbe: SourceProbe {
    /// The operator's view.
    type Admin: AdminStore + 'static;

    /// The operator's view.
    fn admin(&self) -> &Self::Admin;

    /// Whether published events are still there to be offered again.
    ///
    /// # Errors
    /// Why not.
    fn retains(&self) -> Ran {
        Ok(())
    }
}

/// One test per scenario of the [`AdminStore`](semel_core::AdminStore) contract, for an
/// [`AdminProbe`](crate::suites::admin::AdminProbe).
#[macro_export]
macro_rules! admin_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { admin, $probe,
            an_empty_outbox_has_nothing_to_show
            each_state_is_counted_and_shown
            what_was_put_aside_is_counted_once
            the_oldest_waiting_event_has_its_age
            what_waits_for_something_else_is_not_the_oldest
            lanes_that_wait_are_counted
            a_listing_is_oldest_first_and_filtered
            pages_are_complete_and_stable
            the_latest_pages_are_complete
            a_listing_has_the_sizes_of_payloads_alone
            what_failed_is_summed_up
            one_event_is_found_by_its_id
            a_retried_dead_event_goes_ahead_of_its_lane
            a_retried_dead_event_that_parked_nothing_comes_again
            a_retried_failed_event_is_due_now
            a_discarded_event_lets_its_lane_go_on
            a_replayed_event_is_offered_again
            a_selection_touches_what_matches_alone
            what_is_in_flight_is_left_alone
            repetition_changes_and_counts_nothing
            cleaning_deletes_what_is_old_enough
            cleaning_leaves_the_unpublished_alone
        }
    };
}

/// A source that parks lanes, and its operator's view.
async fn parking<P: AdminProbe>(probe: &Arc<P>) -> Result<(Drive<'_, P>, &P::Admin), Skip> {
    let drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().parking, "it does not park lanes")?;
    Ok((drive, probe.admin()))
}

/// Hands out one event of its own lane and settles it.
async fn settle_one<P: AdminProbe>(drive: &mut Drive<'_, P>, event: &Event, outcome: Outcome) {
    drive.probe.commit_all(std::slice::from_ref(event)).await;
    let taken = drive.take(1).await;
    assert_eq!(taken[0].message.event.id, event.id);
    drive.settle([(taken[0].receipt, outcome)]).await;
}

fn of_lane(lane: &str) -> Selection {
    Selection::Matching(Filter { aggregate_id: Some(lane.into()), ..Filter::default() })
}

fn everything() -> Selection {
    Selection::Matching(Filter::default())
}

fn in_state(state: State) -> Filter {
    Filter { state: Some(state), ..Filter::default() }
}

async fn list<A: AdminStore>(
    admin: &A,
    filter: &Filter,
    after: Option<Cursor>,
    limit: usize,
) -> Page {
    let page = admin.list(filter, after, limit).await.expect("list");
    assert!(page.events.len() <= limit, "{} events on a page of {limit}", page.events.len());
    page
}

/// The numbers of all events that match.
async fn listed<A: AdminStore>(admin: &A, filter: &Filter) -> Vec<u64> {
    let page = list(admin, filter, None, 1_000).await;
    assert_eq!(page.next, None, "all of it fits one page");
    numbers(admin, &page).await
}

/// The numbers of events of a page, which comes without their payloads.
async fn numbers<A: AdminStore>(admin: &A, page: &Page) -> Vec<u64> {
    let mut numbers = Vec::new();
    for listed in &page.events {
        numbers.push(number(&view(admin, listed.event.id).await.event));
    }
    numbers
}

async fn view<A: AdminStore>(admin: &A, id: EventId) -> EventView {
    admin.get(id).await.expect("get").expect("the event is there")
}
