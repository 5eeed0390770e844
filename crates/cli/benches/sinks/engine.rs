//! The engine between a source that does nothing but make events, and a sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::Sink;
use semel_relay::{Relay, Routed, Settings, Stop};
use semel_testkit::made::Made;

use crate::Outcomes;
use crate::events::{AT_ONCE, BATCH, Load, event};

pub(crate) async fn run(sink: Arc<dyn Sink>, topic: &str, load: Load) -> Outcomes<Duration> {
    let settings =
        Settings { batch_events: BATCH, in_flight_events: AT_ONCE * BATCH, ..Settings::default() };
    let payload = load.payload();
    let source = Made::new(load.count, move |number| event(number, load.lanes, &payload));
    let relay = Relay::new("bench", source, Routed::new(sink, topic.parse()?));
    let began = Instant::now();
    let report = relay.with_settings(settings).drain(Stop::never()).await?;
    assert_eq!(report.published, u64::try_from(load.count)?);
    Ok(began.elapsed())
}
