//! The shared suites, for the shape of a polling publisher. Payloads are bytes, and there are columns
//! for everything an event can have, because the suites write such events.

use semel_backends::mapped::{MappedAdmin, MappedSource};
use semel_backends::mysql::{MySql, Transaction};
use semel_core::Event;
use semel_core::outbox::AppendError;
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::super::{complete_polling_publisher, write_event};
use super::Database;

semel_testkit::source_suite!(MappedProbe);
semel_testkit::admin_suite!(MappedProbe);

const TABLE: &str = "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY,
    aggregate_type VARCHAR(255), aggregate_id VARCHAR(255), event_type VARCHAR(255),
    payload LONGBLOB, created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    published BOOLEAN DEFAULT FALSE, published_at TIMESTAMP(6) NULL, retry_count INT DEFAULT 0,
    idempotency_key VARCHAR(255) NOT NULL UNIQUE,
    event_id CHAR(36) NOT NULL UNIQUE, content_type VARCHAR(255), headers JSON,
    available_at DATETIME(6), KEY (published, created_at)) DEFAULT CHARSET = utf8mb4";

const INSERT: &str = "INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type,
    payload, content_type, headers, idempotency_key, created_at, available_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, timestamp'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND,
    timestamp'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND)";

struct MappedProbe {
    database: Database,
    admin: MappedAdmin,
}

impl Probe for MappedProbe {
    const BACKEND: &'static str = "MariaDB, mapped";

    async fn fresh() -> Option<Self> {
        let database = Database::new().await?;
        database.run(TABLE).await;
        let admin = database.store.mapped_admin("orders", &complete_polling_publisher());
        Some(Self { database, admin })
    }
}

impl WriteProbe for MappedProbe {
    type Tx = Transaction<'static, MySql>;

    async fn begin(&self) -> Self::Tx {
        self.database.begin().await
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
