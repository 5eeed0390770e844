//! Tables that were there before semel, by configuration alone.

use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use crate::shop::Shop;

impl Shop {
    fn sql(&self, sql: &str) -> Vec<sqlx::sqlite::SqliteRow> {
        let url = format!("sqlite://{}", self.file("shop.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap()
        })
    }

    fn map(&self, columns: &str) {
        self.map_into(columns, "");
    }

    /// With a line more in its pipeline.
    fn map_into(&self, columns: &str, line: &str) {
        self.write_config(&format!(
            "[source.orders]\nurl = \"sqlite://shop.db\"\ntable = \"my \\\"outbox\\\"\"\n{columns}\n\
             [sink.out]\ntype = \"file\"\npath = \"events.ndjson\"\n\
             [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n{line}\n"
        ));
    }
}

const CLASSIC: &str = "create table \"my \"\"outbox\"\"\" (
    id integer primary key autoincrement, aggregate_type text, aggregate_id text,
    event_type text, payload text, created_at timestamp, published boolean default false,
    published_at timestamp null, retry_count int default 0, idempotency_key text unique not null);
    insert into \"my \"\"outbox\"\"\"
        (aggregate_type, aggregate_id, event_type, payload, created_at, idempotency_key)
    values ('order', '42', 'OrderPlaced', '{\"n\":1}', '2026-01-02 03:04:05', 'a'),
           ('order', '42', 'OrderPaid', '{\"n\":2}', '2026-01-02 03:04:06', 'b');";

#[test]
fn the_classic_polling_publisher_needs_two_lines() {
    let shop = Shop::new();
    shop.sql(CLASSIC);
    shop.map("columns = \"polling-publisher\"");
    shop.expect(0, &["relay", "--drain"]);
    shop.expect(0, &["relay", "--drain"]);
    let events = shop.published();
    let types: Vec<_> = events.iter().map(|event| event["event_type"].as_str().unwrap()).collect();
    assert_eq!(types, ["OrderPlaced", "OrderPaid"]);
    let marked = shop.sql(
        "select count(*) from \"my \"\"outbox\"\"\"
        where published and published_at is not null and retry_count = 0",
    );
    assert_eq!(marked[0].get::<i64, _>(0), 2);
    assert_eq!(shop.json(&["status"])[0]["published"], 2);
    assert!(shop.expect(0, &["events", "list"]).contains("OrderPaid"));
}

#[test]
fn any_columns_can_be_named() {
    let shop = Shop::new();
    shop.sql(
        "create table \"my \"\"outbox\"\"\" (no integer primary key, who text, what text, body text,
            state text, tenant text);
        insert into \"my \"\"outbox\"\"\" values (1, '42', 'Placed', '{}', 'NEW', 'acme')",
    );
    shop.map(
        "[source.orders.columns]\nid = \"no\"\naggregate_type_is = \"order\"\n\
         aggregate_id = \"who\"\nevent_type = \"what\"\npayload = \"body\"\n\
         header_columns = [\"tenant\"]\n\
         status = { column = \"state\", pending = \"NEW\", published = \"SENT\" }",
    );
    shop.expect(0, &["relay", "--drain"]);
    let events = shop.published();
    assert_eq!(
        (&events[0]["topic"], &events[0]["headers"]["tenant"]),
        (&"order.events".into(), &"acme".into())
    );
    let state = shop.sql("select state from \"my \"\"outbox\"\"\"");
    assert_eq!(state[0].get::<String, _>(0), "SENT");
}

#[test]
fn what_is_wrong_with_a_mapping_is_said_with_its_place() {
    let shop = Shop::new();
    shop.sql(CLASSIC);
    shop.map("columns = \"debezium\"");
    let message = shop.refused(78, &["relay", "--drain"]);
    assert!(message.contains("aggregatetype"), "{message}");
    assert!(message.contains("aggregate_type"), "what was meant: {message}");
    shop.map("columns = \"debezum\"");
    let message = shop.refused(78, &["relay", "--drain"]);
    assert!(message.contains("semel.toml:4") && message.contains("\"debezium\""), "{message}");
    shop.map("");
    let message = shop.refused(78, &["relay", "--drain"]);
    assert!(message.contains("say what its columns mean"), "{message}");
}

#[test]
fn check_holds_the_mapping_against_the_table() {
    let shop = Shop::new();
    shop.sql(CLASSIC);
    shop.map("columns = \"polling-publisher\"");
    let said = shop.expect(0, &["check"]);
    assert!(said.contains("the table of pipeline.orders is as it is mapped"), "{said}");
    shop.sql("alter table \"my \"\"outbox\"\"\" rename column payload to content");
    let said = shop.expect(1, &["check"]);
    assert!(said.contains("mapping") && said.contains("pipeline.orders does not start"), "{said}");
    assert!(said.contains("1 problem, 0 pieces of advice"), "{said}");
}

#[test]
fn check_advises_a_number_where_only_a_time_orders_the_rows() {
    let shop = Shop::new();
    shop.sql(
        "create table \"my \"\"outbox\"\"\" (id text primary key, aggregate_type text,
            aggregate_id text, event_type text, payload text, created_at timestamp,
            published_at timestamp, seq integer)",
    );
    shop.map("columns = \"transactional-outbox\"");
    let said = shop.expect(0, &["check"]);
    assert!(said.contains("advice   mapping-order"), "{said}");
    assert!(said.contains("only created_at orders the rows of pipeline.orders"), "{said}");
    shop.map("columns = { preset = \"transactional-outbox\", order = \"seq\" }");
    let said = shop.expect(0, &["check"]);
    assert!(said.contains("ok       mapping-order"), "{said}");
}

/// Their order is no number, so that listings of them are paged by counting.
fn with_dead_letters(count: usize) -> Shop {
    let shop = Shop::new();
    shop.sql(&format!(
        "create table \"my \"\"outbox\"\"\" (id text primary key, aggregate_type text,
            aggregate_id text, event_type text, payload text, created_at timestamp,
            published_at timestamp);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})
        insert into \"my \"\"outbox\"\"\" select printf('0190b6e8-7a3c-4def-8000-%012d', i), 'order', i,
            'OrderPlaced', '{{}}', '2026-01-02 03:04:05', null from n"
    ));
    let columns = "columns = \"transactional-outbox\"";
    shop.map_into(columns, "topic = \"{header.missing}\"");
    shop.expect(1, &["relay", "--drain"]);
    shop.map(columns);
    shop
}

#[test]
fn pages_of_rows_without_a_number_are_changed_once_each() {
    let shop = with_dead_letters(1234);
    let told = shop.expect(0, &["dead", "retry", "--all", "--yes"]);
    assert_eq!(told, "1234 events retried\n");
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 1234);
    assert_eq!(shop.json(&["replay", "--all", "--yes"])["replayed"], 1234);
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 2 * 1234);
}

#[test]
fn pages_of_rows_without_a_number_are_given_up_once_each() {
    let shop = with_dead_letters(1001);
    let told = shop.expect(0, &["dead", "discard", "--all", "--yes"]);
    assert_eq!(told, "1001 events discarded\n");
    assert_eq!(shop.count("dead"), 0);
    assert_eq!(shop.count("discarded"), 1001);
}
