//! SIGHUP: another configuration, the same position.

use std::fs;
#[cfg(feature = "postgres")]
use std::net::TcpListener;
#[cfg(feature = "postgres")]
use std::sync::mpsc;
#[cfg(feature = "postgres")]
use std::time::Duration;

#[cfg(feature = "page")]
use super::start::ask;
#[cfg(any(feature = "page", feature = "postgres"))]
use super::start::bills;
#[cfg(feature = "postgres")]
use super::start::leases;
#[cfg(feature = "page")]
use crate::page::relay::Relay;
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

#[cfg(feature = "page")]
#[test]
fn a_page_that_comes_with_a_reload_tells_of_what_runs_already() {
    let shop = Shop::new();
    let plain = shop.read("semel.toml");
    let relay = shop.relay();
    shop.insert_of_type("1", "First");
    shop.wait_until("it publishes", || shop.read("events.ndjson").contains("First"));
    shop.write_config(&format!("{plain}[http]\nlisten = \"127.0.0.1:0\"\n"));
    relay.signal("HUP");
    shop.wait_until("kept", || shop.log().contains("kept=1 stopped=0 started=0"));
    let told = || ask(&shop.page(), "/metrics").1;
    let up = "semel_source_up{pipeline=\"orders\"} 1";
    shop.wait_until("its source is up", || told().contains(up));
    let published = "semel_events_published_total{pipeline=\"orders\"";
    assert!(told().contains(published), "{}", told());
}

/// Whether events are deleted is up to the section, even with nothing in it.
#[test]
fn a_retention_that_comes_or_goes_changes_the_pipeline() {
    let shop = Shop::new();
    let plain = shop.read("semel.toml");
    let relay = shop.relay();
    shop.wait_until("started", || shop.log().contains("relay started"));
    for (round, text) in [format!("{plain}[retention]\n"), plain].iter().enumerate() {
        shop.write_config(text);
        relay.signal("HUP");
        let changed = "kept=0 stopped=1 started=1";
        let times = |what: &str| shop.log().matches(what).count();
        shop.wait_until("another", || times(changed) == round + 1);
        shop.wait_until("the old one ended", || times("relay ended") == round + 1);
    }
}

#[cfg(feature = "page")]
const CALLER: &str = "[http.access.olga]\nrole = \"viewer\"\ntoken = \"the first of her tokens\"\n";

/// The status that the caller of the first token is answered with.
#[cfg(feature = "page")]
fn status_of_caller(relay: &Relay) -> u16 {
    relay.get("/api/overview", "authorization: Bearer the first of her tokens\r\n").0
}

#[cfg(feature = "page")]
#[test]
fn a_pipeline_that_cannot_start_holds_up_no_change_of_others() {
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", &format!("{CALLER}{}", bills("sqlite://bills.db")));
    shop.wait_until("it is tried again", || shop.log().contains("it stopped and is tried again"));
    assert_eq!(status_of_caller(&relay), 200);
    let first = shop.read("semel.toml");

    // What is different and cannot be connected is refused as ever.
    shop.write_config(&first.replace("bills.ndjson", "missing/bills.ndjson"));
    relay.signal("HUP");
    shop.wait_until("refused", || shop.log().contains("the new configuration is refused"));

    shop.write_config(&first.replace("the first of", "the other of"));
    relay.signal("HUP");
    shop.wait_until("it holds", || shop.log().contains("kept=2 stopped=0 started=0"));
    assert_eq!(status_of_caller(&relay), 401);
    shop.expect(0, &["migrate", "up", "--database", "sqlite://bills.db"]);
    let started = "relay started: ";
    shop.wait_until("it starts once it can", || shop.log().matches(started).count() == 2);
}

/// Nobody has to wait for a database in order to shut somebody out.
#[cfg(all(feature = "page", feature = "postgres"))]
#[test]
fn a_pipeline_that_is_being_started_goes_on_with_it_through_a_reload() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://me@{}/shop", silent.local_addr().unwrap());
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", &format!("{CALLER}{}", bills(&url)));
    shop.wait_until("the other one runs", || shop.log().contains("relay started"));
    shop.write_config(&shop.read("semel.toml").replace("the first of", "the other of"));
    relay.signal("HUP");
    shop.wait_until("it holds", || shop.log().contains("kept=2 stopped=0 started=0"));
    assert_eq!(status_of_caller(&relay), 401);
    assert!(!shop.log().contains("tried again"), "{}", shop.log());
    drop(silent);
    shop.wait_until("it is tried", || shop.log().contains("it stopped and is tried again"));
}

/// None of what is new waits for another, and who ends the relay waits for none of them.
#[cfg(feature = "postgres")]
#[test]
fn a_request_to_end_is_heard_while_a_new_configuration_is_connected() {
    let shop = Shop::new();
    let mut relay = shop.relay();
    shop.wait_until("started", || shop.log().contains("relay started"));
    let mut text = shop.read("semel.toml");
    let (sender, taken) = mpsc::channel();
    for name in ["bills", "letters"] {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://me@{}/shop", silent.local_addr().unwrap());
        text += &bills(&url).replace("bills", name);
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(silent.accept().unwrap()));
    }
    shop.write_config(&text);
    relay.signal("HUP");
    // One after the other, the second would not be asked: the first that is away ends the reload.
    let patience = Duration::from_secs(60);
    let _silent = [(); 2].map(|()| taken.recv_timeout(patience).expect("both at once"));
    relay.signal("TERM");
    assert_eq!(relay.0.wait().unwrap().code(), Some(0), "{}", shop.log());
    assert!(!shop.log().contains("is refused"), "it waited for them: {}", shop.log());
    assert_eq!(leases(&shop), "0");
}
