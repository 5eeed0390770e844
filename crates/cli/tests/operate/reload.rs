//! SIGHUP: another configuration, the same position.

use std::fs;

use crate::shop::{Shop, lines};

#[test]
fn a_relay_goes_over_to_a_new_configuration_and_loses_nothing() {
    let shop = Shop::new();
    shop.configure("");
    for number in 0..200 {
        shop.insert_of_type(&(number % 5).to_string(), &format!("E{number}"));
    }
    let relay = shop.relay();
    shop.wait_until("the first come", || !shop.published().is_empty());
    let other = shop.read("semel.toml").replace("events.ndjson", "other.ndjson");
    shop.write_config(&other);
    relay.signal("HUP");
    shop.wait_until("it holds", || shop.read("log").contains("the new configuration holds"));
    shop.insert_of_type("9", "Late");
    shop.wait_until("the late one comes there", || shop.read("other.ndjson").contains("Late"));

    let (before, after) = (shop.published(), lines(&shop.read("other.ndjson")));
    let mut types: Vec<_> = before.iter().chain(&after).map(|one| &one["event_type"]).collect();
    assert_eq!(types.len(), 201, "each once");
    types.sort_by_key(ToString::to_string);
    types.dedup();
    assert_eq!(types.len(), 201);
    relay.signal("TERM");
}

/// Each time it goes over while the last one may still be ending.
#[test]
fn one_change_after_another_loses_and_repeats_nothing() {
    let shop = Shop::new();
    let right = shop.read("semel.toml");
    let relay = shop.relay();
    shop.wait_until("started", || shop.read("log").contains("relay started"));
    for round in 0..6 {
        shop.insert_of_type("1", &format!("E{round}"));
        let line = if round % 2 == 0 { "key = \"{aggregate_id}\"\n" } else { "" };
        shop.write_config(&format!("{right}{line}"));
        relay.signal("HUP");
        let times = || shop.read("log").matches("the new configuration holds").count();
        shop.wait_until("it holds", || times() == round + 1);
    }
    shop.insert_of_type("1", "Last");
    shop.wait_until("the last one comes", || shop.read("events.ndjson").contains("Last"));
    let types: Vec<_> =
        shop.published().iter().map(|one| one["event_type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(types, ["E0", "E1", "E2", "E3", "E4", "E5", "Last"], "in order, each once");
}

#[test]
fn a_wrong_configuration_is_refused_and_the_old_one_goes_on() {
    let shop = Shop::new();
    let right = shop.read("semel.toml");
    let mut relay = shop.relay();
    shop.wait_until("started", || shop.read("log").contains("relay started"));
    for wrong in [
        right.replace("to = \"out\"", "to = \"oat\""),
        right.replace("events.ndjson", "missing/folder/events.ndjson"),
    ] {
        let told = shop.read("log").matches("the old one goes on").count();
        shop.write_config(&wrong);
        relay.signal("HUP");
        shop.wait_until("refused", || {
            shop.read("log").matches("the old one goes on").count() > told
        });
    }
    let log = shop.read("log");
    assert!(log.contains("did you mean \"out\"?") && log.contains("E-FILE-OPEN"), "{log}");
    shop.insert_of_type("1", "Still");
    shop.wait_until("it still publishes", || shop.read("events.ndjson").contains("Still"));
    assert!(relay.0.try_wait().unwrap().is_none());
}

#[test]
fn what_did_not_change_is_not_disturbed_and_what_is_gone_stops() {
    let shop = Shop::new();
    let right = shop.read("semel.toml");
    let second = "[sink.more]\ntype = \"file\"\npath = \"more.ndjson\"\n\
                  [pipeline.more]\nfrom = \"orders\"\nto = \"more\"\n";
    let relay = shop.relay();
    shop.wait_until("started", || shop.read("log").contains("relay started"));
    shop.write_config(&format!("{right}{second}"));
    relay.signal("HUP");
    shop.wait_until("one more", || shop.read("log").contains("kept=1 stopped=0 started=1"));
    shop.insert_of_type("1", "Both");
    shop.wait_until("both", || {
        ["events.ndjson", "more.ndjson"].iter().all(|file| shop.read(file).contains("Both"))
    });
    fs::write(shop.file("semel.toml"), right).unwrap();
    relay.signal("HUP");
    shop.wait_until("one less", || shop.read("log").contains("kept=1 stopped=1 started=0"));
    shop.wait_until("it ended", || shop.read("log").contains("relay ended"));
    shop.insert_of_type("1", "One");
    shop.wait_until("one", || shop.read("events.ndjson").contains("One"));
    assert!(!shop.read("more.ndjson").contains("One"));
}
