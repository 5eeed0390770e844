//! What is done to all dead letters at once, and to an event that was published.

use super::browser::Browser;
use super::relay::write;
use super::shop_with_dead_letters;
use crate::shop::Shop;

#[test]
fn all_dead_letters_go_with_a_click_and_one_event_comes_again() {
    let Some(browser) = Browser::open() else { return };
    let (shop, relay) = shop_with_dead_letters();
    let dead = format!("{}#/orders/dead", relay.url);

    browser.go(&dead);
    agree_to(&browser, ".head .acts [data-action=retry]", "Retry 2 events");
    browser.wait_for("2 events will be tried again");
    shop.wait_until("all are published", || shop.published().len() == 4);
    browser.wait_for("No dead letters.");

    let first = shop.published()[0]["id"].as_str().unwrap().to_owned();
    browser.go(&format!("{}#/orders/event/{first}", relay.url));
    agree_to(&browser, "#replay", "Publish again 1 event");
    browser.wait_for("1 event will be published again");
    shop.wait_until("it comes again", || shop.published().len() == 5);
    assert_eq!(shop.published()[4]["id"], first, "with the same id");
    assert_eq!(states(&shop), ["published"; 4]);

    let huge = format!("\"{}\"", "x".repeat(2 << 20));
    write(&shop, &[("8", "OrderPlaced", huge.clone()), ("9", "OrderPlaced", huge)]);
    shop.wait_until("two are dead", || states(&shop)[4..] == ["dead"; 2]);
    browser.go(&dead);
    browser.wait("document.querySelectorAll('table[aria-label=\"Parked aggregates\"] tbody tr').length === 2");
    agree_to(&browser, ".head .acts [data-action=discard]", "Discard 2 events");
    browser.wait_for("2 events discarded");
    browser.wait_for("No dead letters.");
    assert_eq!(states(&shop)[4..], ["discarded"; 2]);
    assert_eq!(shop.published().len(), 5, "nothing else came");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Clicks, and again where the question is whether that is meant.
fn agree_to(browser: &Browser, button: &str, act: &str) {
    browser.click(button);
    browser.wait_for(&format!("{act}?"));
    browser.click("#confirm");
}

/// The states of all events, in the order in which they were written.
fn states(shop: &Shop) -> Vec<String> {
    let events = shop.json(&["events", "list"])["events"].clone();
    let state = |event: &serde_json::Value| event["state"].as_str().unwrap().to_owned();
    events.as_array().unwrap().iter().map(state).collect()
}
