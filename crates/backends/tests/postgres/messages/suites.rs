//! The same suites as for events that are written into the table.

use std::time::Duration;

use semel_backends::postgres::{Carrying, Postgres, PostgresAdmin, PostgresSource, Transaction};
use semel_core::outbox::AppendError;
use semel_core::{Event, Limit, OutboxWriter, Source};
use semel_testkit::probe::{Probe, Ran, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::outbox::OutboxProbe;
use semel_testkit::suites::source::SourceProbe;

use super::Database;

semel_testkit::source_suite!(MessagesProbe);
semel_testkit::admin_suite!(MessagesProbe);
// All of it but duplicates, which nobody can refuse when they are written.
semel_testkit::stamp_suite! { outbox, MessagesProbe,
    events_and_business_change_commit_together
    events_and_business_change_roll_back_together
    a_dropped_transaction_leaves_nothing
    order_is_kept_within_and_over_appends
    content_is_stored_unchanged
    an_empty_append_is_fine
    thousands_of_events_fit_one_append
    an_invalid_event_is_refused
    a_header_with_control_characters_is_kept_or_refused
}

struct MessagesProbe {
    // Stops before its database is dropped.
    carrying: Carrying,
    admin: PostgresAdmin,
    database: Database,
}

impl Probe for MessagesProbe {
    const BACKEND: &'static str = "PostgreSQL, messages";
    /// A commit takes until it is known to be carried.
    const TICK: Duration = Duration::from_secs(3);

    async fn fresh() -> Option<Self> {
        let database = Database::with_messages().await?;
        database.run("create table business (change text)").await;
        let (carrying, admin) = (database.carrying().await, database.store.admin("orders"));
        Some(Self { carrying, admin, database })
    }
}

impl WriteProbe for MessagesProbe {
    type Tx = Transaction<'static, Postgres>;

    async fn begin(&self) -> Self::Tx {
        self.database.begin().await
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        OutboxWriter::append(&self.database.messages(), tx, events).await
    }

    async fn commit(&self, tx: Self::Tx) {
        tx.commit().await.unwrap();
        self.carrying.caught_up().await.unwrap();
    }

    async fn roll_back(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }
}

impl OutboxProbe for MessagesProbe {
    async fn change_business(&self, tx: &mut Self::Tx) {
        sqlx::query("insert into business values ('changed')").execute(&mut **tx).await.unwrap();
    }

    async fn business_changes(&self) -> u64 {
        self.database.number("select count(*) from business").await.unsigned_abs()
    }

    async fn committed(&self) -> Vec<Event> {
        let mut source = self.database.store.source("a pipeline that only looks").await.unwrap();
        let limit = Limit { events: usize::MAX, bytes: usize::MAX };
        let batch = source.next_batch(limit).await.unwrap();
        batch.deliveries.iter().map(|got| Event::clone(&got.message.event)).collect()
    }
}

impl SourceProbe for MessagesProbe {
    type Source = PostgresSource;

    async fn open(&self) -> PostgresSource {
        self.database.store.source("orders").await.unwrap()
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl AdminProbe for MessagesProbe {
    type Admin = PostgresAdmin;

    fn admin(&self) -> &PostgresAdmin {
        &self.admin
    }
}
