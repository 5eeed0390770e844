//! The judge: counts rows, and derives what was lost, doubled, invented or reordered.
//!
//! It believes nobody. What should have happened comes from the table of orders alone; what did
//! happen comes from the tables of the consumers and the log of the broker.

use std::collections::{HashMap, HashSet};

use semel_core::memory::MemoryBroker;
use semel_core::{EventId, Failure, LaneKey};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, SqliteConnection};

use super::consumers::Department;
use super::databases::{Databases, sql_failure};
use super::service;

/// One connection that sees the files of all services.
#[derive(Debug)]
pub(super) struct Judge {
    connection: SqliteConnection,
}

/// What the tables say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) orders: u64,
    /// Orders that were begun and left no row.
    pub(super) rolled_back: u64,
    pub(super) events: u64,
    pub(super) published: Published,
    /// In the order of [`Department::ALL`].
    pub(super) departments: [Effects; 3],
    pub(super) money: Balance,
    pub(super) stock: Balance,
    /// When the first delivery was handled, in milliseconds since 1970.
    pub(super) first_delivery: Option<i64>,
}

/// What the broker has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) events: u64,
    /// Messages beyond the first of each event.
    pub(super) repeated: u64,
    /// Events that were never committed.
    pub(super) phantom: u64,
    /// Events that came after a later one of their order.
    pub(super) reordered: u64,
}

/// What a consumer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) delivered: u64,
    pub(super) duplicates: u64,
    pub(super) effects: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) phantom: u64,
    pub(super) reordered: u64,
}

/// Two sums that must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Balance {
    pub(super) expected: i64,
    pub(super) actual: i64,
}

impl Findings {
    pub(super) fn lost(&self) -> u64 {
        self.sum(|effects| effects.lost)
    }

    pub(super) fn doubled(&self) -> u64 {
        self.sum(|effects| effects.doubled)
    }

    pub(super) fn phantom(&self) -> u64 {
        self.published.phantom + self.sum(|effects| effects.phantom)
    }

    pub(super) fn reordered(&self) -> u64 {
        self.published.reordered + self.sum(|effects| effects.reordered)
    }

    pub(super) fn duplicates(&self) -> u64 {
        self.sum(|effects| effects.duplicates)
    }

    /// Whether everything took effect once, and the books agree.
    pub(super) fn are_good(&self) -> bool {
        self.lost() + self.doubled() + self.phantom() + self.reordered() == 0
            && self.money.agrees()
            && self.stock.agrees()
    }

    fn sum(&self, number: impl Fn(&Effects) -> u64) -> u64 {
        self.departments.iter().map(number).sum()
    }
}

impl Balance {
    pub(super) fn agrees(self) -> bool {
        self.expected == self.actual
    }
}

impl Judge {
    pub(super) async fn open(databases: &Databases) -> Result<Self, Failure> {
        let options = SqliteConnectOptions::new().filename(databases.file(service::NAME));
        let mut connection =
            options.disable_statement_logging().connect().await.map_err(sql_failure)?;
        for department in Department::ALL {
            sqlx::query("ATTACH ? AS ?")
                .bind(databases.file(department.name()).display().to_string())
                .bind(format!("{}_db", department.name()))
                .execute(&mut connection)
                .await
                .map_err(sql_failure)?;
        }
        Ok(Self { connection })
    }

    /// How far everything is: counts only, cheap enough to ask while it runs.
    pub(super) async fn count(&mut self, broker: &MemoryBroker) -> Result<Findings, Failure> {
        let mut findings = Findings::default();
        [findings.orders, findings.rolled_back, findings.events] = self
            .numbers(
                "SELECT count(*), coalesce(max(id), 0) - count(*), \
                     (SELECT count(*) FROM semel_outbox) FROM orders",
            )
            .await?;
        findings.published.events = broker.len() as u64;
        for (department, effects) in Department::ALL.iter().zip(&mut findings.departments) {
            let (name, table) = (department.name(), department.effects());
            [effects.delivered, effects.duplicates, effects.effects] = self
                .numbers(&format!(
                    "SELECT count(*), count(*) FILTER (WHERE repeated), \
                         (SELECT count(*) FROM {name}_db.{table}) FROM {name}_db.deliveries"
                ))
                .await?;
        }
        Ok(findings)
    }

    /// Everything: for when nothing runs any more.
    pub(super) async fn judge(&mut self, broker: &MemoryBroker) -> Result<Findings, Failure> {
        let mut findings = self.count(broker).await?;
        findings.published = self.judge_broker(broker).await?;
        for (department, effects) in Department::ALL.iter().zip(&mut findings.departments) {
            self.judge_effects(*department, effects).await?;
        }
        findings.money = self
            .balance(
                "SELECT (SELECT coalesce(sum(cents), 0) FROM orders WHERE NOT cancelled), \
                     (SELECT coalesce(sum(cents), 0) FROM payments_db.payments)",
            )
            .await?;
        findings.stock = self
            .balance(
                "SELECT sum(delivered) - (SELECT coalesce(sum(units), 0) FROM orders \
                     WHERE NOT cancelled), sum(units) FROM inventory_db.stock",
            )
            .await?;
        findings.first_delivery = self.first_delivery().await?;
        Ok(findings)
    }

    /// Compares what every order asks for with what the department did.
    async fn judge_effects(
        &mut self,
        department: Department,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        let (name, table) = (department.name(), department.effects());
        [effects.lost, effects.doubled, effects.phantom, effects.reordered] = self
            .numbers(&format!(
                "WITH expected AS MATERIALIZED (
                     SELECT id AS order_id, 'OrderPlaced' AS event_type FROM orders
                     UNION ALL SELECT id, 'OrderCancelled' FROM orders WHERE cancelled
                 ), actual AS MATERIALIZED (
                     SELECT order_id, event_type, count(*) AS times, min(id) AS first
                     FROM {name}_db.{table} GROUP BY order_id, event_type
                 )
                 SELECT
                     (SELECT count(*) FROM expected LEFT JOIN actual USING (order_id, event_type)
                      WHERE times IS NULL),
                     (SELECT coalesce(sum(times - 1), 0) FROM actual),
                     (SELECT coalesce(sum(times), 0)
                      FROM actual LEFT JOIN expected AS e USING (order_id, event_type)
                      WHERE e.order_id IS NULL),
                     (SELECT count(*) FROM actual AS placed JOIN actual AS cancelled USING (order_id)
                      WHERE placed.event_type = 'OrderPlaced'
                      AND cancelled.event_type = 'OrderCancelled'
                      AND cancelled.first < placed.first)"
            ))
            .await?;
        Ok(())
    }

    /// Compares the log of the broker with the outbox.
    async fn judge_broker(&mut self, broker: &MemoryBroker) -> Result<Published, Failure> {
        let committed: Vec<(i64, String)> = sqlx::query_as("SELECT seq, id FROM semel_outbox")
            .fetch_all(&mut self.connection)
            .await
            .map_err(sql_failure)?;
        let committed: HashMap<EventId, i64> = committed
            .into_iter()
            .map(|(seq, id)| Ok((id.parse()?, seq)))
            .collect::<Result<_, Failure>>()?;
        let (mut published, mut seen) = (Published::default(), HashSet::new());
        let mut newest: HashMap<LaneKey, i64> = HashMap::new();
        for message in broker.messages() {
            if !seen.insert(message.event.id) {
                published.repeated += 1;
                continue;
            }
            published.events += 1;
            let Some(&seq) = committed.get(&message.event.id) else {
                published.phantom += 1;
                continue;
            };
            let before = newest.entry(message.event.lane_key()).or_insert(seq);
            published.reordered += u64::from(seq < *before);
            *before = seq.max(*before);
        }
        Ok(published)
    }

    async fn first_delivery(&mut self) -> Result<Option<i64>, Failure> {
        sqlx::query_scalar(
            "SELECT min(at) FROM (SELECT at FROM payments_db.deliveries WHERE id = 1
                 UNION ALL SELECT at FROM inventory_db.deliveries WHERE id = 1
                 UNION ALL SELECT at FROM notifications_db.deliveries WHERE id = 1)",
        )
        .fetch_one(&mut self.connection)
        .await
        .map_err(sql_failure)
    }

    async fn balance(&mut self, sql: &'static str) -> Result<Balance, Failure> {
        let (expected, actual) =
            sqlx::query_as(sql).fetch_one(&mut self.connection).await.map_err(sql_failure)?;
        Ok(Balance { expected, actual })
    }

    /// A row of counts. `sql` holds no value from outside.
    async fn numbers<const N: usize>(&mut self, sql: &str) -> Result<[u64; N], Failure> {
        let row = sqlx::query(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut self.connection)
            .await
            .map_err(sql_failure)?;
        let mut numbers = [0; N];
        for (index, number) in numbers.iter_mut().enumerate() {
            let value: i64 = sqlx::Row::try_get(&row, index).map_err(sql_failure)?;
            *number = u64::try_from(value).unwrap_or(0);
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Event, Message, Sink};
    use tokio::sync::watch;

    use super::super::Stage;
    use super::*;
    use crate::args::{DemoOptions, FaultLevel};

    async fn played() -> Stage {
        let options = DemoOptions { orders: 40, seed: 3, faults: FaultLevel::None, keep: false };
        let (_close, closing) = watch::channel(false);
        let stage = std::sync::Arc::new(Stage::set_up(&options, closing).await.unwrap());
        Box::pin(std::sync::Arc::clone(&stage).tell()).await.unwrap();
        std::sync::Arc::into_inner(stage).unwrap()
    }

    /// What the judge says after `sql`, which is undone.
    async fn after(judge: &mut Judge, broker: &MemoryBroker, sql: &'static str) -> Findings {
        sqlx::raw_sql("BEGIN").execute(&mut judge.connection).await.unwrap();
        let changed = sqlx::raw_sql(sql).execute(&mut judge.connection).await.unwrap();
        assert!(changed.rows_affected() > 0, "nothing to tamper with: {sql}");
        let findings = judge.judge(broker).await.unwrap();
        sqlx::raw_sql("ROLLBACK").execute(&mut judge.connection).await.unwrap();
        findings
    }

    fn faults(findings: &Findings) -> [u64; 4] {
        [findings.lost(), findings.doubled(), findings.phantom(), findings.reordered()]
    }

    #[tokio::test]
    async fn every_way_of_cheating_is_noticed() {
        let stage = played().await;
        let mut judge = Judge::open(&stage.databases).await.unwrap();
        let honest = judge.judge(&stage.broker).await.unwrap();
        assert!(honest.are_good(), "{honest:?}");
        assert!(honest.events > honest.orders, "some orders are cancelled");

        let cases = [
            ("DELETE FROM payments_db.payments WHERE id = 7", [1, 0, 0, 0]),
            ("DELETE FROM inventory_db.movements WHERE id = 7", [1, 0, 0, 0]),
            ("DELETE FROM notifications_db.notifications", [honest.events, 0, 0, 0]),
            (
                "INSERT INTO payments_db.payments (order_id, event_type, cents)
                     SELECT order_id, event_type, cents FROM payments_db.payments LIMIT 1",
                [0, 1, 0, 0],
            ),
            (
                "INSERT INTO notifications_db.notifications (order_id, event_type, text)
                     SELECT order_id, event_type, text FROM notifications_db.notifications",
                [0, honest.events, 0, 0],
            ),
            (
                "INSERT INTO inventory_db.movements (order_id, event_type)
                     VALUES (9999, 'OrderPlaced')",
                [0, 0, 1, 0],
            ),
            // An order that was committed without its event, and effects without their order.
            (
                "INSERT INTO orders (id, product, units, cents) VALUES (9999, 'x', 0, 0)",
                [3, 0, 0, 0],
            ),
            ("DELETE FROM orders WHERE id = 7 AND NOT cancelled", [0, 0, 3, 0]),
            (
                "UPDATE payments_db.payments SET id = -id
                     WHERE id = (SELECT max(id) FROM payments_db.payments
                                 WHERE event_type = 'OrderCancelled')",
                [0, 0, 0, 1],
            ),
        ];
        for (sql, expected) in cases {
            let findings = after(&mut judge, &stage.broker, sql).await;
            assert_eq!(faults(&findings), expected, "{sql}");
            assert!(!findings.are_good(), "{sql}");
        }
    }

    #[tokio::test]
    async fn the_books_must_agree() {
        let stage = played().await;
        let mut judge = Judge::open(&stage.databases).await.unwrap();
        let cents = "UPDATE payments_db.payments SET cents = cents + 1 WHERE id = 1";
        let findings = after(&mut judge, &stage.broker, cents).await;
        assert_eq!(findings.money.actual, findings.money.expected + 1);
        assert!(!findings.are_good());

        let units = "UPDATE inventory_db.stock SET units = units - 1 WHERE product = 'book'";
        let findings = after(&mut judge, &stage.broker, units).await;
        assert_eq!(findings.stock.actual, findings.stock.expected - 1);
        assert!(!findings.are_good());
    }

    #[tokio::test]
    async fn a_message_that_was_never_committed_is_a_phantom() {
        let stage = played().await;
        let mut judge = Judge::open(&stage.databases).await.unwrap();
        let invented = Event::new(service::AGGREGATE, "1", service::PLACED);
        let known = stage.broker.messages().remove(0);
        stage.broker.publish(&[Message::first("order.events", invented), known]).await;
        let findings = judge.judge(&stage.broker).await.unwrap();
        assert_eq!((findings.published.phantom, findings.published.repeated), (1, 1));
        assert!(!findings.are_good());
    }

    #[tokio::test]
    async fn a_message_that_overtakes_another_is_reordered() {
        let stage = played().await;
        let mut judge = Judge::open(&stage.databases).await.unwrap();
        let backwards = MemoryBroker::new();
        let messages: Vec<Message> = stage.broker.messages().into_iter().rev().collect();
        backwards.publish(&messages).await;
        let findings = judge.judge(&backwards).await.unwrap();
        assert_eq!(findings.published.reordered, findings.events - findings.orders);
        assert!(!findings.are_good());
    }
}
