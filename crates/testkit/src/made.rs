//! [`Made`]: a source for measurements.

use async_trait::async_trait;
use semel_core::{
    Batch, Delivery, Event, Failure, Guarantees, Holding, Limit, Message, Receipt, Settlement,
    Source,
};

/// A source that costs no more than to make its events, when they are asked for.
///
/// ```
/// # use semel_testkit::made::Made;
/// # use semel_testkit::workload::event;
/// # use semel_core::{Limit, Source};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut source = Made::new(3, |number| event("a", number as u64));
/// let batch = source.next_batch(Limit { events: 2, bytes: 1024 }).await?;
/// assert_eq!((batch.deliveries.len(), batch.more), (2, true));
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Made<F> {
    count: usize,
    made: usize,
    make: F,
}

impl<F: FnMut(usize) -> Event + Send> Made<F> {
    /// So many events, each made from its number.
    pub fn new(count: usize, make: F) -> Self {
        Self { count, made: 0, make }
    }
}

#[async_trait]
impl<F: FnMut(usize) -> Event + Send> Source for Made<F> {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let last = self.count.min(self.made + limit.events);
        let delivery = |number: usize| Delivery {
            message: Message::first("outbox", (self.make)(number)),
            receipt: Receipt(number as u64),
        };
        let deliveries = (self.made..last).map(delivery).collect();
        self.made = last;
        Ok(Batch { deliveries, more: last < self.count, next_due: None })
    }

    async fn settle(&mut self, _: &[Settlement]) -> Result<Holding, Failure> {
        Ok(Holding::Held)
    }
}
