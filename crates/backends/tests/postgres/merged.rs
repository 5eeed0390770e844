//! All shares of a pipeline together are a source like any other: the shared suites.

use semel_backends::postgres::{Postgres, PostgresAdmin, PostgresSource, Transaction};
use semel_core::Event;
use semel_core::outbox::AppendError;
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::suites::PostgresProbe;
use crate::merged::Merged;

semel_testkit::source_suite!(MergedProbe);
semel_testkit::admin_suite!(MergedProbe);

const SHARES: u32 = 3;

struct MergedProbe(PostgresProbe);

impl Probe for MergedProbe {
    const BACKEND: &'static str = "PostgreSQL, three shares";

    async fn fresh() -> Option<Self> {
        PostgresProbe::fresh().await.map(Self)
    }
}

impl WriteProbe for MergedProbe {
    type Tx = Transaction<'static, Postgres>;

    async fn begin(&self) -> Self::Tx {
        self.0.begin().await
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        WriteProbe::append(&self.0, tx, events).await
    }

    async fn commit(&self, tx: Self::Tx) {
        self.0.commit(tx).await;
    }

    async fn roll_back(&self, tx: Self::Tx) {
        self.0.roll_back(tx).await;
    }
}

impl SourceProbe for MergedProbe {
    type Source = Merged<PostgresSource>;

    async fn open(&self) -> Self::Source {
        let relays = self.0.database.all_shares(SHARES).await.into_iter();
        Merged::new(relays.map(|relay| relay.source).collect())
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }

    fn tells_when_lost(&self) -> Ran {
        Err(Skip::because("each share says it for itself"))
    }
}

impl AdminProbe for MergedProbe {
    type Admin = PostgresAdmin;

    fn admin(&self) -> &PostgresAdmin {
        self.0.admin()
    }
}
