//! The shared suites.

use std::time::Duration;

use semel_backends::sqlite::{
    Sqlite, SqliteAdmin, SqliteInbox, SqliteKeys, SqliteLetters, SqliteMarks, SqliteSource,
    Transaction,
};
use semel_core::idempotency::KeyAdmin;
use semel_core::outbox::AppendError;
use semel_core::{Clock, Event, InboxStore, Limit, OutboxWriter, Source, Timestamp};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::coordination::CoordinationProbe;
use semel_testkit::suites::idempotency::IdempotencyProbe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::suites::letters::LettersProbe;
use semel_testkit::suites::outbox::OutboxProbe;
use semel_testkit::suites::source::SourceProbe;

use super::Database;

semel_testkit::outbox_suite!(SqliteProbe);
semel_testkit::source_suite!(SqliteProbe);
semel_testkit::inbox_suite!(SqliteProbe);
semel_testkit::letters_suite!(SqliteProbe);
semel_testkit::admin_suite!(SqliteProbe);
semel_testkit::idempotency_suite!(SqliteProbe);
semel_testkit::coordination_suite!(SqliteProbe);

struct SqliteProbe {
    database: Database,
    inbox: SqliteInbox,
    admin: SqliteAdmin,
    keys: SqliteKeys,
    letters: SqliteLetters,
    marks: SqliteMarks,
}

impl Probe for SqliteProbe {
    const BACKEND: &'static str = "SQLite";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        let database = Database::new().await;
        sqlx::raw_sql("CREATE TABLE business (change TEXT)")
            .execute(database.store.pool())
            .await
            .unwrap();
        let (inbox, keys) = (database.store.inbox(), database.store.keys());
        let admin = database.store.admin("orders");
        let (letters, marks) = (database.store.letters(), database.store.marks());
        Some(Self { database, inbox, admin, keys, letters, marks })
    }

    fn now(&self) -> Timestamp {
        self.database.clock.now()
    }

    async fn pass(&self, time: Duration) {
        self.database.clock.advance(time);
    }
}

impl SqliteProbe {
    async fn change(&self, tx: &mut Transaction<'_, Sqlite>) {
        sqlx::query("INSERT INTO business VALUES ('changed')").execute(&mut **tx).await.unwrap();
    }

    async fn changes(&self) -> u64 {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM business")
            .fetch_one(self.database.store.pool())
            .await
            .unwrap();
        count.unsigned_abs()
    }
}

impl WriteProbe for SqliteProbe {
    type Tx = Transaction<'static, Sqlite>;

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

    fn interleaves(&self) -> Ran {
        Err(Skip::because("one transaction writes at a time"))
    }
}

impl OutboxProbe for SqliteProbe {
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

impl SourceProbe for SqliteProbe {
    type Source = SqliteSource;

    async fn open(&self) -> SqliteSource {
        self.database.store.source("orders").await.unwrap()
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl LettersProbe for SqliteProbe {
    type Letters = SqliteLetters;
    type Marks = SqliteMarks;

    fn letters(&self) -> &SqliteLetters {
        &self.letters
    }

    fn marks(&self) -> &SqliteMarks {
        &self.marks
    }
}

impl InboxProbe for SqliteProbe {
    type Store = SqliteInbox;

    fn store(&self) -> &SqliteInbox {
        &self.inbox
    }

    async fn take_effect(&self, tx: &mut <SqliteInbox as InboxStore>::Tx<'_>) {
        self.change(tx).await;
    }

    async fn effects(&self) -> u64 {
        self.changes().await
    }
}

impl AdminProbe for SqliteProbe {
    type Admin = SqliteAdmin;

    fn admin(&self) -> &SqliteAdmin {
        &self.admin
    }
}

impl IdempotencyProbe for SqliteProbe {
    type Store = SqliteKeys;

    fn store(&self) -> &SqliteKeys {
        &self.keys
    }

    fn admin(&self) -> Option<&dyn KeyAdmin> {
        Some(&self.keys)
    }
}

impl CoordinationProbe for SqliteProbe {
    type Member = semel_backends::sqlite::SqliteMember;

    async fn join(&self, pipeline: &str, shares: u32, lease: Duration) -> Self::Member {
        self.database.store.member(pipeline, shares, lease).unwrap()
    }
}

/// There is no server: a crash is that of the process, and the next one opens the file again.
#[tokio::test]
async fn claims_and_results_outlive_crashes_of_the_process() {
    let database = Database::new().await;
    let keys = database.again().await.keys();
    semel_testkit::suites::idempotency::outlives_crashes(keys, async |keys| {
        drop(keys);
        database.again().await.keys()
    })
    .await;
}
