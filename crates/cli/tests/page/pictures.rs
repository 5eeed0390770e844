//! The pictures of the documentation: `SEMEL_PICTURES=docs/images cargo test -p semel-cli --test main page
//! -- --ignored pictures`.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use super::browser::Browser;
use super::relay::{Relay, large, write};
use crate::shop::Shop;

#[test]
#[ignore = "makes pictures, takes minutes"]
fn pictures() {
    let folder = std::env::var_os("SEMEL_PICTURES").map_or_else(std::env::temp_dir, PathBuf::from);
    let Some(browser) = Browser::open() else { return };
    let shop = Shop::new();
    let relay = Relay::start(&shop, "1KiB", "");
    browser.hide_scrollbars();
    browser.go(&relay.url);
    browser.wait_for("Overview");
    let types = ["OrderPlaced", "OrderPaid", "OrderShipped"];
    for turn in 0..600_u32 {
        let wave = 3.0 + 2.0 * (f64::from(turn) / 40.0).sin();
        let count = (wave * 4.0) as u32;
        let event = |number: u32| {
            let id = turn * 13 + number * 7;
            let is_large = (turn % 61, number) == (17, 0);
            let payload = if is_large { large() } else { format!("{{\"total\": {id}}}") };
            (format!("{}", 1000 + id % 500), types[(id % 3) as usize], payload)
        };
        let made: Vec<_> = (0..count).map(event).collect();
        let made: Vec<_> =
            made.iter().map(|(id, kind, payload)| (id.as_str(), *kind, payload.clone())).collect();
        write(&shop, &made);
        sleep(Duration::from_millis(200));
    }
    let take = |name: &str, hash: &str, text: &str, height: u32, width: u32, scheme: &str| {
        browser.scheme(scheme);
        browser.size(width, height);
        browser.go(&format!("{}#/orders/{hash}", relay.url));
        browser.wait_for(text);
        sleep(Duration::from_secs(1));
        browser.picture(&folder.join(format!("page-{name}.png")));
    };
    take("overview", "overview", "the last half hour", 960, 1280, "light");
    take("overview-dark", "overview", "the last half hour", 960, 1280, "dark");
    take("events", "events", "OrderPlaced", 760, 1280, "light");
    take("dead", "dead", "Parked aggregates", 640, 1280, "light");
    take("narrow", "dead", "Parked aggregates", 800, 360, "light");
    browser.go(&format!("{}#/orders/events?q=state:dead", relay.url));
    browser.click("table[aria-label=Events] tbody a");
    browser.wait_for("Its life");
    browser.size(1280, 680);
    sleep(Duration::from_secs(1));
    browser.picture(&folder.join("page-event.png"));
    // Said for long enough, whatever time it is.
    shop.execute(
        "INSERT INTO semel_outages (pipeline, relay, sink, code, error, fix, since, seen_at) VALUES
         ('orders', 'relay-2 7041', 'out', 'E-FILE-WRITE',
             'write events.ndjson: No space left on device (os error 28)',
             'check the disk (space, quota) and that the folder is still there', (unixepoch() - 252) * 1000000, 4102444800000000)",
    );
    take("sinks", "sinks", "check the disk", 480, 1280, "light");
}
