//! What makes an id unique, and what does not.

use semel_backends::mapped::Mapping;
use semel_core::{Failure, Fault};

use super::{Database, run};

const COLUMNS: &str = "id INTEGER NOT NULL, tenant_id INTEGER NOT NULL, aggregate_type TEXT,
    aggregate_id TEXT, event_type TEXT, payload TEXT, sent BOOLEAN NOT NULL DEFAULT FALSE";

/// Makes the table anew, and holds a mapping against it.
async fn checked(database: &Database, definition: &str) -> Result<(), Failure> {
    run(database, &format!("DROP TABLE IF EXISTS outbox; {definition}")).await;
    database.store.check_mapping(&Mapping::new("outbox").mark_flag("sent")).await.map(drop)
}

/// Two rows of one id would be marked as one.
#[tokio::test]
async fn an_id_that_is_unique_only_with_something_else_is_refused() {
    let database = Database::new().await;
    let table = |rest: &str| format!("CREATE TABLE outbox ({COLUMNS}{rest}");
    for (definition, why) in [
        (table(", PRIMARY KEY (tenant_id, id))"), "is on \"tenant_id\", \"id\""),
        (table(", PRIMARY KEY (tenant_id, id)) WITHOUT ROWID"), "is on \"tenant_id\", \"id\""),
        (table(", PRIMARY KEY (tenant_id))"), "the same \"id\""),
        (table("); CREATE UNIQUE INDEX part ON outbox (id) WHERE NOT sent"), "\"part\" has some"),
        (table("); CREATE INDEX plain ON outbox (id)"), "the same \"id\""),
    ] {
        let failure = checked(&database, &definition).await.expect_err(&definition);
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MAPPED-ID"));
        assert!(failure.to_string().contains(why), "{failure}");
        assert!(failure.fix().unwrap().contains("make \"id\" alone"), "{failure:?}");
    }
}

#[tokio::test]
async fn an_id_that_is_unique_by_itself_is_taken() {
    let database = Database::new().await;
    for rest in [
        ", PRIMARY KEY (id))",
        ", PRIMARY KEY (id)) WITHOUT ROWID",
        ", UNIQUE (id))",
        ", PRIMARY KEY (tenant_id, id)); CREATE UNIQUE INDEX whole ON outbox (id)",
    ] {
        let definition = format!("CREATE TABLE outbox ({COLUMNS}{rest}");
        checked(&database, &definition).await.expect(&definition);
    }
}

#[tokio::test]
async fn a_table_has_one_pipeline_however_it_is_written() {
    const COLUMNS: &str = "id INTEGER PRIMARY KEY, aggregate_type TEXT,
        aggregate_id TEXT, event_type TEXT, payload TEXT, created_at TEXT, published_at TEXT";
    let database = Database::new().await;
    for name in ["a", "b"] {
        run(&database, &format!("CREATE TABLE {name} ({COLUMNS})")).await;
    }
    let mapping = |table: &str| Mapping::transactional_outbox(table);
    let open = async |pipeline: &str, mapping: Mapping| {
        database.store.mapped_source(pipeline, &mapping).await.map(drop)
    };
    open("orders", mapping("a")).await.unwrap();
    open("payments", mapping("b").in_schema("main")).await.unwrap();
    for (pipeline, mapping) in [
        ("orders", mapping("b")),
        ("payments", mapping("a").in_schema("main")),
        ("returns", mapping("a").in_schema("main")),
        ("returns", mapping("b")),
        ("payments", mapping("A")),
        ("payments", mapping("a").in_schema("Main")),
    ] {
        let failure = open(pipeline, mapping).await.unwrap_err();
        assert_eq!(failure.code(), "E-MAPPED-TAKEN", "{failure}");
    }
    open("orders", mapping("a").in_schema("main")).await.unwrap();
}
