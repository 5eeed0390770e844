//! The engine between a source that costs nothing and a sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Delivery, Failure, Guarantees, Holding, Limit, Message, Receipt, Settlement, Sink,
    Source,
};
use semel_relay::{Relay, Routed, Settings, Stop};

use crate::Outcomes;
use crate::events::{AT_ONCE, BATCH, Load, event};

pub(crate) async fn run(sink: Arc<dyn Sink>, topic: &str, load: Load) -> Outcomes<Duration> {
    let settings =
        Settings { batch_events: BATCH, in_flight_events: AT_ONCE * BATCH, ..Settings::default() };
    let source = Generated { load, payload: load.payload(), made: 0 };
    let relay = Relay::new("bench", source, Routed::new(sink, topic.parse()?));
    let began = Instant::now();
    let report = relay.with_settings(settings).drain(Stop::never()).await?;
    assert_eq!(report.published, u64::try_from(load.count)?);
    Ok(began.elapsed())
}

/// Makes events as they are asked for.
struct Generated {
    load: Load,
    payload: Bytes,
    made: usize,
}

#[async_trait]
impl Source for Generated {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let last = self.load.count.min(self.made + limit.events);
        let delivery = |number: usize| Delivery {
            message: Message::first("outbox", event(number, self.load.lanes, &self.payload)),
            receipt: Receipt(number as u64),
        };
        let deliveries = (self.made..last).map(delivery).collect();
        self.made = last;
        Ok(Batch { deliveries, more: last < self.load.count, next_due: None })
    }

    async fn settle(&mut self, _: &[Settlement]) -> Result<Holding, Failure> {
        Ok(Holding::Held)
    }
}
