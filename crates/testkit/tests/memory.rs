//! The in-memory edges of core against every suite, and the suites against backends that are wrong.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests may panic")]

mod flaws;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::idempotency::KeyAdmin;
use semel_core::memory::{
    ManualClock, MemoryBroker, MemoryDatabase, MemoryGroup, MemoryKeys, MemoryMember, MemoryOutbox,
    MemorySubscription, MemoryTx,
};
use semel_core::outbox::AppendError;
use semel_core::wire::Epitaph;
use semel_core::{Clock, Event, Failure, InboxStore, Message, OutboxWriter, Sink, Timestamp};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::coordination::CoordinationProbe;
use semel_testkit::suites::idempotency::IdempotencyProbe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::suites::letters::LettersProbe;
use semel_testkit::suites::outbox::OutboxProbe;
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};

semel_testkit::outbox_suite!(Database);
semel_testkit::source_suite!(Database);
semel_testkit::inbox_suite!(Database);
semel_testkit::letters_suite!(Database);
semel_testkit::admin_suite!(Database);
semel_testkit::idempotency_suite!(Keys);
semel_testkit::coordination_suite!(Relays);

mod broker {
    use super::Broker;

    semel_testkit::source_suite!(Broker);
    semel_testkit::subscription_suite!(Broker);
    semel_testkit::sink_suite!(Broker);
}

struct Database {
    database: MemoryDatabase,
    clock: Arc<ManualClock>,
}

impl Probe for Database {
    const BACKEND: &'static str = "memory database";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        let clock = Arc::new(ManualClock::default());
        Some(Self { database: MemoryDatabase::with_clock(Arc::clone(&clock) as _), clock })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

impl WriteProbe for Database {
    type Tx = MemoryTx;

    async fn begin(&self) -> MemoryTx {
        self.database.begin().await
    }

    async fn append(&self, tx: &mut MemoryTx, events: &[Event]) -> Result<(), AppendError> {
        OutboxWriter::append(&self.database, tx, events).await
    }

    async fn commit(&self, tx: MemoryTx) {
        tx.commit();
    }

    fn interleaves(&self) -> Ran {
        Err(Skip::because("its transactions run one after another"))
    }
}

impl OutboxProbe for Database {
    async fn change_business(&self, tx: &mut MemoryTx) {
        tx.add("business changes", 1);
    }

    async fn business_changes(&self) -> u64 {
        self.database.get("business changes").unsigned_abs()
    }

    async fn committed(&self) -> Vec<Event> {
        self.database.events().iter().map(|event| Event::clone(event)).collect()
    }
}

impl SourceProbe for Database {
    type Source = MemoryOutbox;

    async fn open(&self) -> MemoryOutbox {
        self.database.source()
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl AdminProbe for Database {
    type Admin = MemoryDatabase;

    fn admin(&self) -> &MemoryDatabase {
        &self.database
    }
}

impl LettersProbe for Database {
    type Letters = MemoryDatabase;
    type Marks = MemoryDatabase;

    fn letters(&self) -> &MemoryDatabase {
        &self.database
    }

    fn marks(&self) -> &MemoryDatabase {
        &self.database
    }
}

impl InboxProbe for Database {
    type Store = MemoryDatabase;

    fn store(&self) -> &MemoryDatabase {
        &self.database
    }

    async fn take_effect(&self, tx: &mut <MemoryDatabase as InboxStore>::Tx<'_>) {
        tx.add("effects", 1);
    }

    async fn effects(&self) -> u64 {
        self.database.get("effects").unsigned_abs()
    }
}

struct Broker {
    broker: MemoryBroker,
}

impl Probe for Broker {
    const BACKEND: &'static str = "memory broker";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        Some(Self { broker: MemoryBroker::new() })
    }
}

impl WriteProbe for Broker {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        tx.extend_from_slice(events);
        Ok(())
    }

    async fn commit(&self, tx: Vec<Event>) {
        let messages: Vec<_> =
            tx.into_iter().map(|event| Message::first("orders", event)).collect();
        assert!(self.broker.publish(&messages).await.all_confirmed());
    }
}

impl SourceProbe for Broker {
    type Source = MemorySubscription;

    async fn open(&self) -> MemorySubscription {
        self.broker.subscribe("suite", &["orders"])
    }

    fn schedules(&self) -> Ran {
        Err(Skip::because("what reaches a broker is due"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl SubscriptionProbe for Broker {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        let letter = |(message, failure): (Message, Failure)| DeadLetter {
            body: message.event.payload.bytes().clone(),
            event: Some(Event::clone(&message.event)),
            // What it does not keep is what every caller knows.
            headers: BTreeMap::from(
                [
                    (Epitaph::ERROR, failure.to_string()),
                    (Epitaph::CODE, failure.code().to_owned()),
                    (Epitaph::ATTEMPTS, "3".to_owned()),
                    (Epitaph::CONSUMER, "suite".to_owned()),
                    (Epitaph::ORIGIN, message.topic.to_string()),
                ]
                .map(|(name, value)| (name.to_owned(), value)),
            ),
        };
        Ok(self.broker.dead_letters("suite").into_iter().map(letter).collect())
    }

    async fn publish_foreign(&self, _: &[(&str, &str)], _: &'static [u8]) -> Ran {
        Err(Skip::because("it takes nothing but events"))
    }

    async fn open_other_group(&self) -> Result<MemorySubscription, Skip> {
        Ok(self.broker.subscribe("another", &["orders"]))
    }

    fn shares(&self) -> Ran {
        Err(Skip::because("whoever subscribes last owns the group"))
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Err(Skip::because("all of it is in memory anyway"))
    }
}

impl SinkProbe for Broker {
    type Sink = MemoryBroker;

    fn sink(&self) -> &MemoryBroker {
        &self.broker
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        let messages = self.broker.messages();
        Ok(messages.iter().map(|message| Event::clone(&message.event)).collect())
    }
}

#[tokio::test]
async fn outages_are_known_while_they_last() {
    let Some(Database { database, clock }) = Database::fresh().await else { return };
    let silence = async || clock.advance(Duration::from_secs(31));
    semel_testkit::suites::insight::outages_are_known_while_they_last(&database, silence).await;
}

struct Keys {
    keys: Arc<MemoryKeys>,
    clock: Arc<ManualClock>,
}

impl Probe for Keys {
    const BACKEND: &'static str = "memory keys";

    async fn fresh() -> Option<Self> {
        let clock = Arc::new(ManualClock::default());
        let keys = Arc::new(MemoryKeys::with_clock(Arc::clone(&clock) as _));
        Some(Self { keys, clock })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

impl IdempotencyProbe for Keys {
    type Store = MemoryKeys;

    fn store(&self) -> &MemoryKeys {
        &self.keys
    }

    fn admin(&self) -> Option<&dyn KeyAdmin> {
        Some(&*self.keys)
    }
}

struct Relays {
    group: MemoryGroup,
    clock: Arc<ManualClock>,
}

impl Probe for Relays {
    const BACKEND: &'static str = "memory group";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        let clock = Arc::new(ManualClock::default());
        Some(Self { group: MemoryGroup::new().with_clock(Arc::clone(&clock) as _), clock })
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

impl CoordinationProbe for Relays {
    type Member = MemoryMember;

    async fn join(&self, pipeline: &str, shares: u32, lease: Duration) -> MemoryMember {
        self.group.join(pipeline, shares, lease)
    }
}
