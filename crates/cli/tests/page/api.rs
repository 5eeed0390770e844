//! Commands that ask a running relay instead of its database: by the rules of its page.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use semel_core::EventId;

use super::relay::{Relay, large};
use super::{shop_of, shop_with_dead_letters};
use crate::shop::Shop;

const TOKENS: &str = "\
[http.access.vera]\nrole = \"viewer\"\ntoken = \"the token of the viewer\"\n\
[http.access.olga]\nrole = \"operator\"\ntoken = \"the token of the operator\"\n\
[http.access.ada]\nrole = \"admin\"\ntoken = \"the token of the admin\"\n";

/// Runs a command as somebody; gives its exit code and all it said.
fn ask(shop: &Shop, relay: &Relay, role: &str, arguments: &[&str]) -> (i32, String) {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = shop.command(arguments);
    // Neither the configuration nor the database is there.
    command.current_dir(elsewhere.path()).args(["--api", &relay.url]);
    if !role.is_empty() {
        std::fs::write(elsewhere.path().join("token"), format!("the token of the {role}\n"))
            .unwrap();
        command.args(["--token-file", "token"]);
    }
    let output = command.output().unwrap();
    (output.status.code().unwrap(), crate::shop::all(&output))
}

#[test]
fn a_relay_is_asked_with_a_token_and_by_role() {
    let (shop, relay) = shop_with_dead_letters();
    drop(relay);
    let relay = Relay::start(&shop, "1KiB", TOKENS);
    let retry = ["dead", "retry", "--all"];

    let (code, said) = ask(&shop, &relay, "", &["status"]);
    assert!(code == 77 && said.contains("E-API-LOGIN") && said.contains("--token-file"), "{said}");
    let (code, said) = ask(&shop, &relay, "viewer", &["status", "--output", "json"]);
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &status[0]["dead"], &status[0]["pipeline"]),
        (0, &2.into(), &"orders".into())
    );
    let (code, said) = ask(&shop, &relay, "viewer", &["dead", "retry", "--all", "--yes"]);
    assert!(code == 77 && said.contains("vera is viewer, and this needs operator"), "{said}");

    assert_eq!(
        ask(&shop, &relay, "operator", &["dead", "retry", "--all", "--dry-run"]),
        (0, "2 events would be retried\n".into())
    );
    let (code, said) = ask(&shop, &relay, "operator", &retry);
    assert!(code == 64 && said.contains("E-NOT-CONFIRMED") && said.contains("2 events"), "{said}");
    let discard = ["dead", "discard", "--all", "--yes", "--aggregate", "3"];
    assert_eq!(ask(&shop, &relay, "operator", &discard), (0, "1 events discarded\n".into()));
    let (code, said) = ask(&shop, &relay, "operator", &["replay", "--all", "--yes"]);
    assert!(code == 77 && said.contains("E-HTTP-ROLE"), "{said}");
    assert_eq!(ask(&shop, &relay, "admin", &["replay", "--all", "--yes"]).0, 0);

    let bearer = "authorization: Bearer the token of the viewer\r\n";
    let activity = relay.get("/api/pipelines/orders/activity", bearer).1;
    assert!(activity.contains("\"who\":\"olga\",\"what\":\"discard\""), "{activity}");
    assert!(activity.contains("state:dead aggregate:3"), "{activity}");
}

#[test]
fn what_cannot_be_asked_is_explained() {
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", "");
    let (code, said) = ask(&shop, &relay, "", &["replay", "--all", "--yes", "--pipeline", "x"]);
    assert!(code == 64 && said.contains("--pipeline one of orders"), "{said}");
    let consumer = ["dead", "retry", "--all", "--consumer", "c", "--database", "sqlite://c.db"];
    let (code, said) = ask(&shop, &relay, "", &consumer);
    assert!(code == 64 && said.contains("E-API-QUESTION"), "{said}");
    let said = shop.refused(64, &["status", "--api", "http://ops.example.com:9464"]);
    assert!(said.contains("E-API-REMOTE") && said.contains("ssh -L"), "{said}");
    let said = shop.refused(69, &["status", "--api", "http://127.0.0.1:1"]);
    assert!(said.contains("E-API-DOWN"), "{said}");
}

/// Whatever an aggregate is called, no other is changed.
#[test]
fn a_relay_is_asked_for_the_very_aggregate() {
    let ids = ["a\"b", "ab", "a b", "a/b", "a\\ b\\"];
    let placed: Vec<_> = ids.iter().map(|id| (*id, "OrderPlaced", large())).collect();
    let (shop, relay) = shop_of(&placed, ids.len());
    for id in ids {
        let discard = ["dead", "discard", "--all", "--yes", "--aggregate", id];
        assert_eq!(ask(&shop, &relay, "", &discard), (0, "1 events discarded\n".into()), "{id}");
        let left = shop.json(&["events", "list", "--state", "dead"]);
        let left = left["events"].as_array().unwrap();
        assert!(left.iter().all(|event| event["aggregate_id"] != id), "{id}: {left:?}");
    }
}

#[test]
fn a_relay_is_asked_for_the_very_pipeline() {
    let shop = Shop::new();
    shop.insert("1", &large());
    let name = "orders/of today?";
    let second = "[sink.more]\ntype = \"file\"\npath = \"more.ndjson\"\n";
    let second = format!("{second}[pipeline.\"{name}\"]\nfrom = \"orders\"\nto = \"more\"\n");
    let relay = Relay::start(&shop, "1KiB", &second);
    let dead = |pipeline: &str| {
        let all = shop.json(&["status"]);
        let mut all = all.as_array().unwrap().iter();
        all.find(|one| one["pipeline"] == pipeline).unwrap()["dead"].clone()
    };
    shop.wait_until("both have it", || ["orders", name].iter().all(|each| dead(each) == 1));
    let discard = ["dead", "discard", "--all", "--yes", "--pipeline", name];
    assert_eq!(ask(&shop, &relay, "", &discard), (0, "1 events discarded\n".into()));
    assert_eq!((dead("orders"), dead(name)), (1.into(), 0.into()));
}

/// A relay that runs, and whose database does not: the numbers it still has are old.
#[test]
fn old_numbers_are_refused_with_what_is_wrong() {
    let shop = Shop::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pipeline = |trouble: &str| {
        let known = "\"states\":{\"dead\":2},\"point\":null";
        format!("{{\"pipelines\":[{{\"name\":\"orders\",{known},\"trouble\":{trouble}}}]}}")
    };
    let trouble = "{\"code\":\"E-POSTGRES-DOWN\",\"error\":\"no answer\",\"fix\":\"start it\"}";
    let answers = [pipeline("null"), pipeline(trouble), pipeline(trouble)];
    let relay = answering(listener, answers.map(|answer| ("200 OK", answer)).into());
    assert_eq!(shop.json(&["status", "--api", &url])[0]["dead"], 2);
    let said = shop.refused(69, &["status", "--api", &url]);
    assert!(said.contains("E-API-DOWN") && said.contains("orders E-POSTGRES-DOWN"), "{said}");
    assert!(said.contains("start it"), "{said}");
    assert_eq!(shop.refused(69, &["status", "--output", "json", "--api", &url]), said);
    relay.join().unwrap();
}

/// What a relay had done when it ended early is said; so is what was done by the questions before.
#[test]
fn what_was_changed_is_said_when_it_ends_early() {
    let shop = Shop::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let overview = "{\"pipelines\":[{\"name\":\"orders\",\"states\":{\"dead\":2}}]}";
    let late = "{\"code\":\"E-HTTP-SLOW\",\"error\":\"no answer; 500 events were changed before, and \
                that holds\",\"fix\":\"wait\",\"events\":500}";
    let done = "{\"events\":1,\"dry_run\":false}";
    let answers = [("200 OK", overview), ("200 OK", done), ("503 Service Unavailable", late)]
        .map(|(status, answer)| (status, answer.to_owned()));
    let relay = answering(listener, answers.into());
    let ids = [EventId::now().to_string(), EventId::now().to_string()];
    let said = shop.refused(69, &["dead", "retry", &ids[0], &ids[1], "--api", &url]);
    assert!(said.contains("500 events were changed before, and that holds"), "{said}");
    assert!(said.contains("after 1 events that were retried"), "{said}");
    relay.join().unwrap();
}

/// A relay that has these answers, one for each question.
fn answering(listener: TcpListener, answers: Vec<(&'static str, String)>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for (status, answer) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::<u8>::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.extend(byte);
            }
            let length = answer.len();
            let head = format!("content-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(format!("HTTP/1.1 {status}\r\n{head}{answer}").as_bytes()).unwrap();
        }
    })
}
