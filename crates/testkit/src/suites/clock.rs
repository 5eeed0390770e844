//! What every [`Clock`] must do.

use std::sync::Arc;

use semel_core::Clock;
use semel_core::retry::later;

use crate::probe::{Probe, Ran};

/// How the suite gets at a clock.
pub trait ClockProbe: Probe {
    /// The clock that [`Probe::pass`] moves.
    fn clock(&self) -> Arc<dyn Clock>;
}

/// One test per scenario of the [`Clock`](semel_core::Clock) contract, for a
/// [`ClockProbe`](crate::suites::clock::ClockProbe).
#[macro_export]
macro_rules! clock_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { clock, $probe,
            it_moves_as_time_passes
            everyone_sees_the_same_time
        }
    };
}

/// After a while the clock shows at least that while more, and not a different time altogether.
pub async fn it_moves_as_time_passes<P: ClockProbe>(probe: &Arc<P>) -> Ran {
    let clock = probe.clock();
    let before = clock.now();
    probe.pass(P::TICK).await;
    let after = clock.now();
    assert!(after >= later(before, P::TICK), "{before} + {:?} gave {after}", P::TICK);
    assert!(after < later(before, P::TICK * 60), "{before} + {:?} gave {after}", P::TICK);
    Ok(())
}

/// Another holder of the clock, in another task, does not see an earlier time.
pub async fn everyone_sees_the_same_time<P: ClockProbe>(probe: &Arc<P>) -> Ran {
    let clock = probe.clock();
    let here = clock.now();
    let there = tokio::spawn(async move { clock.now() }).await.expect("no panic");
    assert!(there >= here, "{here} here and {there} there");
    assert!(probe.clock().now() >= here);
    Ok(())
}
