//! The shared suites, for the shape of a polling publisher. Payloads are bytes, and there are columns
//! for everything an event can have, because the suites write such events.

use std::time::Duration;

use semel_backends::mapped::{MappedAdmin, MappedSource};
use semel_backends::sqlite::{Sqlite, Transaction};
use semel_core::outbox::AppendError;
use semel_core::{Clock, Event, Timestamp};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::super::{complete_polling_publisher, write_event};
use super::Database;

semel_testkit::source_suite!(MappedProbe);
semel_testkit::admin_suite!(MappedProbe);

const TABLE: &str = "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggregate_type VARCHAR(255), aggregate_id VARCHAR(255), event_type VARCHAR(255),
    payload BLOB, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    published BOOLEAN DEFAULT FALSE, published_at TIMESTAMP NULL, retry_count INT DEFAULT 0,
    idempotency_key VARCHAR(255) NOT NULL UNIQUE,
    event_id TEXT NOT NULL UNIQUE, content_type TEXT, headers TEXT, available_at INTEGER);
    CREATE INDEX outbox_waiting ON outbox (published, created_at)";

const INSERT: &str = "INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type,
    payload, content_type, headers, idempotency_key, created_at, available_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f', ? / 1e6, 'unixepoch'), ?)";

struct MappedProbe {
    database: Database,
    admin: MappedAdmin,
}

impl Probe for MappedProbe {
    const BACKEND: &'static str = "SQLite, mapped";
    const PATIENCE: Duration = Duration::ZERO;

    async fn fresh() -> Option<Self> {
        let database = Database::new().await;
        let mut tx = database.store.begin().await.unwrap();
        sqlx::raw_sql(TABLE).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let admin = database.store.mapped_admin("orders", &complete_polling_publisher());
        Some(Self { database, admin })
    }

    fn now(&self) -> Timestamp {
        self.database.clock.now()
    }

    async fn pass(&self, time: Duration) {
        self.database.clock.advance(time);
    }
}

impl WriteProbe for MappedProbe {
    type Tx = Transaction<'static, Sqlite>;

    async fn begin(&self) -> Self::Tx {
        self.database.store.begin().await.unwrap()
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        for event in events {
            write_event!(INSERT, event, tx)?;
        }
        Ok(())
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

impl SourceProbe for MappedProbe {
    type Source = MappedSource;

    async fn open(&self) -> MappedSource {
        self.database.store.mapped_source("orders", &complete_polling_publisher()).await.unwrap()
    }

    fn places_when_due(&self) -> Ran {
        Err(Skip::because("the order column says where a row belongs"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl AdminProbe for MappedProbe {
    type Admin = MappedAdmin;

    fn admin(&self) -> &MappedAdmin {
        &self.admin
    }
}
