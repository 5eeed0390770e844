//! The shared suites.

use std::time::Duration;

use semel_backends::postgres::{
    Postgres, PostgresAdmin, PostgresInbox, PostgresKeys, PostgresLetters, PostgresMarks,
    PostgresSource, Transaction,
};
use semel_core::idempotency::KeyAdmin;
use semel_core::outbox::AppendError;
use semel_core::{Event, InboxStore, Limit, OutboxWriter, Source};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::coordination::CoordinationProbe;
use semel_testkit::suites::idempotency::IdempotencyProbe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::suites::letters::LettersProbe;
use semel_testkit::suites::outbox::OutboxProbe;
use semel_testkit::suites::source::SourceProbe;

use super::Database;

semel_testkit::outbox_suite!(PostgresProbe);
semel_testkit::source_suite!(PostgresProbe);
semel_testkit::inbox_suite!(PostgresProbe);
semel_testkit::letters_suite!(PostgresProbe);
semel_testkit::admin_suite!(PostgresProbe);
semel_testkit::idempotency_suite!(PostgresProbe);
semel_testkit::coordination_suite!(PostgresProbe);

/// A partitioned outbox and inbox, and an outbox whose events are all beside its partitions, where
/// they can be deleted one by one.
mod partitioned {
    use super::{PARTITIONED, PostgresProbe, REST};

    semel_testkit::outbox_suite!(PostgresProbe<PARTITIONED>);
    semel_testkit::source_suite!(PostgresProbe<PARTITIONED>);
    semel_testkit::inbox_suite!(PostgresProbe<PARTITIONED>);
    semel_testkit::admin_suite!(PostgresProbe<REST>);
}

const PLAIN: u8 = 0;
const PARTITIONED: u8 = 1;
const REST: u8 = 2;
pub(super) const POOLED: u8 = 3;

/// A database in one of these layouts, or behind a pooler.
pub(super) struct PostgresProbe<const LAYOUT: u8 = PLAIN> {
    pub(super) database: Database,
    inbox: PostgresInbox,
    admin: PostgresAdmin,
    keys: PostgresKeys,
    letters: PostgresLetters,
    marks: PostgresMarks,
}

impl<const LAYOUT: u8> Probe for PostgresProbe<LAYOUT> {
    const BACKEND: &'static str =
        if LAYOUT == POOLED { "PostgreSQL behind a pooler" } else { "PostgreSQL" };

    async fn fresh() -> Option<Self> {
        let database =
            if LAYOUT == POOLED { Database::pooled().await? } else { Database::new().await? };
        if LAYOUT == PARTITIONED || LAYOUT == REST {
            database.store.partition(Duration::from_secs(86_400)).await.unwrap();
        }
        if LAYOUT == PARTITIONED {
            database.store.partition_inbox(Duration::from_secs(86_400)).await.unwrap();
        }
        if LAYOUT == REST {
            database.drop_partitions().await;
        }
        sqlx::raw_sql("create table business (change text)")
            .execute(database.pool())
            .await
            .unwrap();
        let (inbox, keys) = (database.store.inbox(), database.store.keys());
        let admin = database.store.admin("orders");
        let (letters, marks) = (database.store.letters(), database.store.marks());
        Some(Self { database, inbox, admin, keys, letters, marks })
    }
}

impl<const LAYOUT: u8> PostgresProbe<LAYOUT> {
    async fn change(&self, tx: &mut Transaction<'_, Postgres>) {
        sqlx::query("insert into business values ('changed')").execute(&mut **tx).await.unwrap();
    }

    async fn changes(&self) -> u64 {
        let count: i64 = sqlx::query_scalar("select count(*) from business")
            .fetch_one(self.database.pool())
            .await
            .unwrap();
        count.unsigned_abs()
    }
}

impl<const LAYOUT: u8> WriteProbe for PostgresProbe<LAYOUT> {
    type Tx = Transaction<'static, Postgres>;

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

impl<const LAYOUT: u8> OutboxProbe for PostgresProbe<LAYOUT> {
    async fn change_business(&self, tx: &mut Self::Tx) {
        self.change(tx).await;
    }

    async fn business_changes(&self) -> u64 {
        self.changes().await
    }

    async fn committed(&self) -> Vec<Event> {
        let mut source = self.database.store.source("a pipeline that only looks").await.unwrap();
        let limit = Limit { events: usize::MAX, bytes: usize::MAX };
        let batch = source.next_batch(limit).await.unwrap();
        batch.deliveries.iter().map(|got| Event::clone(&got.message.event)).collect()
    }
}

impl<const LAYOUT: u8> SourceProbe for PostgresProbe<LAYOUT> {
    type Source = PostgresSource;

    async fn open(&self) -> PostgresSource {
        self.database.store.source("orders").await.unwrap()
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl<const LAYOUT: u8> LettersProbe for PostgresProbe<LAYOUT> {
    type Letters = PostgresLetters;
    type Marks = PostgresMarks;

    fn letters(&self) -> &PostgresLetters {
        &self.letters
    }

    fn marks(&self) -> &PostgresMarks {
        &self.marks
    }
}

impl<const LAYOUT: u8> InboxProbe for PostgresProbe<LAYOUT> {
    type Store = PostgresInbox;

    fn store(&self) -> &PostgresInbox {
        &self.inbox
    }

    async fn take_effect(&self, tx: &mut <PostgresInbox as InboxStore>::Tx<'_>) {
        self.change(tx).await;
    }

    async fn effects(&self) -> u64 {
        self.changes().await
    }

    fn keeps_ids(&self) -> Ran {
        if LAYOUT == PARTITIONED {
            return Err(Skip::because("ids go with their partition"));
        }
        Ok(())
    }
}

impl<const LAYOUT: u8> AdminProbe for PostgresProbe<LAYOUT> {
    type Admin = PostgresAdmin;

    fn admin(&self) -> &PostgresAdmin {
        &self.admin
    }
}

impl<const LAYOUT: u8> IdempotencyProbe for PostgresProbe<LAYOUT> {
    type Store = PostgresKeys;

    fn store(&self) -> &PostgresKeys {
        &self.keys
    }

    fn admin(&self) -> Option<&dyn KeyAdmin> {
        Some(&self.keys)
    }
}

impl<const LAYOUT: u8> CoordinationProbe for PostgresProbe<LAYOUT> {
    type Member = semel_backends::postgres::PostgresMember;

    async fn join(&self, pipeline: &str, shares: u32, lease: Duration) -> Self::Member {
        self.database.store.member(pipeline, shares, lease).unwrap()
    }
}
