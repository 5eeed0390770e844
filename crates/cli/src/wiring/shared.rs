//! One connection for all who use a `[sink.NAME]`: what a sink says of itself holds for the process, such
//! as how many requests an endpoint gets at once, and no broker meets one name twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use semel_core::{EventId, Failure, Fault, LaneKey, Message, Published, Sink};
use tokio::sync::Mutex as Turn;

/// A sink of the configuration with all that is set for it: another one after a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) fingerprint: u64,
}

/// The sink that is connected now, as long as somebody uses it. Whoever wants it waits for whoever
/// connects it.
type Place = Arc<Turn<Weak<Shared>>>;

static PLACES: Mutex<BTreeMap<Identity, Place>> = Mutex::new(BTreeMap::new());

/// The sink of this identity: one that is connected already, or a new one.
pub(super) async fn shared(
    identity: Identity,
    connecting: impl Future<Output = Result<Arc<dyn Sink>, Failure>>,
) -> Result<Arc<dyn Sink>, Failure> {
    let place = place_of(identity);
    let mut known = place.lock().await;
    if let Some(sink) = known.upgrade().filter(|sink| !sink.is_spent.load(Ordering::Relaxed)) {
        return Ok(sink);
    }
    let sink = Arc::new(Shared { sink: connecting.await?, is_spent: AtomicBool::new(false) });
    *known = Arc::downgrade(&sink);
    Ok(sink)
}

fn place_of(identity: Identity) -> Place {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_used = |place: &Place| {
        Arc::strong_count(place) > 1 || place.try_lock().is_ok_and(|known| known.strong_count() > 0)
    };
    places.retain(|_, place| is_used(place));
    Arc::clone(places.entry(identity).or_default())
}

/// A sink that several pipelines use.
struct Shared {
    sink: Arc<dyn Sink>,
    /// It will never work again as it is: files that it has read may be others by now.
    is_spent: AtomicBool,
}

#[async_trait]
impl Sink for Shared {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.sink.publish(batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        let answer = self.sink.check().await;
        let is_final = |failure: &Failure| failure.fault() != Fault::Unavailable;
        if answer.as_ref().is_err_and(is_final) {
            self.is_spent.store(true, Ordering::Relaxed);
        }
        answer
    }

    fn remembers(&self) -> bool {
        self.sink.remembers()
    }

    fn settled(&self, events: &[EventId]) {
        self.sink.settled(events);
    }

    fn caught_up(&self) {
        self.sink.caught_up();
    }

    fn system(&self) -> Option<&'static str> {
        self.sink.system()
    }

    fn lane(&self, message: &Message) -> LaneKey {
        self.sink.lane(message)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::memory::MemoryBroker;

    use super::*;

    /// A sink that has had enough.
    struct Wrong;

    #[async_trait]
    impl Sink for Wrong {
        async fn publish(&self, _: &[Message]) -> Published {
            Published::All
        }

        async fn check(&self) -> Result<(), Failure> {
            Err(Failure::misconfigured("E-TEST", "the certificate is not trusted"))
        }
    }

    fn identity(name: &str, fingerprint: u64) -> Identity {
        Identity { name: name.into(), fingerprint }
    }

    async fn connect(identity: &Identity, sink: impl Sink + 'static) -> Arc<dyn Sink> {
        let connecting = async { Ok(Arc::new(sink) as Arc<dyn Sink>) };
        shared(identity.clone(), connecting).await.unwrap()
    }

    #[tokio::test]
    async fn who_uses_the_same_sink_has_the_same_connection() {
        let (one, other) = (identity("same", 1), identity("same", 2));
        let first = connect(&one, MemoryBroker::new()).await;
        assert!(Arc::ptr_eq(&first, &connect(&one, MemoryBroker::new()).await));
        assert!(!Arc::ptr_eq(&first, &connect(&other, MemoryBroker::new()).await), "it changed");
        let away = async { Err(Failure::unavailable("E-TEST", "away")) };
        assert!(shared(one.clone(), away).await.is_ok(), "it is connected");
        drop(first);
        let away = async { Err(Failure::unavailable("E-TEST", "away")) };
        assert!(shared(one.clone(), away).await.is_err(), "nobody used it any more");
        connect(&one, MemoryBroker::new()).await.check().await.unwrap();
    }

    #[tokio::test]
    async fn what_can_never_work_again_is_not_handed_on() {
        let wrong = identity("wrong", 1);
        let first = connect(&wrong, Wrong).await;
        assert!(Arc::ptr_eq(&first, &connect(&wrong, Wrong).await), "nobody knows yet");
        assert!(first.check().await.is_err());
        assert!(!Arc::ptr_eq(&first, &connect(&wrong, Wrong).await));
    }
}
