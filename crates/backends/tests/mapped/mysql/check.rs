//! What makes an id unique, and what does not.

use semel_backends::mapped::Mapping;
use semel_core::{Failure, Fault};

use super::Database;

const COLUMNS: &str = "id VARCHAR(50) NOT NULL, tenant_id BIGINT NOT NULL, aggregate_type TEXT,
    aggregate_id TEXT, event_type TEXT, payload TEXT, created_at DATETIME NOT NULL,
    sent BOOLEAN NOT NULL DEFAULT FALSE";

/// Makes the table anew, and holds a mapping against it.
async fn checked(database: &Database, rest: &str) -> Result<(), Failure> {
    database.run("DROP TABLE IF EXISTS outbox").await;
    database.run(&format!("CREATE TABLE outbox ({COLUMNS}, {rest}")).await;
    database.store.check_mapping(&Mapping::new("outbox").mark_flag("sent")).await.map(drop)
}

/// Two rows of one id would be marked as one.
#[tokio::test]
async fn an_id_that_is_unique_only_with_something_else_is_refused() {
    let Some(database) = Database::new().await else { return };
    let by_month = "PARTITION BY RANGE (to_days(created_at)) \
        (PARTITION rest VALUES LESS THAN MAXVALUE)";
    for (rest, why) in [
        ("PRIMARY KEY (tenant_id, id))".to_owned(), "is on \"tenant_id\", \"id\""),
        ("PRIMARY KEY (id, created_at))".to_owned(), "is on \"id\", \"created_at\""),
        ("UNIQUE KEY part (id(8)))".to_owned(), "\"part\" is on the beginning of it"),
        ("KEY (id))".to_owned(), "the same \"id\""),
        ("PRIMARY KEY (tenant_id, id)) PARTITION BY HASH (tenant_id)".to_owned(), "is on"),
        (format!("PRIMARY KEY (tenant_id, id, created_at)) {by_month}"), "is on"),
    ] {
        let failure = checked(&database, &rest).await.expect_err(&rest);
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MAPPED-ID"));
        assert!(failure.to_string().contains(why), "{failure}");
        assert!(failure.fix().unwrap().contains("make \"id\" alone"), "{failure:?}");
    }
}

/// A partitioned table cannot have a unique index without the columns of its partitions.
#[tokio::test]
async fn an_id_that_is_unique_by_itself_or_with_ranges_is_taken() {
    let Some(database) = Database::new().await else { return };
    let all = "(PARTITION rest VALUES LESS THAN (MAXVALUE))";
    for rest in [
        "UNIQUE KEY (id))".to_owned(),
        "PRIMARY KEY (tenant_id, id), UNIQUE KEY (id))".to_owned(),
        format!("PRIMARY KEY (id, created_at)) PARTITION BY RANGE (to_days(created_at)) {all}"),
        format!("PRIMARY KEY (created_at, id)) PARTITION BY RANGE COLUMNS (created_at) {all}"),
        format!("PRIMARY KEY (tenant_id, id)) PARTITION BY RANGE (tenant_id) {all}"),
    ] {
        checked(&database, &rest).await.expect(&rest);
    }
}

#[tokio::test]
async fn a_table_has_one_pipeline_however_it_is_written() {
    const COLUMNS: &str = "id BIGINT PRIMARY KEY, aggregate_type TEXT,
        aggregate_id TEXT, event_type TEXT, payload TEXT, created_at DATETIME, published_at DATETIME";
    let Some(database) = Database::new().await else { return };
    for name in ["a", "b"] {
        database.run(&format!("CREATE TABLE {name} ({COLUMNS})")).await;
    }
    let schema: String =
        sqlx::query_scalar("SELECT database()").fetch_one(database.pool()).await.unwrap();
    let mapping = |table: &str| Mapping::transactional_outbox(table);
    let open = async |pipeline: &str, mapping: Mapping| {
        database.store.mapped_source(pipeline, &mapping).await.map(drop)
    };
    open("orders", mapping("a")).await.unwrap();
    open("payments", mapping("b").in_schema(schema.as_str())).await.unwrap();
    for (pipeline, mapping) in [
        ("orders", mapping("b")),
        ("payments", mapping("a").in_schema(schema.as_str())),
        ("returns", mapping("a").in_schema(schema.as_str())),
        ("returns", mapping("b")),
    ] {
        let failure = open(pipeline, mapping).await.unwrap_err();
        assert_eq!(failure.code(), "E-MAPPED-TAKEN", "{failure}");
    }
    open("orders", mapping("a").in_schema(schema.as_str())).await.unwrap();
}
