//! One suite per contract. A scenario is a public async function over a probe, one for each
//! sentence of the contract's documentation; a macro stamps one test for each.
//!
//! | contract | suite | macro |
//! |---|---|---|
//! | [`OutboxWriter`](semel_core::OutboxWriter) | [`outbox`] | [`outbox_suite!`](crate::outbox_suite) |
//! | [`Source`](semel_core::Source) | [`source`] | [`source_suite!`](crate::source_suite) |
//! | [`Sink`](semel_core::Sink) | [`sink`] | [`sink_suite!`](crate::sink_suite) |
//! | [`InboxStore`](semel_core::InboxStore) | [`inbox`] | [`inbox_suite!`](crate::inbox_suite) |
//! | [`IdempotencyStore`](semel_core::IdempotencyStore) | [`idempotency`] | [`idempotency_suite!`](crate::idempotency_suite) |
//! | [`AdminStore`](semel_core::AdminStore) | [`admin`] | [`admin_suite!`](crate::admin_suite) |

pub mod admin;
pub mod idempotency;
pub mod inbox;
pub mod outbox;
pub mod sink;
pub mod source;

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
