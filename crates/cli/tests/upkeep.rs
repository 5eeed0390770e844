//! `semel send`, `replay` and `clean`, as their users run them.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use semel_backends::sqlite::{Sqlite, SqliteConfig, Transaction};
use semel_core::memory::MemoryBroker;
use semel_core::{Event, HandlerError, Message, Sink};
use semel_relay::{Consumer, Stop, handler_fn};
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};

use crate::shop::{Shop, all, lines};

const ORDER: [&str; 9] = [
    "send",
    "--database",
    "sqlite://shop.db",
    "--aggregate-type",
    "order",
    "--aggregate-id",
    "42",
    "--type",
    "OrderPlaced",
];

fn order<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&ORDER[..], more].concat()
}

impl Shop {
    /// Sends an event; gives its id.
    fn send(&self, more: &[&str]) -> String {
        self.expect(0, &order(more)).trim_end().to_owned()
    }

    fn event(&self, id: &str) -> Value {
        self.json(&["events", "show", id, "--payload"])
    }

    /// Many events at once, as a service would write them.
    fn insert_many(&self, count: usize) {
        let sql = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
                   WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) \
                   SELECT 'order', i, 'OrderPlaced', CAST(i AS TEXT) FROM n";
        self.ask(async |connection| {
            let insert = sqlx::query(sql).bind(i64::try_from(count).unwrap());
            insert.execute(connection).await.unwrap();
        });
    }
}

fn ids(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["id"].as_str().unwrap()).collect()
}

#[test]
fn an_event_that_is_sent_has_all_that_was_said_about_it() {
    let shop = Shop::new();
    let id = shop.send(&[
        "--payload",
        r#"{"cents": 500}"#,
        "--header",
        "Tenant=acme",
        "--header",
        "note=a=b",
        "--key",
        "order-42",
        "--at",
        "2020-01-31T12:00:00Z",
    ]);
    let event = shop.event(&id);
    let expected = json!({
        "state": "pending",
        "aggregate_type": "order",
        "aggregate_id": "42",
        "event_type": "OrderPlaced",
        "payload": { "cents": 500 },
        "content_type": "application/json",
        "headers": { "tenant": "acme", "note": "a=b" },
        "idempotency_key": "order-42",
        "available_at": "2020-01-31T12:00:00Z",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&event[field], value, "{field}");
    }
    let second = shop.json(&order(&[]))["id"].as_str().unwrap().to_owned();
    assert_eq!(shop.event(&second)["payload"], Value::Null);

    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(ids(&shop.published()), [id, second]);
}

#[test]
fn a_dry_run_checks_and_shows_the_event_and_writes_nothing() {
    let shop = Shop::new();
    let more =
        ["--payload", "{\"cents\": 5}", "--header", "tenant=acme", "--key", "k", "--dry-run"];
    let event: Value = serde_json::from_str(&shop.expect(0, &order(&more))).unwrap();
    assert_eq!((&event["payload"]["cents"], &event["idempotency_key"]), (&5.into(), &"k".into()));
    assert_eq!(
        (&event["aggregate_id"], &event["headers"]["tenant"]),
        (&"42".into(), &"acme".into())
    );
    shop.send(&["--key", "k"]);
    assert_eq!(shop.count("pending"), 1, "only the one that was sent");
    assert!(shop.refused(1, &order(&["--key", "", "--dry-run"])).contains("is empty"));
    let nowhere = ["--database", "postgres://127.0.0.1:1/shop", "--dry-run"];
    let arguments = [&["send"], &ORDER[3..], &nowhere[..]].concat();
    shop.expect(0, &arguments);
}

#[test]
fn a_payload_comes_from_the_command_line_a_file_or_standard_input() {
    let shop = Shop::new();
    fs::write(shop.file("order.json"), "{\n  \"cents\": 500\n}\n").unwrap();
    let from_file = shop.send(&["--payload", "@order.json"]);
    assert_eq!(shop.event(&from_file)["payload"], json!({ "cents": 500 }));
    let negative = shop.send(&["--payload", "-5"]);
    assert_eq!(shop.event(&negative)["payload"], -5);
    let text = shop.send(&["--payload", "not {json", "--content-type", "text/plain"]);
    let event = shop.event(&text);
    assert_eq!(
        (&event["payload"], &event["content_type"]),
        (&"not {json".into(), &"text/plain".into())
    );

    let mut command = shop.command(&order(&["--payload", "-"]));
    let mut sending = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sending.stdin.take().unwrap().write_all(b"[1, 2]").unwrap();
    let output = sending.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let id = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shop.event(id.trim_end())["payload"], json!([1, 2]));

    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 4, "each on one line");
}

#[test]
fn a_key_is_taken_once() {
    let shop = Shop::new();
    shop.send(&["--key", "order-42"]);
    let message = shop.refused(1, &order(&["--key", "order-42"]));
    for part in ["error[E-EVENT-DUPLICATE]", "idempotency key order-42", "no event was written"] {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }
    shop.send(&["--key", "order-43"]);
    assert_eq!(shop.count("pending"), 2);
}

#[test]
fn an_event_that_is_wrong_is_not_written() {
    let shop = Shop::new();
    fs::write(shop.file("large.txt"), vec![b'x'; 1024 * 1024 + 1]).unwrap();
    let cases: &[(i32, &[&str], &str)] = &[
        (1, &["--payload", "{cents: 5}"], "E-PAYLOAD-JSON"),
        (1, &["--payload", ""], "E-PAYLOAD-JSON"),
        (1, &["--payload", "@missing.json"], "missing.json"),
        (1, &["--payload", "@large.txt", "--content-type", "text/plain"], "the limit is 1048576"),
        (1, &["--key", ""], "idempotency_key is empty"),
        (64, &["--header", "tenant"], "NAME=VALUE"),
        (64, &["--header", "=acme"], "NAME=VALUE"),
        (64, &["--at", "tomorrow"], "--at"),
        (64, &["--content-type", "text/plain"], "--payload"),
        (64, &["--output", "xml"], "json"),
    ];
    for (code, more, expected) in cases {
        let message = shop.refused(*code, &order(more));
        assert!(message.contains(expected), "{more:?}: {expected} is not in\n{message}");
    }
    shop.refused(64, &ORDER[..7]);
    let nameless = [&ORDER[..8], &[""]].concat();
    assert!(shop.refused(1, &nameless).contains("event_type is empty"));
    assert_eq!(shop.count("pending"), 0);
}

#[test]
fn a_database_that_is_not_ready_gets_no_event() {
    let shop = Shop { folder: tempfile::tempdir().unwrap() };
    assert!(shop.refused(78, &order(&[])).contains("E-SQLITE-ACCESS"));
    assert!(!shop.file("shop.db").exists(), "a mistyped name must not make a file");
    fs::write(shop.file("shop.db"), "").unwrap();
    let message = shop.refused(78, &order(&[]));
    assert!(message.contains("semel migrate up") && message.contains("no event was written"));
    let mut elsewhere = order(&[]);
    elsewhere[2] = "oracle://me:hunter2@db";
    let message = shop.refused(78, &elsewhere);
    assert!(message.contains("sqlite://") && !message.contains("hunter2"), "{message}");
}

#[test]
fn what_was_published_is_published_again_with_the_same_id() {
    let shop = Shop::new();
    let sent = ["1", "2", "3"].map(|number| shop.send(&["--payload", number]));
    let second = sent[1].as_str();
    assert_eq!(shop.json(&["replay", second])["replayed"], 0, "it is not published yet");
    shop.expect(0, &["relay", "--drain"]);

    let dry = shop.json(&["replay", second, second, "--dry-run"]);
    assert_eq!(dry, json!({ "replayed": 1, "dry_run": true }));
    assert_eq!(shop.count("published"), 3, "a dry run changes nothing");
    assert_eq!(shop.expect(0, &["replay", second]), "1 events replayed\n");
    assert_eq!(shop.json(&["replay", second, "--dry-run"])["replayed"], 0);
    assert_eq!(shop.json(&["replay", second])["replayed"], 0, "it waits already");
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(ids(&shop.published()), [&sent[0], second, &sent[2], second]);

    let chosen = ["replay", "--all", "--yes", "--aggregate", "42", "--type", "OrderPlaced"];
    assert_eq!(shop.json(&["replay", "--all", "--yes", "--type", "Other"])["replayed"], 0);
    assert_eq!(
        shop.expect(0, &[&chosen[..], &["--dry-run"]].concat()),
        "3 events would be replayed\n"
    );
    assert_eq!(shop.json(&chosen)["replayed"], 3);
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(ids(&shop.published())[4..], sent, "in their order");
}

#[test]
fn what_to_replay_has_to_be_said() {
    let shop = Shop::new();
    let unknown = "00000000-0000-7000-8000-000000000000";
    assert_eq!(shop.json(&["replay", unknown])["replayed"], 0);
    for wrong in [&["replay"][..], &["replay", "42"], &["replay", unknown, "--all"]] {
        shop.refused(64, wrong);
    }
    shop.refused(78, &["replay", "--all", "--yes", "--pipeline", "missing"]);
}

#[test]
fn old_events_are_deleted_until_none_is_left() {
    const MANY: usize = 3500;
    let shop = Shop::new();
    shop.insert_many(MANY);
    let clean =
        |more: &[&str]| shop.json(&[&["clean", "--older-than"], more].concat())["deleted"].clone();
    assert_eq!(clean(&["0s"]), 0, "nothing is published yet");
    shop.expect(0, &["relay", "--drain"]);
    let waiting = shop.send(&[]);

    for age in ["7d", "12h", "9000000000years"] {
        assert_eq!(clean(&[age]), 0, "nothing is so old: {age}");
        assert_eq!(clean(&[age, "--dry-run"]), 0, "nothing is so old: {age}");
    }
    assert_eq!(clean(&["0s", "--dry-run"]), MANY);
    assert_eq!(clean(&["0s", "--dry-run", "--limit", "10"]), 10);
    assert_eq!(shop.count("published"), MANY, "a dry run changes nothing");
    assert_eq!(clean(&["1ms", "--limit", "1001"]), 1001);
    assert_eq!(clean(&["0s", "--limit", "0"]), 0);
    let dry = shop.expect(0, &["clean", "--older-than", "0s", "--dry-run"]);
    assert_eq!(dry, "at most 2499 events would be deleted\n");
    assert_eq!(shop.expect(0, &["clean", "--older-than", "0s"]), "2499 events deleted\n");
    assert_eq!(clean(&["0s"]), 0);

    assert_eq!((shop.count("published"), shop.count("pending")), (0.into(), 1.into()));
    shop.expect(0, &["relay", "--drain"]);
    let file = fs::read_to_string(shop.file("events.ndjson")).unwrap();
    assert_eq!(ids(&lines(&file)).last(), Some(&waiting.as_str()));
}

#[test]
fn how_old_has_to_be_said_in_a_way_that_is_understood() {
    let shop = Shop::new();
    for wrong in
        [&[][..], &["--older-than", "7"], &["--older-than", "-7d"], &["--older-than", "a week"]]
    {
        let message = shop.refused(64, &[&["clean"], wrong].concat());
        assert!(message.contains("--older-than"), "{message}");
    }
    shop.refused(64, &["clean", "--older-than", "7d", "--limit", "all"]);
    assert!(
        shop.refused(78, &["clean", "--older-than", "7d", "--config", "missing.toml"])
            .contains("E-CONFIG-READ")
    );
}

#[test]
fn help_fits_a_screen() {
    let shop = Shop::new();
    for command in
        [&["--help"][..], &["send", "--help"], &["replay", "--help"], &["clean", "--help"]]
    {
        let help = shop.expect(0, command);
        assert!(help.lines().count() <= 60 && help.contains("Usage: semel"), "{help}");
    }
}

/// A consumer of the shop's database that cannot charge anything until it is repaired.
fn consume(shop: &Shop, broker: &MemoryBroker, works: bool) -> semel_relay::Report {
    let url = format!("sqlite://{}", shop.file("shop.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteConfig::new(&url).unwrap().connect().await.unwrap();
        let charge = handler_fn(move |tx: &mut Transaction<'static, Sqlite>, message: &Message| {
            Box::pin(async move {
                let sql = "INSERT INTO charged (lane, what) VALUES (?, ?)";
                let insert = sqlx::query(sql)
                    .bind(message.event.aggregate_id.clone())
                    .bind(str::from_utf8(message.event.payload.bytes())?.to_owned());
                insert.execute(&mut **tx).await?;
                if works { Ok(Default::default()) } else { Err(HandlerError::reject("no bank")) }
            })
        });
        let payments = Consumer::builder("payments", store.inbox())
            .dead_letters(store.letters())
            .build_with(charge);
        let report =
            payments.drain(broker.subscribe("payments", &[]), Stop::never()).await.unwrap();
        store.close().await;
        report
    })
}

#[test]
fn dead_letters_of_a_consumer_are_listed_retried_and_discarded() {
    let (shop, broker) = (Shop::new(), MemoryBroker::new());
    let url = format!("sqlite://{}", shop.file("shop.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |sql: &'static str| {
        runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url).await.unwrap();
            let rows = sqlx::query_scalar::<_, String>(sql).fetch_all(&mut connection).await;
            rows.unwrap().join(" ")
        })
    };
    run("CREATE TABLE charged (place INTEGER PRIMARY KEY AUTOINCREMENT, lane TEXT, what TEXT)");
    // What is alphabetically first comes last, so that the order of the letters shows.
    let events = [("1", "tea"), ("1", "milk"), ("1", "cup"), ("2", "jam"), ("3", "bun")].map(
        |(lane, what)| {
            Event::new("order", lane, "OrderPlaced").with_bytes("text/plain", what.to_owned())
        },
    );
    let messages = events.clone().map(|event| Message::first("orders", event));
    runtime.block_on(broker.publish(&messages));
    assert_eq!(consume(&shop, &broker, false).dead, 3, "two wait behind the first");

    let of_payments = ["--consumer", "payments", "--database", "sqlite://shop.db"];
    let with = |words: &[&'static str]| [words, &of_payments].concat();
    let dead = shop.json(&with(&["dead", "list"]));
    let dead = dead["events"].as_array().unwrap().clone();
    assert_eq!(ids(&dead).len(), 3);
    assert_eq!(dead[0]["error"], "E-HANDLER-REJECTED: no bank");
    assert_eq!(shop.json(&with(&["events", "list"]))["events"].as_array().unwrap().len(), 5);

    let of_lane_2 = events[3].id.to_string();
    let arguments = [&["dead", "discard", &of_lane_2], &of_payments[..]].concat();
    assert_eq!(shop.json(&arguments)["discarded"], 1);
    assert_eq!(shop.json(&with(&["dead", "retry", "--all", "--dry-run"]))["retried"], 2);
    assert_eq!(shop.json(&with(&["dead", "retry", "--all", "--yes"]))["retried"], 2);
    let report = consume(&shop, &broker, true);
    assert_eq!((report.published, report.dead), (4, 0));
    assert_eq!(run("SELECT lane FROM charged ORDER BY lane"), "1 1 1 3");
    let in_order = "SELECT what FROM charged WHERE lane = '1' ORDER BY place";
    assert_eq!(run(in_order), "tea milk cup", "as they were published");
    assert_eq!(shop.json(&with(&["events", "list"]))["events"], json!([]));
    let refused = shop.refused(64, &["dead", "list", "--consumer", "payments"]);
    assert!(refused.contains("--database"), "{refused}");
}
