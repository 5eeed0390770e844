//! What every [`Source`] must do.

mod flow;
mod order;
mod settle;
mod storm;
mod waiting;

use std::future::Future;

use semel_core::Source;

use crate::probe::{Ran, Skip, WriteProbe};

pub use flow::*;
pub use order::*;
pub use settle::*;
pub use storm::*;
pub use waiting::*;

/// How the suite gets at a source. What it can do beyond this, its
/// [`Guarantees`](semel_core::Guarantees) and the answers below say.
pub trait SourceProbe: WriteProbe {
    /// The source.
    type Source: Source + 'static;

    /// After a crash, what was settled behind an unsettled delivery may come again: the source
    /// remembers one position only.
    const CUMULATIVE: bool = false;

    /// Opens the source as its owner; whoever owned it before is fenced off.
    fn open(&self) -> impl Future<Output = Self::Source> + Send;

    /// Loses the owner without a goodbye, and opens the source again.
    fn reopen(&self, crashed: Self::Source) -> impl Future<Output = Self::Source> + Send {
        drop(crashed);
        self.open()
    }

    /// Whether a source can be opened while another is open, and takes over from it.
    ///
    /// # Errors
    /// Why not.
    fn fences(&self) -> Ran {
        Ok(())
    }

    /// Whether a source that another took over from says so when it is asked for more, by
    /// [`is_lost`](Source::is_lost), and not only when it settles.
    ///
    /// # Errors
    /// Why not.
    fn tells_when_lost(&self) -> Ran {
        self.fences()
    }

    /// Whether it holds events back until their [`available_at`](semel_core::Event::available_at).
    ///
    /// # Errors
    /// Why not.
    fn schedules(&self) -> Ran {
        Ok(())
    }

    /// Whether an event that fell due before it was read comes behind what was written until then.
    ///
    /// # Errors
    /// Why not.
    fn places_when_due(&self) -> Ran {
        self.schedules()
    }

    /// Whether it notices a commit by itself.
    ///
    /// # Errors
    /// Why not.
    fn wakes(&self) -> Ran {
        Err(Skip::because("it cannot tell when to ask again"))
    }
}

/// One test per scenario of the [`Source`](semel_core::Source) contract, for a
/// [`SourceProbe`](crate::suites::source::SourceProbe).
#[macro_export]
macro_rules! source_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { source, $probe,
            an_empty_source_hands_out_nothing
            a_lane_keeps_its_order_over_transactions_and_batches
            lanes_are_told_apart_by_type_and_id
            rolled_back_events_never_appear
            a_transaction_that_commits_late_is_not_lost
            content_survives_unchanged
            at_most_the_limit_of_events_is_handed_out
            at_most_the_limit_of_bytes_is_handed_out
            an_event_larger_than_the_limit_is_handed_out_alone
            more_says_whether_asking_again_is_worth_it
            a_commit_wakes_the_source
            a_dropped_call_leaves_the_source_usable
            a_dropped_settle_can_be_repeated
            what_is_unsettled_is_not_handed_out_again
            delivered_survives_a_crash
            what_was_unsettled_at_a_crash_comes_again
            released_comes_again_in_its_place
            settling_twice_is_harmless
            an_unknown_receipt_is_ignored
            a_mixed_settlement_is_recorded_as_one
            an_old_owner_is_fenced_off
            an_idle_owner_learns_that_another_took_over
            a_retry_waits_for_its_time
            a_retry_survives_a_crash
            a_lane_waits_behind_a_retry_and_others_go_on
            followers_released_with_a_failed_head_come_back_in_order
            next_due_is_the_earliest_retry
            a_dead_event_parks_its_lane
            a_dead_event_that_parks_nothing_lets_its_lane_go_on
            a_scheduled_event_waits_for_its_time
            a_scheduled_event_survives_a_crash
            a_scheduled_event_takes_its_place_when_due
            an_event_that_fell_due_unread_takes_its_place_all_the_same
            a_storm_of_crashes_and_retries_loses_and_reorders_nothing
        }
    };
}
