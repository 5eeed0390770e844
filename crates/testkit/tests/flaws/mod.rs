//! The suites themselves are tested: backends that are wrong on purpose must fail them.
//!
//! Each flaw is a number, so that the probe of a flawed backend is a type of its own. [`NONE`] is
//! the same wrapper without a flaw: it must pass, so that the flaw and nothing else is caught.

mod keys;
mod outbox;
mod sink;
mod source;
mod stores;
mod subscription;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use semel_testkit::probe::{Probe, Ran, run};

/// No flaw.
const NONE: u8 = 0;

/// Checks that a scenario holds without the flaw, and fails with it, saying `because`.
macro_rules! caught {
    ($probe:ident<$flaw:ident>, $suite:ident::$scenario:ident, $because:literal) => {
        $crate::flaws::expect_caught(
            $because,
            semel_testkit::suites::$suite::$scenario::<$probe<{ $crate::flaws::NONE }>>,
            semel_testkit::suites::$suite::$scenario::<$probe<$flaw>>,
        )
    };
}
use caught;

fn expect_caught<R: Probe, W: Probe>(
    because: &str,
    right: impl AsyncFnOnce(&Arc<R>) -> Ran,
    wrong: impl AsyncFnOnce(&Arc<W>) -> Ran,
) {
    run::<R>("flaws", "without", async |probe| {
        assert_eq!(right(probe).await, Ok(()), "it must not be skipped");
        Ok(())
    });
    let outcome = catch_unwind(AssertUnwindSafe(|| run::<W>("flaws", "with", wrong)));
    let panic = outcome.expect_err("the suite passes a backend that is wrong");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains(because), "it failed for another reason: {text}");
}
