//! Tables that were there before semel, on PostgreSQL, by one line of the configuration each.

use std::fs;

use semel_testkit::services::Service;
use serde_json::Value;

use super::server::{Server, number};

const TRANSACTIONAL_OUTBOX: &str = "
create table outbox (id uuid primary key default gen_random_uuid(), aggregate_type text not null,
    aggregate_id text not null, event_type text not null, payload jsonb,
    created_at timestamptz not null default clock_timestamp(), published_at timestamptz);
insert into outbox (aggregate_type, aggregate_id, event_type, payload)
    select 'order', '42', 'Step' || n, jsonb_build_object('n', n) from generate_series(1, 9) n;";

const POLLING_PUBLISHER: &str = "
create table outbox (id bigserial primary key, aggregate_type text, aggregate_id text, event_type text,
    payload text, created_at timestamp default now(), published boolean default false,
    published_at timestamp, retry_count int default 0, idempotency_key text unique not null);
insert into outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
    select 'order', '42', 'Step' || n, '{}', n from generate_series(1, 9) n;";

/// Ids that go down while the events go on.
const DEBEZIUM: &str = "
create table outbox (id uuid primary key, aggregatetype varchar(255) not null,
    aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb,
    seq bigint generated always as identity);
insert into outbox (id, aggregatetype, aggregateid, type, payload)
    select lpad((100 - n)::text, 32, '0')::uuid, 'order', '42', 'Step' || n, '{}'
    from generate_series(1, 9) n;";

async fn drain(server: &Server, columns: &str, table: &str) -> Vec<String> {
    let published = server.file("events.ndjson");
    fs::remove_file(&published).ok();
    server.run("drop table if exists outbox").await;
    server.run(table).await;
    let name = columns.replace(|c: char| !c.is_alphanumeric(), "");
    let text = format!(
        "[source.orders]\nurl = \"${{DATABASE_URL}}\"\ntable = \"outbox\"\ncolumns = {columns}\n\
         [sink.out]\ntype = \"file\"\npath = \"events.ndjson\"\n\
         [pipeline.{name}]\nfrom = \"orders\"\nto = \"out\"\n"
    );
    fs::write(server.file("semel.toml"), text).unwrap();
    server.run("delete from semel.mapped").await;
    for _ in 0..2 {
        server.expect(0, &server.url, &["relay", "--drain"]);
    }
    let published = fs::read_to_string(&published).unwrap();
    let kind = |line: &str| -> String {
        let event: Value = serde_json::from_str(line).unwrap();
        event["event_type"].as_str().unwrap().to_owned()
    };
    published.lines().map(kind).collect()
}

#[tokio::test]
async fn the_presets_of_the_configuration() {
    let Some(server) = Server::start(Service::Postgres, "presets").await else { return };
    server.expect(0, &server.url, &["migrate", "up", "--database", &server.url]);
    let in_order: Vec<_> = (1..=9).map(|n| format!("Step{n}")).collect();
    let check = || server.expect(0, &server.url, &["check"]);
    let count = async |sql: &str| number(&server.url, sql).await.unwrap();

    let published = drain(&server, "\"transactional-outbox\"", TRANSACTIONAL_OUTBOX).await;
    assert_eq!(published, in_order);
    assert_eq!(count("select count(*) from outbox where published_at is not null").await, 9);
    // Their times differ here, which nobody can tell from the column.
    let text = check();
    assert!(text.contains("advice   mapping-order"), "{text}");
    assert!(text.contains("only created_at orders the rows"), "{text}");
    let warned = server.expect(0, &server.url, &["relay", "--drain"]);
    assert!(warned.contains("only the time of writing orders the rows"), "{warned}");

    assert_eq!(drain(&server, "\"polling-publisher\"", POLLING_PUBLISHER).await, in_order);
    let marked = "select count(*) from outbox where published and published_at is not null";
    assert_eq!(count(marked).await, 9);

    // The columns of Debezium have no order: this is told, and can be had.
    let mut published = drain(&server, "\"debezium\"", DEBEZIUM).await;
    assert_ne!(published, in_order, "by ids, which go down");
    published.sort_unstable();
    assert_eq!(published, in_order);
    assert_eq!(count("select count(*) from outbox").await, 0, "rows go");
    let text = check();
    assert!(text.contains("advice   mapping-order") && text.contains("order = "), "{text}");
    let warned = server.expect(0, &server.url, &["relay", "--drain"]);
    assert!(warned.contains("no column orders the rows"), "{warned}");

    let ordered = "{ preset = \"debezium\", order = \"seq\" }";
    assert_eq!(drain(&server, ordered, DEBEZIUM).await, in_order);
    assert!(check().contains("ok       mapping-order"), "{}", check());
    let quiet = server.expect(0, &server.url, &["relay", "--drain"]);
    assert!(!quiet.contains("orders the rows"), "{quiet}");
    server.remove().await;
}
