//! The clocks against their suite.

use std::sync::Arc;
use std::time::Duration;

use semel_core::memory::ManualClock;
use semel_core::{Clock, SystemClock};
use semel_testkit::clock::VirtualClock;
use semel_testkit::probe::Probe;
use semel_testkit::suites::clock::ClockProbe;

mod manual {
    semel_testkit::clock_suite!(crate::Manual);
}

mod system {
    semel_testkit::clock_suite!(crate::System);
}

mod virtually {
    semel_testkit::clock_suite!(crate::Virtual);
}

struct Manual(Arc<ManualClock>);

impl Probe for Manual {
    const BACKEND: &'static str = "manual clock";

    async fn fresh() -> Option<Self> {
        Some(Self(Arc::default()))
    }

    async fn pass(&self, time: Duration) {
        self.0.advance(time);
    }
}

impl ClockProbe for Manual {
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clone()
    }
}

struct System;

impl Probe for System {
    const BACKEND: &'static str = "system clock";
    const TICK: Duration = Duration::from_millis(20);

    async fn fresh() -> Option<Self> {
        Some(Self)
    }
}

impl ClockProbe for System {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }
}

struct Virtual(VirtualClock);

impl Probe for Virtual {
    const BACKEND: &'static str = "virtual clock";
    const TICK: Duration = Duration::from_millis(20);

    async fn fresh() -> Option<Self> {
        Some(Self(VirtualClock::start()))
    }
}

impl ClockProbe for Virtual {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.0)
    }
}
