//! What is shown stays fresh by itself, and what somebody is at is left alone.

use std::io::BufRead;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::browser::Browser;
use super::relay::{Relay, large, leave_traces, write};
use crate::shop::Shop;

#[test]
fn pages_stay_fresh_and_leave_alone_what_one_is_at() {
    let Some(browser) = Browser::open() else { return };
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1KiB", "");
    let many: Vec<_> = (0..45).map(|number| number.to_string()).collect();
    let many: Vec<_> =
        many.iter().map(|id| (id.as_str(), "OrderPlaced", "{\"total\": 1}".to_owned())).collect();
    write(&shop, &many);

    the_events(&browser, &shop, &relay);
    the_one_that_is_wanted_now(&browser, &shop, &relay);
    the_life_of_an_event(&browser, &shop, &relay);
    the_dead_letters(&browser, &shop, &relay);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

fn the_events(browser: &Browser, shop: &Shop, relay: &Relay) {
    browser.go(&format!("{}#/orders/events", relay.url));
    browser.wait("document.querySelectorAll('tbody tr').length === 45");
    // Somebody reads further down, has a row in focus, and has begun to write a search.
    browser.run(
        "document.getElementById('search').value = 'type:or';
        window.row = document.querySelectorAll('tbody tr')[30];
        row.querySelector('a').focus();
        window.place = row.getBoundingClientRect().top",
    );
    write(shop, &[("new", "OrderPaid", "{}".to_owned())]);
    browser.wait_for("OrderPaid");
    browser.wait("document.querySelectorAll('tbody tr').length === 46");
    let kept = browser.run(
        "return [document.getElementById('search').value, row.isConnected,
            document.activeElement === row.querySelector('a'),
            Math.abs(row.getBoundingClientRect().top - place) < 60]",
    );
    assert_eq!(kept, serde_json::json!(["type:or", true, true, true]));
    // What is selected is not taken away.
    browser.run("getSelection().selectAllChildren(document.querySelector('tbody tr'))");
    let selected = browser.run("return getSelection().toString()");
    write(shop, &[("newer", "OrderLost", "{}".to_owned())]);
    // Two pulses and more.
    for _ in 0..25 {
        assert_eq!(browser.run("return getSelection().toString()"), selected);
        sleep(Duration::from_millis(200));
    }
    browser.run("getSelection().empty()");
    browser.wait_for("OrderLost");
}

/// A view that took long, and was left meanwhile, does not take the pulse from the one that is shown.
fn the_one_that_is_wanted_now(browser: &Browser, shop: &Shop, relay: &Relay) {
    browser.run(
        "const ask = window.fetch;
        window.fetch = async (place, options) => {
            const answer = await ask(place, options);
            if (String(place).endsWith('/history')) await new Promise((done) => { window.letGo = done; });
            return answer;
        }",
    );
    browser.go(&format!("{}#/orders/overview", relay.url));
    browser.wait("typeof window.letGo === 'function'");
    browser.go(&format!("{}#/orders/events?q=event:OrderFound", relay.url));
    browser.wait_for("No event matches.");
    browser.run("letGo()");
    write(shop, &[("newest", "OrderFound", "{}".to_owned())]);
    browser.wait("document.querySelectorAll('tbody tr').length === 1");
}

fn the_life_of_an_event(browser: &Browser, shop: &Shop, relay: &Relay) {
    let event = shop.published()[0]["id"].as_str().unwrap().to_owned();
    browser.go(&format!("{}#/orders/event/{event}", relay.url));
    browser.click("#reveal");
    browser.wait_for("\"total\": 1");
    leave_traces(shop, &event);
    browser.wait_for("Applied by payments");
    browser.wait("document.querySelector('#payload pre').textContent.includes('total')");
}

fn the_dead_letters(browser: &Browser, shop: &Shop, relay: &Relay) {
    browser.go(&format!("{}#/orders/dead", relay.url));
    browser.wait_for("No dead letters.");
    write(shop, &[("late", "OrderPlaced", large())]);
    browser.wait_for("Parked aggregates");
    browser.wait("document.querySelector('[data-action=retry]')");
    // The handlers of what is shown are those of what is shown.
    browser.click("table[aria-label=Reasons] [data-action=discard]");
    browser.wait_for("Discard 1 event?");
    browser.click("#confirm");
    browser.wait_for("No dead letters.");
}

/// Has the relay read a configuration with one more pipeline.
fn add_a_pipeline(shop: &Shop, relay: &Relay) {
    let before = shop.read("semel.toml");
    shop.write_config(&format!("{before}\n[pipeline.invoices]\nfrom = \"orders\"\nto = \"out\"\n"));
    relay.signal("HUP");
    shop.wait_until("the new configuration holds", || {
        shop.log().contains("the new configuration holds")
    });
}

/// The old configuration is not told of for ever: the stream ends, and whoever asks again hears of the new.
#[test]
fn a_stream_ends_with_a_reload_and_another_tells_of_what_is_new() {
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", "");
    let mut lines = relay.listen("/api/live").lines().map(Result::unwrap);
    let told = lines.find(|line| line.contains("\"pending\":")).expect("a look");
    assert!(told.contains("\"name\":\"orders\"") && !told.contains("invoices"), "{told}");
    add_a_pipeline(&shop, &relay);
    let deadline = Instant::now() + Duration::from_secs(60);
    for line in lines {
        assert!(!line.contains("invoices") && Instant::now() < deadline, "it goes on: {line}");
    }
    let mut lines = relay.listen("/api/live").lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("\"name\":\"invoices\"")));
}

/// An open page goes over to another configuration by itself; and when nothing comes any more, it says so.
#[test]
fn an_open_page_follows_a_reload_and_says_when_it_is_not_fresh() {
    let Some(browser) = Browser::open() else { return };
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1MiB", "");
    let pulse = |words: &str| {
        browser.wait(&format!("document.getElementById('pulse').innerText.trim() === '{words}'"));
    };
    browser.go(&relay.url);
    pulse("live");
    add_a_pipeline(&shop, &relay);
    browser.wait("document.querySelectorAll('#source option').length === 2");
    pulse("live");
    // The connection stays open, and nobody says anything.
    relay.signal("STOP");
    pulse("not fresh");
    relay.signal("CONT");
    pulse("live");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
