//! What is brought into memory at once is bounded by bytes, however large the rows are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use semel_core::{
    Clock, Delivery, Failure, Limit, Outcome, Receipt, Settlement, Source, Timestamp,
};
use tempfile::TempDir;
use tokio::sync::watch;

use super::{Airspace, Answer, Database, Dialect, MappedSource, Mapping, Row, Statement, Value};
use crate::sqlite::{SqliteConfig, SqliteStore};

const MIB: usize = 1 << 20;
const ROWS: usize = 40;
const LIMIT: Limit = Limit { events: 500, bytes: 3 * MIB };

/// A database that notes how many bytes it brought at once, at most.
#[derive(Debug)]
struct Metered {
    store: SqliteStore,
    most: AtomicUsize,
    _folder: TempDir,
}

impl Metered {
    /// Forty rows of a mebibyte, each of its own lane, with its number as its type.
    async fn with_large_rows() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/shop.db", folder.path().display());
        let store = SqliteConfig::new(&url).unwrap().connect().await.unwrap();
        store.migrate().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE outbox (id INTEGER PRIMARY KEY, aggregate_type TEXT, aggregate_id TEXT,
                event_type TEXT, payload BLOB, sent BOOLEAN NOT NULL DEFAULT FALSE);
            WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 39)
            INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
            SELECT 'order', n, n, zeroblob(1048576) FROM n",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        Arc::new(Self { store, most: AtomicUsize::default(), _folder: folder })
    }

    async fn open(self: &Arc<Self>) -> MappedSource {
        let database = Arc::clone(self) as Arc<dyn Database>;
        MappedSource::open(database, "orders", &Mapping::new("outbox").mark_flag("sent"))
            .await
            .unwrap()
    }

    fn check(&self) {
        let most = self.most.load(Ordering::Relaxed);
        // The last one is brought to know that there is no room for it.
        assert!(most <= LIMIT.bytes + 2 * MIB, "{} rows were brought at once", most / MIB);
    }
}

#[async_trait]
impl Database for Metered {
    fn dialect(&self) -> Dialect {
        Database::dialect(&self.store)
    }

    fn clock(&self) -> &dyn Clock {
        Database::clock(&self.store)
    }

    fn airspace(&self) -> &Airspace {
        Database::airspace(&self.store)
    }

    fn announce_change(&self) {
        Database::announce_change(&self.store);
    }

    fn changes(&self) -> watch::Receiver<()> {
        Database::changes(&self.store)
    }

    async fn check_schema(&self) -> Result<(), Failure> {
        Database::check_schema(&self.store).await
    }

    async fn read(&self, what: &'static str, query: Statement) -> Result<Vec<Row>, Failure> {
        let rows = Database::read(&self.store, what, query).await?;
        let size = |value: &Value| if let Value::Bytes(bytes) = value { bytes.len() } else { 8 };
        let bytes = rows.iter().flat_map(|row| &row.0).map(size).sum();
        self.most.fetch_max(bytes, Ordering::Relaxed);
        Ok(rows)
    }

    async fn write(
        &self,
        what: &'static str,
        statements: Vec<Statement>,
    ) -> Result<Option<Vec<Answer>>, Failure> {
        Database::write(&self.store, what, statements).await
    }
}

/// Takes everything, a batch at a time.
async fn take_all(source: &mut MappedSource) -> Vec<Delivery> {
    let mut all = Vec::new();
    loop {
        let batch = source.next_batch(LIMIT).await.unwrap();
        assert!(batch.deliveries.len() <= 3, "{} rows were handed out", batch.deliveries.len());
        all.extend(batch.deliveries);
        assert_eq!(batch.more, all.len() < ROWS);
        if !batch.more {
            return all;
        }
    }
}

fn types(deliveries: &[Delivery]) -> Vec<usize> {
    let number = |got: &Delivery| got.message.event.event_type.parse().unwrap();
    deliveries.iter().map(number).collect()
}

async fn settle(source: &mut MappedSource, receipt: Receipt, outcome: Outcome) {
    assert!(source.settle(&[Settlement { receipt, outcome }]).await.unwrap().is_held());
}

#[tokio::test]
async fn large_rows_are_brought_a_few_at_a_time() {
    let database = Metered::with_large_rows().await;
    let mut source = database.open().await;
    assert_eq!(types(&take_all(&mut source).await), (0..ROWS).collect::<Vec<_>>());
    database.check();
}

/// They come in the order in which they failed, which is not that in which the table has them.
#[tokio::test]
async fn large_rows_that_failed_are_brought_a_few_at_a_time() {
    let database = Metered::with_large_rows().await;
    let mut source = database.open().await;
    for got in take_all(&mut source).await.iter().rev() {
        let (at, failure) = (Timestamp::UNIX_EPOCH, Failure::transient("E-TEST", "try again"));
        settle(&mut source, got.receipt, Outcome::Retry { at, attempts: 1, failure }).await;
    }
    database.most.store(0, Ordering::Relaxed);
    // One that does not know yet how large they are.
    let mut source = database.open().await;
    let again = take_all(&mut source).await;
    assert_eq!(types(&again), (0..ROWS).rev().collect::<Vec<_>>());
    for got in again {
        settle(&mut source, got.receipt, Outcome::Delivered).await;
    }
    assert!(source.next_batch(LIMIT).await.unwrap().deliveries.is_empty());
    database.check();
}
