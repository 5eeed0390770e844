//! The classic tables as teams have them, and what is particular to MySQL and MariaDB.

use semel_backends::mapped::{LaneOrder, Mapping};
use semel_core::admin::{AdminStore, State};
use semel_core::{Fault, Outcome};

use super::super::{dead, deliver_all, insert_with_ids, inserts, retry_now, settle, take};
use super::Database;

const TRANSACTIONAL_OUTBOX: &str = "CREATE TABLE outbox (id CHAR(36) PRIMARY KEY,
    aggregate_type VARCHAR(255), aggregate_id VARCHAR(255), event_type VARCHAR(255), payload JSON,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, published_at TIMESTAMP NULL,
    KEY waiting (published_at, created_at))";

const POLLING_PUBLISHER: &str = "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY,
    aggregate_type VARCHAR(255), aggregate_id VARCHAR(255), event_type VARCHAR(255), payload TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, published BOOLEAN DEFAULT FALSE,
    published_at TIMESTAMP NULL, retry_count INT DEFAULT 0,
    idempotency_key VARCHAR(255) UNIQUE NOT NULL, KEY waiting (published, created_at))";

async fn write(database: &Database, lanes: &[&str]) {
    for insert in inserts(lanes) {
        database.run(&insert).await;
    }
}

#[tokio::test]
async fn a_transactional_outbox_is_marked_when_published() {
    let Some(database) = Database::new().await else { return };
    database.run(TRANSACTIONAL_OUTBOX).await;
    for insert in insert_with_ids(&["good", "bad", "worse"]) {
        database.run(&insert).await;
    }
    let mapping = Mapping::transactional_outbox("outbox");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let is_published = "abs(timestampdiff(SECOND, published_at, CURRENT_TIMESTAMP)) < 60";
    let number = async |sql: String| database.number(&sql).await;
    super::super::a_transactional_outbox_is_marked_when_published(
        open,
        &admin,
        is_published,
        number,
    )
    .await;
}

#[tokio::test]
async fn a_polling_publisher_has_true_marks_and_counts() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["good", "bad", "worse"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let waits = "published = 0 AND published_at IS NULL";
    let is_published = "published = 1 AND \
        abs(timestampdiff(SECOND, published_at, CURRENT_TIMESTAMP)) < 60";
    let number = async |sql: String| database.number(&sql).await;
    super::super::a_polling_publisher_has_true_marks_and_counts(
        &mut source,
        &admin,
        [waits, is_published],
        number,
    )
    .await;
}

#[tokio::test]
async fn rows_go_once_they_are_published() {
    let Some(database) = Database::new().await else { return };
    database
        .run(
            "CREATE TABLE outboxevent (id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL,
                aggregateid VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, payload TEXT,
                seq BIGINT NOT NULL AUTO_INCREMENT UNIQUE, tenant VARCHAR(20));
            INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload, tenant) VALUES
                ('f190b6e8-7a3c-7def-8000-0123456789ab', 'order', '42', 'OrderPlaced', '{}', 'acme'),
                ('0190b6e8-7a3c-7def-8000-0123456789ab', 'order', '42', 'OrderPaid', '{}', NULL)",
        )
        .await;
    let mapping = Mapping::debezium("outboxevent");
    assert_eq!(database.store.check_mapping(&mapping).await.unwrap(), LaneOrder::None);
    let mapping = mapping.order_by("seq");
    assert_eq!(database.store.check_mapping(&mapping).await.unwrap(), LaneOrder::ByColumn);
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let batch = take(&mut source).await;
    let kinds: Vec<_> = batch.iter().map(|got| got.message.event.event_type.as_str()).collect();
    assert_eq!(kinds, ["OrderPlaced", "OrderPaid"]);
    assert_eq!(batch[0].message.event.headers.iter().next(), Some(("tenant", "acme")));
    settle(&mut source, &batch[0], Outcome::Delivered).await;
    assert_eq!(database.number("SELECT count(*) FROM outboxevent").await, 1);
    settle(&mut source, &batch[1], retry_now(1)).await;
    assert_eq!(database.number("SELECT count(*) FROM outboxevent").await, 1);
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    assert_eq!(database.number("SELECT count(*) FROM outboxevent").await, 0);
}

/// Lanes are told apart byte by byte, whatever the collation of the table says.
#[tokio::test]
async fn lanes_that_differ_in_case_do_not_wait_for_each_other() {
    let Some(database) = Database::new().await else { return };
    database.run(&format!("{POLLING_PUBLISHER} COLLATE utf8mb4_general_ci")).await;
    write(&database, &["a"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let head = take(&mut source).await;
    settle(&mut source, &head[0], dead()).await;
    database
        .run("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
            VALUES ('order', 'a', 'Paid', '', 'x'), ('order', 'A', 'Paid', '', 'y')")
        .await;
    let lanes: Vec<_> = deliver_all(&mut source).await;
    let lanes: Vec<_> = lanes.iter().map(|got| got.message.event.aggregate_id.as_str()).collect();
    assert_eq!(lanes, ["A"]);
}

#[tokio::test]
async fn rows_whose_flag_is_null_are_published() {
    let classic = ", KEY waiting (published, created_at)";
    for index in [classic, ", KEY waiting (published, id)", ""] {
        let Some(database) = Database::new().await else { return };
        database.run(&POLLING_PUBLISHER.replace(classic, index)).await;
        let mapping = Mapping::polling_publisher("outbox");
        let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
        let run = async |sql: String| database.run(&sql).await;
        let admin = database.store.mapped_admin("orders", &mapping);
        super::super::rows_whose_flag_is_null_are_published(&admin, open, run, true).await;
    }
}

#[tokio::test]
async fn ids_may_be_sixteen_bytes_or_unsigned() {
    let Some(database) = Database::new().await else { return };
    let columns = "aggregate_type TEXT, aggregate_id BIGINT, event_type TEXT, payload LONGBLOB,
        sent BIT(1) NOT NULL DEFAULT b'0', retry_count INT";
    database
        .run(&format!(
            "CREATE TABLE bytes (id BINARY(16) PRIMARY KEY, {columns});
            INSERT INTO bytes (id, aggregate_type, aggregate_id, event_type, payload) VALUES
                (unhex('0190b6e87a3c7def80000123456789ab'), 'order', 7, 'Placed', 'x');
            CREATE TABLE numbers (id BIGINT UNSIGNED PRIMARY KEY, {columns});
            INSERT INTO numbers (id, aggregate_type, aggregate_id, event_type, payload) VALUES
                (18446744073709551615, 'order', 7, 'Placed', 'x'),
                (9007199254740993, 'order', 7, 'Placed', 'x')"
        ))
        .await;
    for (table, count) in [("bytes", 1), ("numbers", 2)] {
        let mapping = Mapping::new(table).mark_flag("sent").retry_count("retry_count");
        let mut source = database.store.mapped_source(table, &mapping).await.unwrap();
        let first = take(&mut source).await;
        settle(&mut source, &first[0], retry_now(1)).await;
        drop(source);
        let mut source = database.store.mapped_source(table, &mapping).await.unwrap();
        let delivered = deliver_all(&mut source).await;
        assert_eq!(delivered.len(), count);
        let sent = format!("SELECT count(*) FROM {table} WHERE sent = b'1'");
        assert_eq!(database.number(&sent).await.unsigned_abs(), count as u64);
        let admin = database.store.mapped_admin(table, &mapping);
        for got in &delivered {
            let view = admin.get(got.message.event.id).await.unwrap().expect("found by its id");
            assert_eq!((view.state, view.event.aggregate_id.as_str()), (State::Published, "7"));
        }
        if table == "bytes" {
            let id = delivered[0].message.event.id.to_string();
            assert_eq!(id, "0190b6e8-7a3c-7def-8000-0123456789ab");
        }
    }
}

#[tokio::test]
async fn any_characters_may_be_in_names() {
    let Some(database) = Database::new().await else { return };
    database
        .run(r"CREATE TABLE `o'ut``box; --` (`the ``id``` VARCHAR(50) PRIMARY KEY, `a type` TEXT,
                `key'` TEXT, `Event` TEXT, `päyload` JSON, `st'atus` VARCHAR(20), seq INT);
            INSERT INTO `o'ut``box; --` VALUES ('evt\'1', 'order', '42', 'Placed', '1', 'it\'s \\ new', 1)")
        .await;
    let mapping = Mapping::new("o'ut`box; --")
        .id("the `id`")
        .aggregate_type("a type")
        .aggregate_id("key'")
        .event_type("Event")
        .payload("päyload")
        .order_by("seq")
        .mark_status("st'atus", r"it's \ new", r"it's \ done");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let batch = take(&mut source).await;
    settle(&mut source, &batch[0], retry_now(1)).await;
    let delivered = deliver_all(&mut source).await;
    assert_eq!(delivered.len(), 1);
    let done = r"SELECT count(*) FROM `o'ut``box; --` WHERE `st'atus` = 'it\'s \\ done'";
    assert_eq!(database.number(done).await, 1);
    let admin = database.store.mapped_admin("orders", &mapping);
    assert_eq!(admin.stats().await.unwrap().counts, [0, 0, 1, 0, 0, 0]);
    let found = admin.get(delivered[0].message.event.id).await.unwrap();
    assert_eq!(found.expect("found by its id").event.aggregate_id, "42");
}

#[tokio::test]
async fn waiting_rows_are_found_by_their_mark() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    database
        .run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, published,
                idempotency_key)
            WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 900)
            SELECT 'order', n, 'Placed', '', n <= 880, n FROM n;
            ANALYZE TABLE outbox",
        )
        .await;
    let mapping = Mapping::polling_publisher("outbox");
    let source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let plan = source.plan().await.unwrap().join("\n");
    assert!(plan.contains(" t ref waiting waiting"), "{plan}");
    drop(source);
    database.run("CREATE INDEX in_order ON outbox (published, id)").await;
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let plan = source.plan().await.unwrap().join("\n");
    assert!(plan.contains("in_order") && !plan.contains("filesort"), "{plan}");
    assert_eq!(deliver_all(&mut source).await.len(), 20);
}

#[tokio::test]
async fn a_mapping_that_does_not_fit_is_refused_with_all_faults() {
    let Some(database) = Database::new().await else { return };
    let missing = database.store.check_mapping(&Mapping::polling_publisher("outbox")).await;
    assert_eq!(missing.unwrap_err().code(), "E-MAPPED-TABLE");
    database.run(POLLING_PUBLISHER).await;
    let mapping =
        Mapping::polling_publisher("outbox").aggregate_id("agregate_id").mark_flag("payload");
    let failure = database.store.check_mapping(&mapping).await.unwrap_err();
    assert_eq!(failure.fault(), Fault::Misconfigured);
    let text = failure.to_string();
    assert!(text.contains("no column \"agregate_id\""), "{text}");
    assert!(text.contains("\"payload\" for mark_flag is text"), "{text}");
    assert!(failure.fix().unwrap().contains("did you mean \"aggregate_id\"?"));
}

#[tokio::test]
async fn a_missing_privilege_is_named_with_the_grant() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    let user = format!("semel_{}", &uuid::Uuid::now_v7().simple().to_string()[16..]);
    let (address, name) =
        database.url().rsplit_once('/').map(|(a, n)| (a.to_owned(), n.to_owned())).unwrap();
    database
        .run(&format!(
            "CREATE USER {user}@'%'; CREATE USER {user}@localhost;
            GRANT SELECT ON {name}.* TO {user}@'%'; GRANT SELECT ON {name}.* TO {user}@localhost"
        ))
        .await;
    let (_, host) = address.rsplit_once('@').unwrap();
    let url = format!("mysql://{user}@{host}/{name}");
    let config = semel_backends::mysql::MysqlConfig::new(&url).unwrap();
    let checked = match config.connect().await {
        Ok(store) => store.check_mapping(&Mapping::polling_publisher("outbox")).await,
        Err(failure) => Err(failure),
    };
    database.run(&format!("DROP USER {user}@'%'; DROP USER {user}@localhost")).await;
    let failure = checked.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MAPPED-PRIVILEGE"));
    assert!(failure.fix().unwrap().contains("GRANT UPDATE ON `outbox`"), "{failure:?}");
}
