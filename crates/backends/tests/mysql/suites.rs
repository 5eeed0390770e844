//! The shared suites.

use std::time::Duration;

use semel_backends::mysql::{
    MySql, MysqlAdmin, MysqlInbox, MysqlKeys, MysqlLetters, MysqlMarks, MysqlSource, Transaction,
};
use semel_core::idempotency::KeyAdmin;
use semel_core::outbox::AppendError;
use semel_core::{Event, InboxStore, Limit, OutboxWriter, Source};
use semel_testkit::probe::{Probe, Ran, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::coordination::CoordinationProbe;
use semel_testkit::suites::idempotency::IdempotencyProbe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::suites::letters::LettersProbe;
use semel_testkit::suites::outbox::OutboxProbe;
use semel_testkit::suites::source::SourceProbe;

use super::Database;

semel_testkit::outbox_suite!(MysqlProbe);
semel_testkit::source_suite!(MysqlProbe);
semel_testkit::inbox_suite!(MysqlProbe);
semel_testkit::letters_suite!(MysqlProbe);
semel_testkit::admin_suite!(MysqlProbe);
semel_testkit::idempotency_suite!(MysqlProbe);
semel_testkit::coordination_suite!(MysqlProbe);

pub(super) struct MysqlProbe {
    pub(super) database: Database,
    inbox: MysqlInbox,
    admin: MysqlAdmin,
    keys: MysqlKeys,
    letters: MysqlLetters,
    marks: MysqlMarks,
}

impl Probe for MysqlProbe {
    const BACKEND: &'static str = "MariaDB";

    async fn fresh() -> Option<Self> {
        let database = Database::new().await?;
        sqlx::raw_sql("CREATE TABLE business (happened TEXT)")
            .execute(database.pool())
            .await
            .unwrap();
        let (inbox, keys) = (database.store.inbox(), database.store.keys());
        let admin = database.store.admin("orders");
        let (letters, marks) = (database.store.letters(), database.store.marks());
        Some(Self { database, inbox, admin, keys, letters, marks })
    }
}

impl MysqlProbe {
    async fn change(&self, tx: &mut Transaction<'_, MySql>) {
        sqlx::query("INSERT INTO business VALUES ('changed')").execute(&mut **tx).await.unwrap();
    }

    async fn changes(&self) -> u64 {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM business")
            .fetch_one(self.database.pool())
            .await
            .unwrap();
        count.unsigned_abs()
    }
}

impl WriteProbe for MysqlProbe {
    type Tx = Transaction<'static, MySql>;

    async fn begin(&self) -> Self::Tx {
        self.database.store.begin().await.unwrap()
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        OutboxWriter::append(&self.database.store.outbox(), tx, events).await
    }

    async fn commit(&self, tx: Self::Tx) {
        tx.commit().await.unwrap();
        self.database.store.outbox().committed();
    }

    async fn roll_back(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }
}

impl OutboxProbe for MysqlProbe {
    async fn change_business(&self, tx: &mut Self::Tx) {
        self.change(tx).await;
    }

    async fn business_changes(&self) -> u64 {
        self.changes().await
    }

    async fn committed(&self) -> Vec<Event> {
        let mut source = self.database.store.source("a pipeline that only looks").await.unwrap();
        let limit = Limit { events: usize::MAX, bytes: usize::MAX };
        let mut events = Vec::new();
        loop {
            let batch = source.next_batch(limit).await.unwrap();
            events.extend(batch.deliveries.iter().map(|got| Event::clone(&got.message.event)));
            if !batch.more {
                return events;
            }
        }
    }
}

impl SourceProbe for MysqlProbe {
    type Source = MysqlSource;

    async fn open(&self) -> MysqlSource {
        self.database.store.source("orders").await.unwrap()
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl LettersProbe for MysqlProbe {
    type Letters = MysqlLetters;
    type Marks = MysqlMarks;

    fn letters(&self) -> &MysqlLetters {
        &self.letters
    }

    fn marks(&self) -> &MysqlMarks {
        &self.marks
    }
}

impl InboxProbe for MysqlProbe {
    type Store = MysqlInbox;

    fn store(&self) -> &MysqlInbox {
        &self.inbox
    }

    async fn take_effect(&self, tx: &mut <MysqlInbox as InboxStore>::Tx<'_>) {
        self.change(tx).await;
    }

    async fn effects(&self) -> u64 {
        self.changes().await
    }
}

impl AdminProbe for MysqlProbe {
    type Admin = MysqlAdmin;

    fn admin(&self) -> &MysqlAdmin {
        &self.admin
    }
}

impl IdempotencyProbe for MysqlProbe {
    type Store = MysqlKeys;

    fn store(&self) -> &MysqlKeys {
        &self.keys
    }

    fn admin(&self) -> Option<&dyn KeyAdmin> {
        Some(&self.keys)
    }
}

impl CoordinationProbe for MysqlProbe {
    type Member = semel_backends::mysql::MysqlMember;

    async fn join(&self, pipeline: &str, shares: u32, lease: Duration) -> Self::Member {
        self.database.store.member(pipeline, shares, lease).unwrap()
    }
}
