//! What is shown stays fresh by itself, and what somebody is at is left alone.

use std::thread::sleep;
use std::time::Duration;

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
