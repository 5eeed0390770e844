//! Aggregates with names that mean something to a search: what is done is done to them, not to others.

use super::browser::Browser;
use super::relay::large;
use super::shop_of;

#[test]
fn a_button_and_a_link_are_for_the_very_aggregate() {
    let Some(browser) = Browser::open() else { return };
    let ids = ["a\"b", "ab", "a  b", "a b", "a/b"];
    let placed: Vec<_> = ids.iter().map(|id| (*id, "OrderPlaced", large())).collect();
    let (shop, relay) = shop_of(&placed, ids.len());
    let count = "document.querySelectorAll('table[aria-label=Events] tbody tr').length === 1";
    for (place, id) in ids.iter().enumerate() {
        browser.go(&format!("{}#/orders/dead", relay.url));
        let key = serde_json::json!(format!("order/{id}"));
        let row = format!(
            "[...document.querySelectorAll('tr')].find((one) => one.dataset.key === {key})"
        );
        browser.wait(&row);
        browser.run(&format!("{row}.querySelector('[data-action=retry]').click()"));
        browser.wait_for("Retry 1 event?");
        browser.click("#confirm");
        shop.wait_until("it is published", || shop.published().len() > place);
        assert_eq!(shop.published()[place]["aggregate_id"], *id);
    }
    for id in ids {
        browser.go(&format!("{}#/orders/events", relay.url));
        browser.wait(&format!("document.querySelectorAll('tbody tr').length === {}", ids.len()));
        let text = serde_json::json!(format!("order {id}"));
        let link =
            format!("[...document.querySelectorAll('td a')].find((a) => a.textContent === {text})");
        browser.run(&format!("{link}.click()"));
        browser.wait(count);
        browser.wait(&link);
        // With a state it is still the same search.
        browser.click(".chips a:nth-child(4)");
        browser.wait("decodeURIComponent(location.hash).includes('state:published')");
        browser.wait(count);
        browser.wait(&link);
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
