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
