//! A mapping that does not fit: everything that is wrong is said at once, with what to do.

use semel_backends::mapped::Mapping;
use semel_backends::postgres::{PgPool, PostgresStore};
use semel_core::{AdminStore, Failure, Fault};
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

use super::Database;

const TABLE: &str = "create table outbox (id bigserial primary key, aggregate_type text,
    aggregate_id text, event_type text, payload numeric, created_at date, published_at timestamptz,
    published text, retry_count int)";

async fn refused(database: &Database, mapping: &Mapping) -> Failure {
    let checked = database.store.check_mapping(mapping).await.unwrap_err();
    let opened = database.store.mapped_source("orders", mapping).await.unwrap_err();
    assert_eq!(checked, opened);
    assert_eq!(opened.fault(), Fault::Misconfigured, "{opened}");
    opened
}

#[tokio::test]
async fn a_table_that_is_missing_is_named_with_the_nearest_one() {
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    let failure = refused(&database, &Mapping::transactional_outbox("Outbox")).await;
    assert_eq!(failure.code(), "E-MAPPED-TABLE");
    assert!(failure.to_string().contains("\"Outbox\" does not exist"), "{failure}");
    assert!(failure.fix().unwrap().contains("there is a table \"outbox\""), "{failure:?}");
    let failure = refused(&database, &Mapping::transactional_outbox("public.outbox")).await;
    assert!(failure.fix().unwrap().contains("schema"), "{:?}", failure.fix());
    let qualified = Mapping::new("nothing").in_schema("nowhere").mark_time("x");
    assert!(refused(&database, &qualified).await.to_string().contains("nowhere.nothing"));
}

#[tokio::test]
async fn all_faults_are_named_at_once() {
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    let mapping =
        Mapping::polling_publisher("outbox").aggregate_id("agregate_id").headers("metadata");
    let failure = refused(&database, &mapping).await;
    let text = failure.to_string();
    for expected in [
        "no column \"agregate_id\" for aggregate_id",
        "no column \"metadata\" for headers",
        "no column \"idempotency_key\"",
        "\"payload\" for payload is numeric, and must be JSON, text or bytes",
        "\"created_at\" for created_at is date, and must be a time",
        "\"published\" for mark_flag is text, and must be a boolean or a whole number",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert!(failure.fix().unwrap().contains("did you mean \"aggregate_id\"?"), "{failure:?}");
}

#[tokio::test]
async fn a_row_must_be_marked_somehow() {
    let Some(database) = Database::new().await else { return };
    database
        .run(
            "create table outbox (id int, aggregate_type text, aggregate_id text,
        event_type text, payload text, sent boolean)",
        )
        .await;
    let failure = refused(&database, &Mapping::new("outbox")).await;
    assert_eq!(failure.code(), "E-MAPPED-MARK");
    let failure = refused(&database, &Mapping::new("outbox").mark_flag("sent")).await;
    assert_eq!(failure.code(), "E-MAPPED-ID", "nothing makes the id unique: {failure}");
    database.run("alter table outbox add primary key (id)").await;
    let both = Mapping::new("outbox").mark_flag("sent").delete_on_publish();
    assert_eq!(refused(&database, &both).await.code(), "E-MAPPED-MARK");

    database.run("insert into outbox values (1, 'order', '1', 'Placed', '', null)").await;
    let failure = refused(&database, &Mapping::new("outbox").mark_flag("sent")).await;
    assert!(failure.to_string().contains("null in some rows"), "{failure}");
    assert!(failure.fix().unwrap().contains("SET \"sent\" = false"), "{failure:?}");
}

const COLUMNS: &str = "id bigint not null, tenant_id bigint not null, key text not null,
    aggregate_type text, aggregate_id text, event_type text, payload text,
    created_at timestamptz not null, sent boolean not null default false";

/// Makes the table anew, and holds a mapping against it.
async fn checked(database: &Database, definition: &str) -> Result<(), Failure> {
    database.run(&format!("drop table if exists outbox; {definition}")).await;
    database.store.check_mapping(&Mapping::new("outbox").mark_flag("sent")).await.map(drop)
}

/// Two rows of one id would be marked as one.
#[tokio::test]
async fn an_id_that_is_unique_only_with_something_else_is_refused() {
    let Some(database) = Database::new().await else { return };
    let table = |rest: &str| format!("create table outbox ({COLUMNS}{rest}");
    for (definition, why) in [
        (table(", primary key (tenant_id, id))"), "is on \"tenant_id\", \"id\""),
        (table(", primary key (id, created_at))"), "is on \"id\", \"created_at\""),
        (table("); create unique index part on outbox (id) where not sent"), "\"part\" has some"),
        (table(", unique (key) include (id))"), "the same \"id\""),
        (table("); create unique index on outbox (id, lower(key))"), "the same \"id\""),
        (table(", primary key (tenant_id, id)) partition by hash (tenant_id)"), "is on"),
        (table(", primary key (tenant_id, id)) partition by list (tenant_id)"), "is on"),
        (
            table(", primary key (tenant_id, id, created_at)) partition by range (created_at)"),
            "is on",
        ),
    ] {
        let failure = checked(&database, &definition).await.expect_err(&definition);
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MAPPED-ID"));
        assert!(failure.to_string().contains(why), "{failure}");
        assert!(failure.fix().unwrap().contains("make \"id\" alone"), "{failure:?}");
    }
}

/// A partitioned table cannot have a unique index without the columns of its partitions.
#[tokio::test]
async fn an_id_that_is_unique_by_itself_or_with_ranges_is_taken() {
    let Some(database) = Database::new().await else { return };
    for rest in [
        ", unique (id))",
        ", unique (id) include (key))",
        ", primary key (tenant_id, id)); create unique index on outbox (id)",
        ", primary key (id, created_at)) partition by range (created_at)",
        ", primary key (created_at, tenant_id, id)) partition by range (tenant_id, created_at)",
    ] {
        let definition = format!("create table outbox ({COLUMNS}{rest}");
        checked(&database, &definition).await.expect(&definition);
    }
}

#[tokio::test]
async fn a_missing_privilege_is_named_with_the_grant() {
    let Some(database) = Database::new().await else { return };
    database
        .run(
            "create table outbox (id bigserial primary key, aggregate_type text, aggregate_id text,
            event_type text, payload text, created_at timestamptz, published_at timestamptz)",
        )
        .await;
    let role = format!("semel_test_{}", Uuid::now_v7().simple());
    database
        .run(&format!(
            "create role {role}; grant usage on schema semel to {role};
            grant select, insert, update, delete on all tables in schema semel to {role};
            grant select on outbox to {role}"
        ))
        .await;
    let store = PostgresStore::from_pool(pool_as(&database, &role).await);
    let mapping = Mapping::transactional_outbox("outbox");
    let failure = store.mapped_source("orders", &mapping).await.unwrap_err();
    database.run(&format!("grant update (published_at) on outbox to {role}")).await;
    let allowed = store.mapped_source("orders", &mapping).await.map(drop);
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MAPPED-PRIVILEGE"));
    assert!(failure.fix().unwrap().contains("GRANT UPDATE ON \"outbox\""), "{failure:?}");
    allowed.expect("one column is enough");
}

async fn pool_as(database: &Database, role: &str) -> PgPool {
    let set = format!("set role {role}");
    PgPoolOptions::new()
        .after_connect(move |connection, _| {
            let set = set.clone();
            Box::pin(async move {
                sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(connection).await.map(drop)
            })
        })
        .connect(&database.url())
        .await
        .unwrap()
}

#[tokio::test]
async fn semels_own_tables_are_needed() {
    let Some(database) = Database::unmigrated().await else { return };
    database.run(TABLE).await;
    let mapping = Mapping::transactional_outbox("outbox");
    let failure = database.store.mapped_source("orders", &mapping).await.unwrap_err();
    assert_eq!(failure.code(), "E-SCHEMA-MISSING");
    let failure = database.store.mapped_admin("orders", &mapping).stats().await.unwrap_err();
    assert_eq!(failure.code(), "E-SCHEMA-MISSING");
}

#[tokio::test]
async fn a_table_has_one_pipeline_and_a_pipeline_one_table() {
    let Some(database) = Database::new().await else { return };
    let table = "(id bigserial primary key, aggregate_type text, aggregate_id text,
        event_type text, payload text, created_at timestamp, published_at timestamp)";
    database.run(&format!("create table a {table}; create table b {table}")).await;
    let mapping = |table: &str| Mapping::transactional_outbox(table);
    database.store.mapped_source("orders", &mapping("a")).await.unwrap();
    for (pipeline, mapping) in [
        ("orders", mapping("b")),
        ("payments", mapping("a")),
        ("payments", mapping("a").in_schema("public")),
    ] {
        let failure = database.store.mapped_source(pipeline, &mapping).await.unwrap_err();
        assert_eq!(failure.code(), "E-MAPPED-TAKEN", "{failure}");
    }
    database.store.mapped_source("payments", &mapping("b").in_schema("public")).await.unwrap();
    let failure = database.store.mapped_source("returns", &mapping("b")).await.unwrap_err();
    assert_eq!(failure.code(), "E-MAPPED-TAKEN", "{failure}");
    database.store.mapped_source("orders", &mapping("a").in_schema("public")).await.unwrap();
    database.run(&format!("create schema elsewhere; create table elsewhere.a {table}")).await;
    database.store.mapped_source("returns", &mapping("a").in_schema("elsewhere")).await.unwrap();
}
