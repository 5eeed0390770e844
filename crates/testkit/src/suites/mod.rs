//! One suite per contract. A scenario is a public async function over a probe, one for each
//! sentence of the contract's documentation; a macro stamps one test for each.
//!
//! | contract | suite | macro |
//! |---|---|---|
//! | [`OutboxWriter`](semel_core::OutboxWriter) | [`outbox`] | [`outbox_suite!`](crate::outbox_suite) |
//! | [`Source`](semel_core::Source) | [`source`] | [`source_suite!`](crate::source_suite) |
//! | [`Source`](semel_core::Source) of a broker, beside that | [`subscription`] | [`subscription_suite!`](crate::subscription_suite) |
//! | [`Sink`](semel_core::Sink) | [`sink`] | [`sink_suite!`](crate::sink_suite) |
//! | [`InboxStore`](semel_core::InboxStore) | [`inbox`] | [`inbox_suite!`](crate::inbox_suite) |
//! | [`DeadLetters`](semel_core::DeadLetters), [`Marks`](semel_core::Marks) | [`letters`] | [`letters_suite!`](crate::letters_suite) |
//! | [`IdempotencyStore`](semel_core::IdempotencyStore) | [`idempotency`] | [`idempotency_suite!`](crate::idempotency_suite) |
//! | [`AdminStore`](semel_core::AdminStore) | [`admin`] | [`admin_suite!`](crate::admin_suite) |
//! | [`Coordinator`](semel_core::coordination::Coordinator) | [`coordination`] | [`coordination_suite!`](crate::coordination_suite) |
//! | [`Clock`](semel_core::Clock) | [`clock`] | [`clock_suite!`](crate::clock_suite) |

pub mod admin;
pub mod clock;
pub mod coordination;
pub mod idempotency;
pub mod inbox;
pub mod insight;
pub mod letters;
pub mod outbox;
pub mod sink;
pub mod source;
pub mod subscription;

/// Makes a module with one test per scenario. For the suite macros.
#[doc(hidden)]
#[macro_export]
macro_rules! stamp_suite {
    ($suite:ident, $probe:ty, $($scenario:ident)*) => {
        mod $suite {
            #[allow(unused_imports, reason = "the probe may come from anywhere")]
            use super::*;
            $(
                #[test]
                fn $scenario() {
                    $crate::probe::run::<$probe>(
                        stringify!($suite),
                        stringify!($scenario),
                        $crate::suites::$suite::$scenario::<$probe>,
                    );
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    /// The sources of each suite, and its macro among them.
    const SUITES: [&[&str]; 10] = [
        &[include_str!("clock.rs")],
        &[include_str!("coordination.rs")],
        &[include_str!("outbox.rs")],
        &[
            include_str!("source.rs"),
            include_str!("source/flow.rs"),
            include_str!("source/order.rs"),
            include_str!("source/settle.rs"),
            include_str!("source/storm.rs"),
            include_str!("source/waiting.rs"),
        ],
        &[include_str!("subscription.rs")],
        &[include_str!("sink.rs")],
        &[include_str!("inbox.rs")],
        &[include_str!("letters.rs"), include_str!("letters/marks.rs")],
        &[
            include_str!("idempotency.rs"),
            include_str!("idempotency/admin.rs"),
            include_str!("idempotency/lease.rs"),
            include_str!("idempotency/results.rs"),
        ],
        &[include_str!("admin.rs"), include_str!("admin/look.rs"), include_str!("admin/repair.rs")],
    ];

    #[test]
    fn every_scenario_is_stamped_by_its_macro() {
        for suite in SUITES {
            let (_, list) = suite[0].split_once("stamp_suite!").expect("a suite macro");
            let (list, _) = list.split_once("\n        }\n").expect("the end of the list");
            let stamped: Vec<_> = list.lines().skip(1).map(str::trim).collect();
            let scenarios = suite.iter().flat_map(|source| source.split("\npub async fn ").skip(1));
            let mut count = 0;
            for scenario in scenarios {
                let (name, _) = scenario.split_once('<').expect("a generic function");
                assert!(stamped.contains(&name), "{name} is in no suite macro");
                count += 1;
            }
            assert_eq!(count, stamped.len(), "scenarios and the list {stamped:?}");
        }
    }
}
