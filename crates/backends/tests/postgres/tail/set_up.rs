//! Servers that do not allow it: a source that must tail says what to run, any other polls.

use semel_backends::postgres::{PostgresConfig, PostgresStore, Tailing, publication_sql};
use semel_core::{Fault, Limit, Source};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::event;

use super::super::{Database, Relay, database};

/// It polls, and one that must tail is refused with this code.
async fn is_refused(database: &Database, store: &PostgresStore, code: &str) {
    let failure = store.tailing_source("orders", Tailing::Required).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{failure:?}");
    assert!(failure.fix().is_some());
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    relay.take(1).await;
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    for _ in 0..10 {
        relay.take(1).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(!relay.source.is_tailing());
    database.commit(&[event("a", 1)]).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
}

#[tokio::test]
async fn a_user_without_replication() {
    let database = database!();
    let role = database.pool().connect_options().get_database().unwrap().to_owned();
    database
        .run(&format!(
            "create role {role} login; grant all on schema semel to {role};
            grant all on all tables in schema semel to {role};
            grant all on all sequences in schema semel to {role}; {}",
            publication_sql()
        ))
        .await;
    let url = database.url().replacen("postgres@", &format!("{role}@"), 1);
    let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
    is_refused(&database, &store, "E-TAIL-PRIVILEGE").await;
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn a_user_who_may_not_publish() {
    let database = database!();
    let role = database.pool().connect_options().get_database().unwrap().to_owned();
    database
        .run(&format!(
            "create role {role} login replication; grant all on schema semel to {role};
            grant all on all tables in schema semel to {role};
            grant all on all sequences in schema semel to {role}"
        ))
        .await;
    let url = database.url().replacen("postgres@", &format!("{role}@"), 1);
    let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
    is_refused(&database, &store, "E-TAIL-PUBLICATION").await;
    // What the failure says to run helps.
    database.run(publication_sql()).await;
    let source = store.tailing_source("orders", Tailing::Required).await;
    assert!(source.is_ok());
    drop(source);
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn a_publication_of_something_else() {
    let database = database!();
    database
        .run("create table other (n integer); create publication semel_outbox for table other")
        .await;
    is_refused(&database, &database.store, "E-TAIL-PUBLICATION").await;
}

/// The tables were dropped and made again.
#[tokio::test]
async fn a_publication_of_nothing_is_made_anew() {
    let database = database!();
    database.run("create publication semel_outbox").await;
    let source = database.store.tailing_source("orders", Tailing::Required).await;
    assert!(source.is_ok());
    assert_eq!(database.number("select count(*) from pg_publication_tables").await, 1);
}

/// Not a fault of the set-up: somebody may give one back.
#[tokio::test]
async fn no_slot_is_free() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql(
        "select pg_create_physical_replication_slot('s' || n) from generate_series(1, 50) n",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    assert!(!relay.source.is_tailing());
    sqlx::raw_sql("select pg_drop_replication_slot('s1')").execute(store.pool()).await.unwrap();
    relay.until(true).await;
    relay.source.next_batch(Limit::default()).await.unwrap();
}
