//! `semel verify`.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::shop::Shop;

fn shop_with(events: &[&str]) -> Shop {
    let shop = Shop::new();
    events.iter().for_each(|name| shop.insert_of_type("1", name));
    shop.expect(0, &["relay", "--drain"]);
    shop
}

fn verdict(shop: &Shop, code: i32, more: &[&str]) -> Value {
    let arguments = [&["verify", "--output", "json"], more].concat();
    serde_json::from_str(&shop.expect(code, &arguments)).unwrap()
}

fn counts(verdict: &Value) -> [usize; 3] {
    ["lost", "doubled", "out_of_order"].map(|what| verdict[what].as_array().unwrap().len())
}

#[test]
fn what_arrived_is_compared_with_the_outbox() {
    let shop = shop_with(&["A", "B", "C", "D"]);
    shop.insert_of_type("1", "Waits");
    let received = ["--received", "events.ndjson"];
    let good = verdict(&shop, 0, &received);
    assert_eq!(counts(&good), [0, 0, 0]);
    assert_eq!((&good["published"], &good["waiting"]), (&4.into(), &1.into()));

    // B is lost, D comes before C, A comes twice, and somebody else's event is there as well.
    let text = shop.read("events.ndjson");
    let [a, _, c, d] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    let foreign = "00000000-0000-7000-8000-000000000000";
    fs::write(shop.file("got"), format!("{a}\n{d}\n{c}\n{a}\n{foreign}\n")).unwrap();
    let bad = verdict(&shop, 1, &["--received", "got"]);
    assert_eq!(counts(&bad), [1, 1, 1], "{bad}");
    assert!(bad["lost"][0].as_str().unwrap().contains("order/1  B"), "{bad}");
    assert_eq!(bad["not_in_outbox"], 1);
    let told = shop.expect(1, &["verify", "--received", "got"]);
    assert!(told.contains("lost          1") && told.contains("out of order  1"), "{told}");
}

#[test]
fn what_arrived_may_come_from_another_program() {
    let shop = shop_with(&["A"]);
    let id = shop.published()[0]["id"].as_str().unwrap().to_owned();
    let mut command = shop.command(&["verify", "--received", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let line = format!("{{\"headers\": {{\"semel-event-id\": \"{id}\"}}}}\n");
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    fs::write(shop.file("got"), "{\"name\": \"no id\"}\n").unwrap();
    let message = shop.refused(1, &["verify", "--received", "got"]);
    assert!(message.contains("E-VERIFY-LINE") && message.contains("line 1"), "{message}");
}

#[test]
fn the_inbox_of_a_consumer_is_compared_with_the_outbox() {
    let shop = shop_with(&["A", "B", "C"]);
    let ids: Vec<_> =
        shop.published().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    let inbox = ["--inbox", "sqlite://shop.db", "--consumer", "payments"];
    let apply = |id: &str, at: u32| {
        shop.execute(&format!(
            "INSERT INTO semel_inbox (consumer, message_id, processed_at)
             VALUES ('payments', '{id}', {at}), ('emails', '{id}', {at})"
        ));
    };
    apply(&ids[0], 30);
    apply(&ids[1], 20);
    assert_eq!(counts(&verdict(&shop, 1, &inbox)), [1, 0, 1]);
    shop.execute("DELETE FROM semel_inbox");
    ids.iter().zip(1..).for_each(|(id, at)| apply(id, at));
    assert_eq!(counts(&verdict(&shop, 0, &inbox)), [0, 0, 0]);
}

/// Without being told what arrived, the sink is read.
#[test]
fn the_sink_itself_is_compared_with_the_outbox() {
    let shop = shop_with(&["A", "B"]);
    let good = verdict(&shop, 0, &[]);
    assert_eq!(counts(&good), [0, 0, 0]);
    assert_eq!(good["compared_with"], "sink.out (file)");
    let text = shop.read("events.ndjson");
    let [a, _] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    fs::write(shop.file("events.ndjson"), format!("{a}\n{a}\n")).unwrap();
    assert_eq!(counts(&verdict(&shop, 1, &[])), [1, 1, 0]);

    let two = shop.read("semel.toml").replace("to = \"out\"", "to = [\"out\", \"more\"]");
    shop.write_config(&format!("{two}\n[sink.more]\ntype = \"stdout\"\n"));
    let which = shop.refused(64, &["verify"]);
    assert!(
        which.contains("E-VERIFY-SINK") && which.contains("--sink one of out, more"),
        "{which}"
    );
    assert_eq!(counts(&verdict(&shop, 1, &["--sink", "out"])), [1, 1, 0]);
    let cannot = shop.refused(64, &["verify", "--sink", "more"]);
    assert!(cannot.contains("E-VERIFY-UNREADABLE") && cannot.contains("--received"), "{cannot}");
}

/// What the pipeline is not for counts as published, and is not lost.
#[test]
fn events_that_are_passed_over_are_not_missed() {
    let shop = Shop::new();
    shop.configure("event_types = [\"Order*\"]");
    shop.insert_of_type("1", "OrderPlaced");
    shop.insert_of_type("1", "Other");
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(counts(&verdict(&shop, 0, &["--received", "events.ndjson"])), [0, 0, 0]);
}

/// An event with a time of its own takes its place when that has come: later ones may be in front of it.
#[test]
fn a_scheduled_event_may_come_behind_later_ones() {
    let shop = Shop::new();
    let now = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000";
    shop.execute(&format!(
        "INSERT INTO semel_outbox
            (aggregate_type, aggregate_id, event_type, payload, created_at, available_at)
         VALUES ('order', '1', 'Reminder', '{{}}', {now} - 20000000, {now} - 10000000),
            ('order', '1', 'AtOnce', '{{}}', {now} - 10000000, {now} - 10000000)"
    ));
    ["A", "B"].iter().for_each(|name| shop.insert_of_type("1", name));
    shop.expect(0, &["relay", "--drain"]);
    let text = shop.read("events.ndjson");
    let [at_once, a, b, reminder] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(reminder.contains("Reminder") && at_once.contains("AtOnce"), "{text}");
    let good = verdict(&shop, 0, &[]);
    assert_eq!((counts(&good), &good["scheduled"]), ([0, 0, 0], &1.into()), "{good}");
    let told = shop.expect(0, &["verify"]);
    assert!(told.contains("1 scheduled: ") && told.contains("not asked for"), "{told}");
    // The others are, as ever; and it must be there.
    fs::write(shop.file("got"), format!("{b}\n{at_once}\n{a}\n")).unwrap();
    assert_eq!(counts(&verdict(&shop, 1, &["--received", "got"])), [1, 0, 1]);
}

/// Where a dead letter lets others pass, one that is retried comes behind them: that is told.
#[test]
fn a_skipped_dead_letter_that_was_retried_is_explained() {
    let shop = Shop::new();
    let configure = |limit: &str| {
        let skip = "retry = { on_dead = \"skip\" }";
        shop.configure(&format!("{skip}\n[limits]\npayload = \"{limit}\""));
    };
    configure("1KiB");
    shop.insert("42", &format!("\"{}\"", "x".repeat(2000)));
    shop.insert("42", "1");
    shop.expect(1, &["relay", "--drain"]);
    configure("4KiB");
    shop.expect(0, &["dead", "retry", "--all", "--yes"]);
    shop.expect(0, &["relay", "--drain"]);
    let told = shop.expect(1, &["verify"]);
    assert!(told.contains("out of order  1") && told.contains("on_dead = \"skip\""), "{told}");
}
