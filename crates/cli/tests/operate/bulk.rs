//! Changing many events at once.

use crate::shop::Shop;

fn with_dead_letters(count: usize) -> Shop {
    let shop = Shop::new();
    shop.configure("topic = \"{header.missing}\"");
    shop.execute(&format!(
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         SELECT 'order', i, 'OrderPlaced', '{{}}' FROM n"
    ));
    shop.expect(1, &["relay", "--drain"]);
    shop.configure("");
    shop
}

#[test]
fn many_events_need_a_yes() {
    let shop = with_dead_letters(3);
    for verb in ["retry", "discard"] {
        let message = shop.refused(64, &["dead", verb, "--all"]);
        assert!(message.contains("E-NOT-CONFIRMED") && message.contains("3 events"), "{message}");
        assert!(message.contains("--yes"), "{message}");
    }
    assert_eq!(shop.json(&["status"])[0]["dead"], 3, "nothing was changed");
    let told = shop.expect(0, &["dead", "discard", "--all", "--dry-run"]);
    assert_eq!(told, "3 events would be discarded\n");
    shop.expect(0, &["dead", "discard", "--all", "--aggregate", "nobody"]);
    let told = shop.expect(0, &["dead", "retry", "--all", "--yes", "--aggregate", "2"]);
    assert_eq!(told, "1 events retried\n");
}

#[test]
fn pages_of_events_are_changed_once_each() {
    let shop = with_dead_letters(1234);
    let told = shop.expect(0, &["dead", "retry", "--all", "--yes"]);
    assert_eq!(told, "1234 events retried\n");
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 1234);
    assert_eq!(shop.json(&["replay", "--all", "--yes"])["replayed"], 1234);
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 2 * 1234);
}

#[test]
fn every_change_is_written_down_with_who_made_it() {
    let shop = with_dead_letters(3);
    shop.expect(0, &["dead", "retry", "--all", "--dry-run"]);
    shop.refused(64, &["dead", "retry", "--all"]);
    shop.expect(0, &["dead", "retry", "--all", "--yes", "--aggregate", "2"]);
    let dead = shop.json(&["dead", "list"])["events"][0]["id"].as_str().unwrap().to_owned();
    shop.expect(0, &["dead", "discard", &dead]);
    shop.expect(0, &["relay", "--drain"]);
    shop.expect(0, &["replay", "--all", "--yes", "--type", "Order Placed"]);
    shop.expect(0, &["clean", "--older-than", "0s"]);
    let key = format!("{:064}", 7);
    shop.expect(0, &["keys", "release", &key, "--store", "sqlite://shop.db"]);
    let log = shop.text(
        "SELECT group_concat(what || ' ' || pipeline || ' ' || filter || ' ' || events, '; ')
         FROM (SELECT * FROM semel_audit ORDER BY id)",
    );
    let expected = [
        "retry orders state:dead aggregate:2 1".to_owned(),
        format!("discard orders id:{dead} 1"),
        "replay orders state:published event:\"Order Placed\" 0".to_owned(),
        "clean orders older than 0s 2".to_owned(),
        format!("free key  key:{key} 0"),
    ];
    assert_eq!(log, expected.join("; "));
    let who = shop.text("SELECT group_concat(DISTINCT who) FROM semel_audit");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    assert!(who.ends_with(host.trim()) && who.matches('@').count() == 1, "{who}");
}
