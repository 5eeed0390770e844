//! What a relay does while it starts: it can be asked how it is, and one pipeline that cannot start
//! leaves the others alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::page::relay::Relay;
use crate::shop::{Running, Shop};

/// Nobody listens there.
const AWAY: &str = "postgres://me@127.0.0.1:1/shop";

/// A second pipeline, `bills`, from another database.
pub(super) fn bills(url: &str) -> String {
    format!(
        "[source.bills]\nurl = \"{url}\"\n[sink.bills]\ntype = \"file\"\npath = \"bills.ndjson\"\n\
         [pipeline.bills]\nfrom = \"bills\"\nto = \"bills\"\n"
    )
}

/// A shop with a second pipeline.
fn shop_with_bills(url: &str) -> Shop {
    let shop = Shop::new();
    shop.write_config(&format!("{}{}", shop.read("semel.toml"), bills(url)));
    shop
}

/// Asks the page; gives status and answer, which must come within two seconds.
pub(super) fn ask(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer at once");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn ends_well(mut relay: Running) {
    relay.signal("TERM");
    assert_eq!(relay.0.wait().unwrap().code(), Some(0));
}

/// How many leases there are: whoever ends in good order leaves none.
pub(super) fn leases(shop: &Shop) -> String {
    shop.text("SELECT CAST(count(*) AS TEXT) FROM semel_share WHERE owner <> '' AND until > 0")
}

#[cfg(feature = "postgres")]
#[test]
fn a_database_that_is_away_at_the_start_holds_up_no_other_pipeline() {
    let shop = shop_with_bills(AWAY);
    shop.insert_of_type("1", "First");
    let mut relay = shop.relay();
    shop.wait_until("the other one publishes", || shop.read("events.ndjson").contains("First"));
    shop.wait_until("it is tried again and again", || {
        shop.log().contains("it stopped and is tried again in 2s; the other pipelines go on")
    });
    assert!(shop.log().contains("E-POSTGRES-DOWN"), "{}", shop.log());
    assert!(relay.0.try_wait().unwrap().is_none());
    ends_well(relay);
    assert_eq!(leases(&shop), "0");
}

#[cfg(all(feature = "page", feature = "postgres"))]
#[test]
fn a_database_that_is_away_at_the_start_is_told_on_the_page_and_by_metrics() {
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", &bills(AWAY));
    shop.wait_until("it says so", || shop.log().contains("it stopped and is tried again"));
    let down = "E-POSTGRES-DOWN";
    assert_eq!(relay.get("/livez", ""), (200, "alive\n".into()));
    let not_ready = (503, format!("{down}\n"));
    shop.wait_until("it is not ready, and why", || relay.get("/readyz", "") == not_ready);
    let trouble = || {
        let (_, overview) = relay.get("/api/overview", "");
        let overview: serde_json::Value = serde_json::from_str(&overview).unwrap();
        let pipelines = overview["pipelines"].as_array().unwrap().clone();
        let code = |name: &str| {
            pipelines.iter().find(|one| one["name"] == name).unwrap()["trouble"]["code"].clone()
        };
        (code("bills"), code("orders"))
    };
    shop.wait_until("the page says so", || trouble() == (down.into(), serde_json::Value::Null));
    let told = relay.get("/metrics", "").1;
    assert!(told.contains("semel_source_up{pipeline=\"bills\"} 0"), "{told}");
    let status = shop.refused(69, &["status", "--api", relay.url.trim_end_matches('/')]);
    assert!(status.contains(down), "{status}");
}

#[cfg(feature = "page")]
#[test]
fn a_pipeline_that_cannot_start_is_started_once_it_can() {
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", &bills("sqlite://bills.db"));
    shop.wait_until("it says so", || shop.log().contains("E-SQLITE-ACCESS"));
    let not_ready = (503, "E-SQLITE-ACCESS\n".into());
    shop.wait_until("it is not ready, and why", || relay.get("/readyz", "") == not_ready);
    shop.expect(0, &["migrate", "up", "--database", "sqlite://bills.db"]);
    let send = ["send", "--database", "sqlite://bills.db", "--aggregate-type", "bill"];
    let send = [&send[..], &["--aggregate-id", "1", "--type", "Billed", "--payload", "{}"]];
    shop.expect(0, &send.concat());
    shop.wait_until("it publishes", || shop.read("bills.ndjson").contains("Billed"));
    shop.wait_until("it is ready", || relay.get("/readyz", "").0 == 200);
    let (status, events) = relay.get("/api/pipelines/bills/events", "");
    assert!(status == 200 && events.contains("Billed"), "{events}");
    let told = relay.get("/metrics", "").1;
    assert!(told.contains("semel_source_up{pipeline=\"bills\"} 1"), "{told}");
}

#[cfg(feature = "postgres")]
#[test]
fn where_no_pipeline_can_start_the_relay_ends_and_with_69_if_that_may_pass() {
    let shop = Shop::new();
    let alone = bills(AWAY);
    shop.write_config(&alone);
    assert!(shop.refused(69, &["relay"]).contains("E-POSTGRES-DOWN"));
    let mistaken = alone.replace(AWAY, "sqlite://none.db");
    shop.write_config(&mistaken);
    assert!(shop.refused(78, &["relay"]).contains("E-SQLITE-ACCESS"));
    // Another start may find the one that is away: systemd must not give up.
    for other in ["archive", "zebra"] {
        shop.write_config(&format!("{alone}{}", mistaken.replace("bills", other)));
        assert!(shop.refused(69, &["relay"]).contains("error[E-POSTGRES-DOWN]"));
    }
}

/// Whoever is told of dead letters may be away: nothing that is published waits for it.
#[cfg(feature = "redis")]
#[test]
fn an_alert_that_nobody_can_be_sent_holds_up_no_pipeline() {
    let shop = Shop::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let alert = |address: &str| {
        let timeout = "timeout = \"120s\"";
        format!(
            "alert = \"ops\"\n[sink.ops]\ntype = \"redis\"\nurl = \"redis://{address}\"\n{timeout}"
        )
    };
    let silent_address = silent.local_addr().unwrap().to_string();
    for (name, address) in [("First", &*silent_address), ("Second", "127.0.0.1:1")] {
        shop.configure(&alert(address));
        shop.insert_of_type("1", name);
        let relay = shop.relay();
        shop.wait_until("it publishes", || shop.read("events.ndjson").contains(name));
        ends_well(relay);
    }
    assert!(shop.refused(69, &["relay", "--drain"]).contains("E-REDIS-DOWN"));
}

/// A server that takes a connection, and hangs up after a second.
#[cfg(all(feature = "postgres", feature = "webhook"))]
fn failing_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            std::thread::sleep(Duration::from_secs(1));
            drop(connection);
        }
    });
    address
}

#[cfg(all(feature = "postgres", feature = "webhook"))]
#[test]
fn whoever_drains_ends_in_good_order_when_one_cannot_start() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let shop = Shop::new();
    let away = bills(&format!("postgres://me@{}/shop", failing_server()));
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"webhook\"\n\
         url = \"http://{}/\"\nplain_http = true\nallow = [\"127.0.0.1\"]\ntimeout = \"2s\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n{}",
        silent.local_addr().unwrap(),
        away.replace("bills", "zebra"),
    ));
    shop.insert_of_type("1", "First");
    // The first one is in the middle of a call when the other one is found to be away.
    let said = shop.refused(69, &["relay", "--drain"]);
    assert!(said.contains("this relay has the pipeline now"), "{said}");
    assert!(said.contains("E-POSTGRES-DOWN"), "{said}");
    assert_eq!(leases(&shop), "0", "somebody else would have to wait for it to run out");
}

/// A server that takes connections and says nothing.
#[cfg(all(feature = "page", feature = "postgres"))]
#[test]
fn health_is_told_before_any_database_has_answered() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://me@{}/shop", silent.local_addr().unwrap());
    let shop = Shop::new();
    shop.write_config(&format!("{}[http]\nlisten = \"127.0.0.1:0\"\n", bills(&url)));
    let mut relay = shop.relay();
    let address = shop.page();
    assert_eq!(ask(&address, "/livez"), (200, "alive\n".into()));
    let (status, why) = ask(&address, "/readyz");
    assert!(status == 503 && why.starts_with("E-"), "{status} {why}");
    assert_eq!(ask(&address, "/metrics").0, 200);
    assert_eq!(ask(&address, "/").0, 200);
    // A request to end is not kept waiting either.
    let asked = Instant::now();
    relay.signal("TERM");
    assert_eq!(relay.0.wait().unwrap().code(), Some(0), "{}", shop.log());
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
}

/// Another start may find it free, or the address there: systemd must go on trying.
#[cfg(feature = "page")]
#[test]
fn an_address_that_cannot_be_had_now_may_be_had_later() {
    let (shop, taken) = (Shop::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let taken = taken.local_addr().unwrap().to_string();
    let token = "[http.access.olga]\nrole = \"viewer\"\ntoken = \"the token of the viewer\"\n";
    let cases =
        [(taken.as_str(), "somebody else listens"), ("192.0.2.1:9464", "has no such address")];
    for (address, expected) in cases {
        shop.configure(&format!("[http]\nlisten = \"{address}\"\n{token}"));
        let said = shop.refused(69, &["relay"]);
        assert!(said.contains("E-HTTP-LISTEN") && said.contains(expected), "{said}");
    }
}
