//! The page of a relay, in a real browser; and who gets in.

mod aggregates;
mod all;
mod api;
mod browser;
#[cfg(feature = "postgres")]
mod large;
mod live;
#[cfg(all(feature = "postgres", feature = "nats"))]
mod newcomer;
mod pictures;
pub(crate) mod relay;
mod views;

use std::thread::sleep;
use std::time::{Duration, Instant};

use self::browser::Browser;
use self::relay::{Relay, large, leave_traces, write};
use crate::shop::Shop;

const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";

/// What is in the way of something else in the frame of the page, with a pipeline to choose; and
/// whether the page one is on can be seen among the others.
const CROWDED: &str = "(() => {
    document.getElementById('source-label').hidden = false;
    const place = (id) => document.getElementById(id).getBoundingClientRect();
    const now = document.querySelector('#nav [aria-current]').getBoundingClientRect();
    if (place('source').right > place('pulse').left) return 'the choice is over the pulse';
    if (now.left < 0 || now.right > innerWidth) return 'where one is, is out of sight';
    return '';
})()";

/// Words of a table that are broken, though they would fit into a line of a telephone.
const BROKEN: &str = "[...document.querySelectorAll('td.wrap a')].filter((link) => {
    const range = document.createRange();
    range.selectNodeContents(link);
    const lines = new Set([...range.getClientRects()].map((line) => line.top));
    return /^\\S{1,16}$/.test(link.innerText) && lines.size > 1;
}).map((link) => link.innerText).join()";

/// Two dead letters, one with an event behind it, and one event that was published; the relay that
/// serves the page would publish them now.
fn shop_with_dead_letters() -> (Shop, Relay) {
    let small = || "{\"total\": 42}".to_owned();
    let events = [
        ("1", "OrderPlaced", small()),
        ("2", "OrderPlaced", large()),
        ("2", "OrderPaid", small()),
        ("3", "OrderPlaced", large()),
    ];
    shop_of(&events, 2)
}

/// One with these events, of which so many aggregates are parked.
fn shop_of(events: &[(&str, &str, String)], parked: usize) -> (Shop, Relay) {
    let shop = Shop::new();
    let strict = Relay::start(&shop, "1KiB", "");
    write(&shop, events);
    let deadline = Instant::now() + Duration::from_secs(60);
    let dead = || -> serde_json::Value {
        serde_json::from_str(&strict.get("/api/pipelines/orders/dead", "").1).unwrap()
    };
    while dead()["lanes"].as_array().unwrap().len() < parked {
        assert!(Instant::now() < deadline, "no dead letters: {}", dead());
        sleep(Duration::from_millis(20));
    }
    drop(strict);
    let relay = Relay::start(&shop, "1MiB", "");
    (shop, relay)
}

#[test]
fn a_sink_that_another_relay_cannot_reach_is_shown_with_why_and_what_to_run() {
    let Some(browser) = Browser::open() else { return };
    let (shop, relay) = shop_with_dead_letters();
    // Said until the year 2100.
    shop.execute(
        "INSERT INTO semel_outages (pipeline, relay, sink, code, error, fix, since, seen_at) VALUES
         ('orders', 'r1', 'out', 'E-TEST', 'refused', 'look after it', 1, 4102444800000000)",
    );
    browser.go(&relay.url);
    browser.wait_for("orders cannot reach its sink out: refused (E-TEST), for");
    browser.wait_for("To run: look after it");
    browser.click("#nav a[href$='/sinks']");
    for text in ["orders cannot reach out", "look after it", "none is lost", "since"] {
        browser.wait_for(text);
    }
    for width in [360, 1280] {
        browser.size(width, 900);
        let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_f64().unwrap() <= 0.0, "{wide} too wide at {width}");
    }
    shop.execute("DELETE FROM semel_outages");
    browser.wait_for("reached");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn every_page_loads_and_asks_nobody_else() {
    let Some(browser) = Browser::open() else { return };
    let (shop, relay) = shop_with_dead_letters();
    let event = shop.published()[0]["id"].as_str().unwrap().to_owned();
    leave_traces(&shop, &event);
    browser.go(&relay.url);
    browser.wait_for("orders has 2 dead letters");
    browser.wait_for("nothing that waits is due: 2 aggregates parked");
    let life = format!("event/{event}");
    let pages = [
        ("overview", "the last half hour"),
        ("events", "OrderPlaced"),
        ("dead", "Parked aggregates"),
        ("sources", "sqlite://shop.db"),
        ("sinks", "file"),
        ("consumers", "payments"),
        ("keys", "abandoned 1"),
        ("relays", "everything"),
        ("activity", "Nobody changed anything"),
        (life.as_str(), "Applied by payments"),
    ];
    for (page, text) in pages {
        if page.contains('/') {
            browser.go(&format!("{}#/orders/{page}", relay.url));
        } else {
            browser.click(&format!("#nav a[href$='/{page}']"));
        }
        browser.wait_for(text);
        let looks = [(360, "dark"), (360, "light"), (1280, "light"), (1280, "dark")];
        for (width, scheme) in looks {
            browser.size(width, 900);
            browser.scheme(scheme);
            browser.wait(&format!("document.documentElement.dataset.theme === '{scheme}'"));
            let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert!(wide.as_f64().unwrap() <= 0.0, "{page} is {wide} too wide at {width}");
            browser.wait(&format!("{CROWDED} === ''"));
            assert_eq!(browser.run(&format!("return {BROKEN}")), "", "{page} at {width}");
        }
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let outside: Vec<_> = browser
        .requests()
        .into_iter()
        .filter(|url| !url.starts_with(&relay.url) && !url.starts_with("data:"))
        .filter(|url| !url.starts_with("chrome"))
        .collect();
    assert!(outside.is_empty(), "{outside:?}");
}

#[test]
fn a_dead_letter_is_retried_by_a_click_and_published() {
    let Some(browser) = Browser::open() else { return };
    let (shop, relay) = shop_with_dead_letters();
    browser.go(&format!("{}#/orders/dead", relay.url));
    browser.wait_for("1 event");
    assert_eq!(shop.published().len(), 1, "the rest waits");
    // The first parked aggregate is the one with an event behind it.
    browser.click("table[aria-label='Parked aggregates'] [data-action=retry]");
    browser.wait_for("Retry 1 event?");
    browser.click("#confirm");
    browser.wait_for("1 event will be tried again");
    browser.wait("document.querySelectorAll('table[aria-label=\"Parked aggregates\"] tbody tr').length === 1");
    let deadline = Instant::now() + Duration::from_secs(30);
    while shop.published().len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", shop.published());
    }
    let order: Vec<_> =
        shop.published()[1..].iter().map(|line| line["event_type"].clone()).collect();
    assert_eq!(order, ["OrderPlaced", "OrderPaid"], "in order");

    browser.click("button[data-action=discard]");
    browser.wait_for("This cannot be taken back.");
    browser.click("dialog button");
    browser.click("#nav a[href$='/activity']");
    browser.wait_for("retry");
    let said = browser.run("return document.body.innerText");
    assert!(!said.as_str().unwrap().contains("discard"), "it was cancelled: {said}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_payload_is_hidden_until_it_is_asked_for() {
    let Some(browser) = Browser::open() else { return };
    let (_shop, relay) = shop_with_dead_letters();
    browser.go(&format!("{}#/orders/events?q=state:dead", relay.url));
    browser.wait_for("OrderPlaced");
    browser.click("table[aria-label=Events] tbody tr:last-child a");
    browser.wait_for("Its life");
    browser.wait_for("Dead letter");
    let hidden = |browser: &Browser| {
        !browser.run("return document.documentElement.outerHTML").as_str().unwrap().contains("4111")
    };
    assert!(hidden(&browser));
    browser.click("#reveal");
    browser.wait_for("4111");
    browser.click("#nav a[href$='/activity']");
    browser.wait_for("reveal");
    assert!(hidden(&browser));
}

#[test]
fn the_keyboard_reaches_everything() {
    let Some(browser) = Browser::open() else { return };
    let (_shop, relay) = shop_with_dead_letters();
    browser.go(&relay.url);
    browser.wait_for("orders has 2 dead letters");
    browser.press("gd");
    browser.wait_for("Parked aggregates");
    browser.press("/");
    browser.wait("document.activeElement.id === 'search'");
    browser.press(&format!("state:dead aggregate:3{ENTER}"));
    browser.wait("document.querySelectorAll('table[aria-label=Events] tbody tr').length === 1");
    // From the search to the event by nothing but the tabulator.
    browser.run("document.getElementById('search').focus()");
    for _ in 0..20 {
        browser.press(TAB);
        if browser.run("return document.activeElement.closest('tbody') !== null") == true {
            break;
        }
    }
    browser.press(ENTER);
    browser.wait_for("Its life");
    browser.run("document.activeElement.blur()");
    browser.press("?");
    browser.wait_for("search events");
    browser.press("\u{e00c}");
    browser.wait("!document.querySelector('dialog')");
    browser.press("t");
    browser.wait("document.documentElement.dataset.theme === 'dark'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_reload_goes_over_to_other_callers_and_another_address() {
    let shop = Shop::new();
    let mut relay = Relay::start(&shop, "1MiB", "");
    let overview = "/api/overview";
    assert_eq!(relay.get(overview, "").0, 200);
    let log = || std::fs::read_to_string(shop.file("log")).unwrap();
    let reload = |relay: &Relay, configuration: &str| {
        let before = log().matches("the new configuration").count();
        shop.write_config(configuration);
        relay.signal("HUP");
        let deadline = Instant::now() + Duration::from_secs(30);
        while log().matches("the new configuration").count() == before {
            assert!(Instant::now() < deadline, "{}", log());
            sleep(Duration::from_millis(20));
        }
    };
    let open = std::fs::read_to_string(shop.file("semel.toml")).unwrap();
    let token = "[http.access.olga]\nrole = \"viewer\"\ntoken = \"the token of the viewer\"\n";
    reload(&relay, &format!("{open}{token}"));
    assert_eq!(relay.get(overview, "").0, 401);
    let bearer = "authorization: Bearer the token of the viewer\r\n";
    assert_eq!(relay.get(overview, bearer).0, 200);

    // An address that cannot be had changes nothing.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = |address: &str| open.replace("127.0.0.1:0", address);
    reload(&relay, &listen(&taken.local_addr().unwrap().to_string()));
    assert!(log().contains("E-HTTP-LISTEN") && log().contains("the old one goes on"), "{}", log());
    assert_eq!(relay.get(overview, "").0, 401);

    reload(&relay, &listen("127.0.0.2:0"));
    let said = log();
    let (_, address) = said.rsplit_once("metrics on ").unwrap();
    let before =
        std::mem::replace(&mut relay.url, address.lines().next().unwrap().trim().to_owned());
    assert_eq!(relay.get(overview, "").0, 200, "{} is open again", relay.url);
    let old = before.trim_start_matches("http://").trim_end_matches('/');
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(old).is_ok() {
        assert!(Instant::now() < deadline, "{old} is not given up");
    }
    drop(taken);
}

/// One address may contain the other, so that both cannot be had at once.
#[test]
fn a_reload_goes_over_to_all_addresses_of_the_same_port() {
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", "");
    let overview = "/api/overview";
    assert_eq!(relay.get(overview, "").0, 200);
    let (_, port) = relay.url.trim_end_matches('/').rsplit_once(':').unwrap();
    let log = || std::fs::read_to_string(shop.file("log")).unwrap();
    let plain = std::fs::read_to_string(shop.file("semel.toml")).unwrap();
    let reload = |address: &str, said: &str| {
        let token = "[http.access.olga]\nrole = \"viewer\"\ntoken = \"the token of the viewer\"\n";
        let before = log().matches(said).count();
        let listen = plain.replace("127.0.0.1:0", &format!("{address}:{port}"));
        shop.write_config(&format!("{listen}{token}"));
        relay.signal("HUP");
        shop.wait_until(said, || log().matches(said).count() > before);
    };
    // An address that this machine does not have: it goes back to its own.
    reload("192.0.2.1", "the new configuration is refused");
    assert!(log().contains("E-HTTP-LISTEN"), "{}", log());
    assert_eq!(relay.get(overview, "").0, 200, "{}", log());

    let bearer = "authorization: Bearer the token of the viewer\r\n";
    for address in ["0.0.0.0", "127.0.0.1"] {
        reload(address, "the new configuration holds");
        assert_eq!(relay.get(overview, "").0, 401, "{address}: {}", log());
        assert_eq!(relay.get(overview, bearer).0, 200, "{address}: {}", log());
    }
}

#[test]
fn a_page_for_others_asks_who_they_are() {
    let shop = Shop::new();
    let open = "[source.a]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"stdout\"\n[pipeline.a]\n\
                from = \"a\"\nto = \"out\"\n[http]\nlisten = \"0.0.0.0:0\"\n";
    shop.write_config(open);
    let refusal = shop.refused(78, &["relay", "--config", "semel.toml"]);
    assert!(
        refusal.contains("[http.access.NAME]") && refusal.contains("semel.toml:9"),
        "{refusal}"
    );

    std::fs::write(shop.file("token"), "the token of the operator\n").unwrap();
    let more = "hosts = [\"ops.example.com\"]\n[http.access.olga]\nrole = \"operator\"\ntoken_file = \"token\"\n";
    let relay = Relay::start(&shop, "1MiB", more);
    let overview = "/api/overview";
    assert_eq!(relay.get(overview, "").0, 401);
    assert_eq!(relay.get("/metrics", "").0, 401);
    assert_eq!(relay.get("/readyz", "").0, 200);
    let bearer = "authorization: Bearer the token of the operator\r\n";
    let (status, body) = relay.get(overview, bearer);
    assert!(status == 200 && body.contains("\"name\":\"olga\",\"role\":\"operator\""), "{body}");
    let deadline = Instant::now() + Duration::from_secs(30);
    let told = |metrics: &str| {
        [
            "semel_sink_up{pipeline=\"orders\"} 1",
            "semel_backlog_events{pipeline=\"orders\",state=\"dead\"} ",
        ]
        .iter()
        .all(|line| metrics.contains(line))
    };
    while !told(&relay.get("/metrics", bearer).1) {
        assert!(Instant::now() < deadline, "{}", relay.get("/metrics", bearer).1);
    }
    assert_eq!(relay.get(overview, &format!("{bearer}host: evil.example.com\r\n")).0, 421);
    assert_eq!(relay.get(overview, &format!("{bearer}host: ops.example.com\r\n")).0, 200);
    let changes = "/api/pipelines/orders/changes";
    let order = "{\"action\": \"retry\", \"q\": \"state:dead\"}";
    let foreign = format!("{bearer}origin: https://evil.example.com\r\n");
    assert_eq!(relay.post(changes, &foreign, order).0, 403);
    assert_eq!(
        relay.post(changes, bearer, order),
        (200, "{\"events\":0,\"dry_run\":false}".into())
    );
    let said = std::fs::read_to_string(shop.file("log")).unwrap();
    assert!(!said.contains("the token"), "{said}");
}
