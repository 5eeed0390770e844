//! `semel migrate up --partitioned`: the commands on an outbox that is divided by time.

use semel_testkit::services::Service;

use super::server::{Folder, Server, execute, number};

#[tokio::test]
async fn a_divided_outbox_works_with_least_privileges() {
    let Some(server) = Server::start(Service::Postgres, "divided").await else { return };
    server.configure("");
    let both = ["--partitioned", "1d", "--partitioned-inbox", "1d"];
    let up = [&["migrate", "up", "--database", &server.url][..], &both].concat();
    let divided = server.expect(0, &server.url, &up);
    assert!(divided.contains("divided the outbox\ndivided the inbox\n"), "{divided}");
    assert!(server.expect(0, &server.url, &up).contains("the outbox is divided already\n"));

    let prefix = format!("d{}", std::process::id());
    let grants = ["grants", "--database", &server.url, "--role", &prefix];
    server.run(&server.expect(0, &server.url, &grants)).await;
    for role in ["writer", "poller"] {
        server.run(&format!("alter role {prefix}_{role} with login")).await;
    }
    let [writer, poller] =
        ["writer", "poller"].map(|role| server.url_of(&format!("{prefix}_{role}")));

    let insert = "insert into semel.outbox
        (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
        values ('order', '42', 'OrderPlaced', '1', 'k')";
    execute(&writer, insert).await.unwrap();
    let again = execute(&writer, insert).await.unwrap_err();
    assert!(again.as_database_error().unwrap().is_unique_violation(), "{again}");
    for forbidden in [
        "select semel.drop_partition('0s')",
        "select semel.drop_inbox_partition('0s')",
        "select key from semel.outbox_key",
    ] {
        assert!(execute(&writer, forbidden).await.is_err(), "{forbidden}");
    }

    server.expect(0, &poller, &["relay", "--drain"]);
    let old = "create table semel.outbox_0 partition of semel.outbox
        for values from (semel.partition_bound(0)) to (semel.partition_bound(86400))";
    server.run(old).await;
    let clean = server.expect(0, &poller, &["clean", "--older-than", "0s"]);
    assert_eq!(clean, "0 events deleted, 1 partitions dropped\n", "today's partition stays");
    assert_eq!(number(&server.url, "select count(*) from semel.outbox").await.unwrap(), 1);

    for role in ["writer", "poller", "tailer", "viewer"] {
        let name = format!("{prefix}_{role}");
        server.run(&format!("drop owned by {name}; drop role {name}")).await;
    }
    server.remove().await;
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let folder = Folder::new();
    for (option, table) in [("--partitioned", "outbox"), ("--partitioned-inbox", "inbox")] {
        let sql = |url: &str, span: &str, code: i32| {
            folder.expect(code, url, &["migrate", "sql", "--database", url, option, span])
        };
        let divided = sql("postgres://localhost/shop", "1h", 0);
        let renamed = format!("alter table semel.{table} rename to {table}_rest");
        assert!(divided.contains(&renamed) && divided.contains("select 3600"), "{option}");
        assert!(sql("postgres://localhost/shop", "5s", 64).contains("a minute at least"));
        assert!(sql("sqlite://shop.db", "1d", 64).contains("E-NO-PARTITIONS"));
    }
}
