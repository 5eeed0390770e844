//! All shares of a pipeline together are a source like any other: the shared suites.

use semel_backends::mysql::{MySql, MysqlAdmin, MysqlSource, Transaction};
use semel_core::Event;
use semel_core::outbox::AppendError;
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::suites::MysqlProbe;
use crate::merged::Merged;

semel_testkit::source_suite!(MergedProbe);
semel_testkit::admin_suite!(MergedProbe);

const SHARES: u32 = 3;

struct MergedProbe(MysqlProbe);

impl Probe for MergedProbe {
    const BACKEND: &'static str = "MariaDB, three shares";

    async fn fresh() -> Option<Self> {
        MysqlProbe::fresh().await.map(Self)
    }
}

impl WriteProbe for MergedProbe {
    type Tx = Transaction<'static, MySql>;

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
    type Source = Merged<MysqlSource>;

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
    type Admin = MysqlAdmin;

    fn admin(&self) -> &MysqlAdmin {
        self.0.admin()
    }
}
