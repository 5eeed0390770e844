//! What writers put into events does not command the operator's terminal.

use serde_json::Value;

use crate::shop::Shop;

/// Clears the screen, sets the title, begins a line of its own; the last is one character that says
/// what the first two say, to terminals that know it.
const EVIL: &str = "4\u{1b}[2J\u{1b}]0;title\u{7}\n2\u{9b}2J\u{7f}";
const SHOWN: &str = r"4\u{1b}[2J\u{1b}]0;title\u{7}\u{a}2\u{9b}2J\u{7f}";

/// A dead letter with such words wherever there may be some.
fn shop() -> Shop {
    let shop = Shop::new();
    shop.configure("topic = \"{header.missing}\"");
    let headers = serde_json::json!({ "tenant": EVIL }).to_string();
    let sql = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, headers, payload) \
               VALUES (?1, ?1, ?1, ?2, ?1)";
    shop.ask(async |connection| {
        let insert = sqlx::query(sql).bind(EVIL).bind(&headers);
        insert.execute(connection).await.unwrap();
    });
    shop.expect(1, &["relay", "--drain"]);
    shop.execute(&format!("UPDATE semel_parked SET error = 'no {}'", EVIL.replace('\'', "")));
    shop
}

/// Every line that is printed, which must be plain.
fn plain(shop: &Shop, arguments: &[&str]) -> Vec<String> {
    let text = shop.expect(0, arguments);
    assert!(!text.replace('\n', "").contains(char::is_control), "{arguments:?}: {text:?}");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_is_printed_of_events_is_plain_text() {
    let shop = shop();
    for list in [&["events", "list"][..], &["dead", "list"]] {
        let lines = plain(&shop, list);
        assert_eq!(lines.len(), 2, "one line for the event: {lines:#?}");
        assert!(lines[1].contains(&format!("{SHOWN}/{SHOWN}  {SHOWN}")), "{lines:#?}");
        assert!(lines[1].ends_with(&format!("no {SHOWN}")), "{lines:#?}");
    }
    let id = shop.json(&["events", "list"])["events"][0]["id"].as_str().unwrap().to_owned();
    let lines = plain(&shop, &["events", "show", &id, "--payload"]);
    for (name, value) in [("aggregate id", SHOWN), ("header", &format!("tenant: {SHOWN}"))] {
        assert!(lines.contains(&format!("{name:<16}{value}")), "{name}: {lines:#?}");
    }
    // A payload may have lines.
    let payload = lines.iter().position(|line| line.starts_with("4\\u{1b}")).expect("a payload");
    assert_eq!(lines[payload..payload + 2].join("\\u{a}"), SHOWN);
    let died = format!("  {:<32}1 failed attempt: no {SHOWN}", "-");
    assert!(lines.contains(&died), "{lines:#?}");
}

#[test]
fn what_passes_is_plain_text() {
    let shop = Shop::new();
    let tap = ["tap", "--every", "100ms", "--count", "1", "--payload"];
    let mut running = shop.background(&tap);
    // It takes note of what is there before it looks on.
    std::thread::sleep(std::time::Duration::from_secs(5));
    shop.insert(EVIL, EVIL);
    assert!(running.0.wait().unwrap().success());
    let told = shop.read("out");
    assert!(told.contains(&format!("  order/{SHOWN}  OrderPlaced  ")), "{told:?}");
    assert!(told.ends_with(&format!("  {SHOWN}\n")), "{told:?}");
}

#[test]
fn what_is_lost_is_told_in_plain_text() {
    let shop = Shop::new();
    shop.insert(EVIL, "{}");
    shop.expect(0, &["relay", "--drain"]);
    std::fs::write(shop.file("events.ndjson"), "").unwrap();
    let told = shop.expect(1, &["verify"]);
    assert!(told.contains(&format!("  order/{SHOWN}  OrderPlaced  ")), "{told:?}");
}

/// JSON leaves some of them alone, which terminals do not.
#[test]
fn json_is_plain_text_and_says_the_same() {
    let shop = shop();
    let lines = plain(&shop, &["events", "list", "--output", "json"]);
    let listed: Value = serde_json::from_str(&lines.concat()).unwrap();
    assert_eq!(listed["events"][0]["aggregate_id"], EVIL);
}
