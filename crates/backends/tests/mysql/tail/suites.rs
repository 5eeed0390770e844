//! The same suites as for a source that polls.

use semel_backends::mysql::{MySql, MysqlAdmin, MysqlSource, Tailing, Transaction};
use semel_core::outbox::AppendError;
use semel_core::{Event, OutboxWriter};
use semel_testkit::probe::{Probe, Ran, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::super::Database;

semel_testkit::source_suite!(TailProbe);
semel_testkit::admin_suite!(TailProbe);

struct TailProbe {
    database: Database,
    admin: MysqlAdmin,
}

impl Probe for TailProbe {
    const BACKEND: &'static str = "MariaDB, tailing";

    async fn fresh() -> Option<Self> {
        let database = Database::new().await?;
        let admin = database.store.admin("orders");
        Some(Self { database, admin })
    }
}

impl WriteProbe for TailProbe {
    type Tx = Transaction<'static, MySql>;

    async fn begin(&self) -> Self::Tx {
        self.database.begin().await
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        OutboxWriter::append(&self.database.store.outbox(), tx, events).await
    }

    /// Nobody in this process is told.
    async fn commit(&self, tx: Self::Tx) {
        tx.commit().await.unwrap();
    }

    async fn roll_back(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }
}

impl SourceProbe for TailProbe {
    type Source = MysqlSource;

    async fn open(&self) -> MysqlSource {
        let store = &self.database.store;
        let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
        assert!(source.is_tailing());
        source
    }

    /// Without waiting for its session, which can take longer than a retry is away.
    async fn reopen(&self, crashed: MysqlSource) -> MysqlSource {
        drop(crashed);
        let store = &self.database.store;
        store.tailing_source("orders", Tailing::WherePossible).await.unwrap()
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl AdminProbe for TailProbe {
    type Admin = MysqlAdmin;

    fn admin(&self) -> &MysqlAdmin {
        &self.admin
    }
}
