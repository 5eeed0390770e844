//! A sink that is away: whoever asks the database is told why events wait, without the relay.

use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use super::apart::serve;
use crate::shop::{Running, Shop};

/// A relay whose log is not in the way of that of another.
fn relay(shop: &Shop, config: &str) -> Running {
    let log = File::create(shop.file("relay.log")).unwrap();
    let mut command = shop.command(&["relay", "--config", config]);
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

/// Nobody is there, until somebody listens at the address.
fn shop_with_a_sink_that_is_away() -> (Shop, String) {
    let (shop, address) = (Shop::new(), {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    });
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.hook]\ntype = \"webhook\"\n\
         url = \"http://{address}/\"\nplain_http = true\nallow = [\"127.0.0.1\"]\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"hook\"\n"
    ));
    shop.insert_of_type("1", "First");
    (shop, address)
}

fn outages(shop: &Shop, arguments: &[&str]) -> Vec<Value> {
    let status = shop.json(&[&["status"], arguments].concat());
    status[0]["outages"].as_array().unwrap().clone()
}

#[test]
fn a_sink_that_is_away_is_seen_by_whoever_asks_the_database() {
    let (shop, address) = shop_with_a_sink_that_is_away();
    assert!(outages(&shop, &[]).is_empty(), "no relay has tried");
    let relay = relay(&shop, "semel.toml");
    shop.wait_until("it is told", || !outages(&shop, &[]).is_empty());
    let told = &outages(&shop, &[])[0];
    assert_eq!((&told["sink"], &told["code"]), (&"hook".into(), &"E-WEBHOOK-DOWN".into()));
    let text = shop.expect(0, &["status"]);
    for part in ["outage[E-WEBHOOK-DOWN]  orders cannot reach its sink hook: ", "\n  run     "] {
        assert!(text.contains(part), "{text}");
    }
    shop.wait_until("it is told again", || {
        shop.text("SELECT cast(seen_at > since AS TEXT) FROM semel_outages") == "1"
    });
    serve(TcpListener::bind(&address).unwrap(), &Arc::new(AtomicBool::new(true)));
    shop.wait_until("it is over", || outages(&shop, &[]).is_empty());
    shop.wait_until("it is published", || shop.count("published") == 1);
    drop(relay);
}

/// One that ends does not leave behind what nobody sees any more; one that is killed does, for a while.
#[test]
fn what_a_relay_told_goes_with_it() {
    let (shop, _) = shop_with_a_sink_that_is_away();
    let mut first = relay(&shop, "semel.toml");
    shop.wait_until("it is told", || !outages(&shop, &[]).is_empty());
    first.signal("TERM");
    assert_eq!(first.0.wait().unwrap().code(), Some(0));
    assert!(outages(&shop, &[]).is_empty());
    let second = relay(&shop, "semel.toml");
    shop.wait_until("it is told", || !outages(&shop, &[]).is_empty());
    drop(second);
    shop.wait_until("nobody says it again", || outages(&shop, &[]).is_empty());
}

#[cfg(feature = "page")]
#[test]
fn a_relay_that_stands_by_shows_what_the_other_one_sees() {
    let (shop, address) = shop_with_a_sink_that_is_away();
    let _works = relay(&shop, "semel.toml");
    shop.wait_until("it is told", || !outages(&shop, &[]).is_empty());
    let config = shop.read("semel.toml") + "[http]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(shop.file("page.toml"), config).unwrap();
    let _stands_by = shop.background(&["relay", "--config", "page.toml"]);
    let api = format!("http://{}", shop.page());
    let told = outages(&shop, &["--api", &api]);
    assert_eq!(told, outages(&shop, &[]), "and by the same relay");
    let said = shop.expect(0, &["status", "--api", &api]);
    assert!(said.contains("outage[E-WEBHOOK-DOWN]  orders cannot reach"), "{said}");
    serve(TcpListener::bind(&address).unwrap(), &Arc::new(AtomicBool::new(true)));
    shop.wait_until("it is over", || outages(&shop, &["--api", &api]).is_empty());
}
