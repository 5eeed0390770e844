//! Rows that cannot be read, because a writer got past the checks of the table.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use semel_backends::sqlite::SqliteSource;
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::{Delivery, Limit, Outcome, Settlement, Source};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::Database;

/// Keeps what is said about errors.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

impl Ear {
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Words(String);
        impl Visit for Words {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                write!(self.0, "{field}={value:?} ").unwrap();
            }
        }
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().unwrap().push(words.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn run(database: &Database, sql: &str) {
    let mut tx = database.store.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}

/// Delivers all there is.
async fn kinds(source: &mut SqliteSource) -> Vec<String> {
    let mut kinds = Vec::new();
    loop {
        let batch = source.next_batch(Limit::default()).await.unwrap().deliveries;
        if batch.is_empty() {
            return kinds;
        }
        let delivered =
            |got: &Delivery| Settlement { receipt: got.receipt, outcome: Outcome::Delivered };
        let settlements: Vec<_> = batch.iter().map(delivered).collect();
        assert!(source.settle(&settlements).await.unwrap().is_held());
        kinds.extend(batch.iter().map(|got| got.message.event.event_type.clone()));
    }
}

#[tokio::test]
async fn a_row_that_still_cannot_be_read_is_dead_again() {
    let database = Database::new().await;
    run(
        &database,
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES
            ('order', '42', CAST(x'61ff' AS TEXT), '1'), ('order', '42', 'Later', '2'),
            ('order', '43', 'Fine', '3')",
    )
    .await;
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let mut source = database.store.source("orders").await.unwrap();
    let admin = database.store.admin("orders");
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };

    assert_eq!(kinds(&mut source).await, ["Fine"], "its lane waits");
    let heard = ear.heard();
    let [said] = heard.as_slice() else { panic!("{heard:?}") };
    for word in ["semel_outbox", "seq=1", "E-EVENT-INVALID", "is not UTF-8", "orders"] {
        assert!(said.contains(word), "{word}: {said}");
    }

    for _ in 0..2 {
        assert_eq!(admin.retry(&Selection::Matching(dead.clone())).await.unwrap(), 1);
        assert_eq!(kinds(&mut source).await, [""; 0], "neither it nor what waits behind it");
        assert_eq!(admin.list(&dead, None, 10).await.unwrap().events.len(), 1);
        assert_eq!(ear.heard().len(), 1);
    }

    run(&database, "UPDATE semel_outbox SET event_type = 'Mended' WHERE seq = 1").await;
    assert_eq!(admin.retry(&Selection::Matching(dead)).await.unwrap(), 1);
    assert_eq!(kinds(&mut source).await, ["Mended", "Later"]);
    assert_eq!(ear.heard(), [""; 0]);
}
