//! What consumers have applied, as seen from the outbox.

use semel_testkit::services::Service;
use serde_json::Value;

use super::server::Server;

#[tokio::test]
async fn the_inbox_of_postgres_is_looked_into() {
    the_inbox_is_looked_into(Service::Postgres, |id, at| {
        format!(
            "insert into semel.inbox (consumer, message_id, processed_at) values \
             ('payments', '{id}', '2026-01-31T12:00:0{at}Z'), ('emails', '{id}', now())"
        )
    })
    .await;
}

#[tokio::test]
async fn the_inbox_of_mysql_is_looked_into() {
    the_inbox_is_looked_into(Service::Mysql, |id, at| {
        format!(
            "insert into semel_inbox (consumer, message_id, processed_at) values \
             ('payments', unhex(replace('{id}', '-', '')), '2026-01-31 12:00:0{at}'), \
             ('emails', unhex(replace('{id}', '-', '')), utc_timestamp(6))"
        )
    })
    .await;
}

async fn the_inbox_is_looked_into(service: Service, apply: impl Fn(&str, usize) -> String) {
    let Some(server) = Server::start(service, "applied").await else { return };
    server.configure("");
    let url = server.url.clone();
    let run = |code: i32, arguments: &[&str]| server.expect(code, &url, arguments);
    run(0, &["migrate", "up", "--database", &url]);
    let send = ["send", "--database", &url, "--aggregate-type", "order", "--type", "X"];
    let send = [&send[..], &["--aggregate-id", "1"]].concat();
    let ids: Vec<_> = (0..3).map(|_| run(0, &send).trim().to_owned()).collect();
    run(0, &["relay", "--drain"]);

    let verify = ["verify", "--inbox", &url, "--consumer", "payments"];
    assert!(run(1, &verify).contains("lost          3"));
    for (at, id) in ids.iter().enumerate() {
        server.run(&apply(id, at)).await;
    }
    assert!(run(0, &verify).contains("3 published"));
    let show = ["events", "show", &ids[1], "--inbox", &url, "--output", "json"];
    let shown: Value = serde_json::from_str(&run(0, &show)).unwrap();
    let life = shown["life"].as_array().unwrap();
    assert_eq!(life[2]["at"], "2026-01-31T12:00:01Z");
    let steps: Vec<_> = life.iter().map(|step| step["what"].as_str().unwrap()).collect();
    assert_eq!(steps[2..], ["applied by payments", "applied by emails"]);
    server.remove().await;
}
