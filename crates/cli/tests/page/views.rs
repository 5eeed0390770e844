//! What the views show: charts with their values, older events, and how a source is read.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::browser::Browser;
use super::relay::{Relay, large, write};
use crate::shop::Shop;

/// Of a chart: the names of its legend with their values, how many lines or areas it has, and its scale.
const CHART: &str = "((title) => {
    const picture = document.querySelector(`svg[aria-label='${title}']`);
    const legend = [...picture.closest('section').querySelectorAll('.legend span')];
    const words = (nodes) => [...nodes].map((node) => node.textContent);
    return {
        legend: legend.map((one) => [one.firstChild.textContent.trim(), one.querySelector('b').textContent]),
        drawn: picture.querySelectorAll('.line, .stack').length,
        scale: words(picture.querySelectorAll('text')),
    };
})";

struct Chart {
    legend: Vec<(String, String)>,
    drawn: u64,
    scale: Vec<String>,
}

impl Chart {
    fn of(browser: &Browser, title: &str) -> Self {
        let found = browser.run(&format!("return {CHART}('{title}')"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let legend = found["legend"].as_array().unwrap().iter();
        let scale = found["scale"].as_array().unwrap().iter();
        Self {
            legend: legend.map(|one| (text(&one[0]), text(&one[1]))).collect(),
            drawn: found["drawn"].as_u64().unwrap(),
            scale: scale.map(text).collect(),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.legend.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn value(&self, name: &str) -> &str {
        &self.legend.iter().find(|(one, _)| one == name).expect(name).1
    }

    /// Whether there is a number for each name.
    fn is_measured(&self) -> bool {
        self.legend.iter().all(|(_, value)| value.contains(|char: char| char.is_ascii_digit()))
    }
}

#[test]
fn the_charts_have_a_legend_and_values() {
    let Some(browser) = Browser::open() else { return };
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1KiB", "");
    write(&shop, &[("dead", "OrderPlaced", large()), ("dead", "OrderPaid", "{}".to_owned())]);
    browser.go(&relay.url);
    browser.wait_for("the last half hour");
    let chart = |title: &str| Chart::of(&browser, title);
    let busy = [("Events per second", 2), ("Time to publish", 3)];
    shop.wait_until("rates and times are told", || {
        write(&shop, &[("busy", "OrderPlaced", "{}".to_owned())]);
        sleep(Duration::from_millis(200));
        let flows = |name: &str| {
            chart("Events per second").value(name).parse::<f64>().is_ok_and(|rate| rate > 0.0)
        };
        flows("written")
            && flows("published")
            && chart("Time to publish").is_measured()
            && busy.iter().all(|(title, lines)| chart(title).drawn >= *lines)
    });
    assert_eq!(chart("Events per second").names(), ["written", "published"]);
    let times = chart("Time to publish");
    assert_eq!(times.names(), ["p50", "p95", "p99"]);
    assert!(times.scale.iter().any(|text| text.ends_with('s')), "in seconds: {:?}", times.scale);

    shop.wait_until("the dead letter is told", || {
        chart("Not published, by state").value("dead") == "1"
    });
    let states = chart("Not published, by state");
    assert_eq!(states.names(), ["dead", "failed", "publishing", "pending"]);
    assert_eq!(states.drawn, 4, "one upon the other");
    assert!(states.is_measured(), "{:?}", states.legend);
    let oldest = chart("Age of the oldest event that is due");
    assert_eq!((oldest.names(), oldest.drawn), (vec!["oldest"], 1));
    for title in ["Events per second", "Time to publish", "Not published, by state"] {
        let Chart { scale, .. } = chart(title);
        assert!(scale.contains(&"0".to_owned()) && scale.contains(&"now".to_owned()), "{scale:?}");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Each event once, the newest first, and back to them.
#[test]
fn older_events_are_a_click_away() {
    const ALL: usize = 130;
    let Some(browser) = Browser::open() else { return };
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", "");
    let ids: Vec<_> = (0..ALL).map(|number| number.to_string()).collect();
    let events: Vec<_> =
        ids.iter().map(|id| (id.as_str(), "OrderPlaced", "{}".to_owned())).collect();
    write(&shop, &events);
    shop.wait_until("all are published", || shop.published().len() == ALL);
    browser.go(&format!("{}#/orders/events", relay.url));
    const ROWS: &str = "[...document.querySelectorAll('table[aria-label=Events] tbody a.quiet')].map((link) => link.textContent)";
    let rows = || -> Vec<String> {
        let found = browser.run(&format!("return {ROWS}"));
        found.as_array().unwrap().iter().map(|row| row.as_str().unwrap().to_owned()).collect()
    };
    browser.wait(&format!("{ROWS}.length > 0"));
    let (newest, mut pages) = (rows(), 1);
    let mut seen = newest.clone();
    while browser.run("return document.getElementById('older') !== null") == true {
        let first = &rows()[0];
        browser.click("#older");
        browser.wait(&format!("{ROWS}.length > 0 && {ROWS}[0] !== '{first}'"));
        seen.extend(rows());
        pages += 1;
        assert!(pages < ALL, "it never ends");
    }
    assert!(pages > 2, "{pages} pages");
    browser.wait_for("no more");
    let expected: Vec<_> = ids.iter().rev().map(|id| format!("order {id}")).collect();
    assert_eq!(seen, expected);
    browser.click(".more a");
    browser.wait(&format!("{ROWS}[0] === '{}'", newest[0]));
    assert_eq!(rows(), newest);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[cfg(feature = "postgres")]
#[test]
fn a_source_that_tails_shows_its_slot_and_the_log_that_is_kept() {
    use semel_testkit::services::{Private, Service};

    let Some(browser) = Browser::open() else { return };
    let Some(server) = Private::start(Service::Postgres) else { return };
    let shop = Shop::new();
    shop.expect(0, &["migrate", "up", "--database", server.address()]);
    let relay = Relay::over(&shop, server.address(), "1MiB", "");
    let workings = || -> Value {
        serde_json::from_str(&relay.get("/api/pipelines/orders/workings", "").1).unwrap()
    };
    shop.wait_until("it tails", || workings()["log"]["active"] == true);
    let log = workings()["log"].clone();
    let slot = log["slot"].as_str().expect("a slot");
    browser.go(&format!("{}#/orders/sources", relay.url));
    let fact = |name: &str| {
        browser.run(&format!(
            "return [...document.querySelectorAll('dt')].find((one) => one.textContent === '{name}')
                ?.nextElementSibling.textContent ?? ''"
        ))
    };
    browser.wait_for("Log the server keeps for it");
    browser.wait_for("tailing");
    assert_eq!(fact("now"), "tailing");
    assert_eq!(fact("replication slot"), slot);
    assert_eq!(fact("mode"), "auto · the log tells it of new events");
    let limit = log["limit_bytes"].as_f64().expect("a limit");
    let meter = "document.querySelector('meter[aria-label=\"Retained log\"]')";
    assert_eq!(browser.run(&format!("return {meter}.max")), limit);
    let kept = browser
        .run(&format!("return {meter}.closest('section').querySelector('.quiet').textContent"));
    let kept = kept.as_str().unwrap();
    let (retained, most) = kept.split_once(" of at most ").expect(kept);
    for size in [retained, most] {
        assert!(size.ends_with("iB") || size.ends_with("bytes"), "{kept}");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
