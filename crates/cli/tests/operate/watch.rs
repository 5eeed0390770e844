//! `semel status --watch`, `top`, `tap` and the life of an event.

use std::io::Read;
use std::process::Stdio;

use crate::shop::{Shop, lines};

#[test]
fn a_tap_shows_events_as_they_pass_and_changes_nothing() {
    let shop = Shop::new();
    shop.insert_of_type("1", "Before");
    let tap = ["tap", "--every", "100ms", "--count", "2", "--output", "json", "--type", "Now"];
    let mut running = shop.background(&tap);
    let mut open = shop.command(&["tap", "--every", "100ms", "--count", "1", "--payload"]);
    let mut open = open.args(["--type", "Now"]).stdout(Stdio::piped()).spawn().unwrap();
    // It takes note of what is there before it looks on.
    std::thread::sleep(std::time::Duration::from_secs(5));
    shop.insert_of_type("1", "Other");
    shop.insert_of_type("1", "Now");
    shop.wait_until("written", || shop.read("out").contains("\"pending\""));
    assert_eq!(shop.json(&["status"])[0]["pending"], 3, "nothing was taken");
    let relay = shop.command(&["relay", "--drain"]).output().unwrap();
    assert!(relay.status.success());
    shop.wait_until("it ends", || shop.read("out").lines().count() == 2);
    assert!(running.0.wait().unwrap().success());
    let told = lines(&shop.read("out"));
    let states: Vec<_> = told.iter().map(|one| (&one["event_type"], &one["state"])).collect();
    let (now, pending, published) = ("Now".into(), "pending".into(), "published".into());
    assert_eq!(states, [(&now, &pending), (&now, &published)]);
    assert!(told[0].get("payload").is_none(), "payloads are shown when they are asked for");
    let mut shown = String::new();
    open.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert!(open.wait().unwrap().success() && shown.ends_with("  {}\n"), "{shown:?}");
}

/// Writes an event that was made so many seconds ago.
fn insert_made_before(shop: &Shop, event_type: &str, seconds: u32) {
    shop.execute(&format!(
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
         VALUES ('order', '{event_type}', '{event_type}', '{{}}',
             CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000 - {seconds} * 1000000)"
    ));
}

/// What a tap tells, by event type and state.
fn told(shop: &Shop) -> Vec<(String, String)> {
    let text = shop.read("out");
    let whole = lines(text.rsplit_once('\n').map_or("", |(whole, _)| whole));
    let word = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
    whole.iter().map(|one| (word(one, "event_type"), word(one, "state"))).collect()
}

#[test]
fn a_tap_tells_how_it_went_on_with_events_that_wait_for_long() {
    let shop = Shop::new();
    let _tap = shop.background(&["tap", "--every", "100ms", "--output", "json"]);
    // It takes note of what is there before it looks on.
    std::thread::sleep(std::time::Duration::from_secs(5));
    insert_made_before(&shop, "Slow", 10);
    let is_told = |kind: &str, state: &str| told(&shop).contains(&(kind.into(), state.into()));
    shop.wait_until("written", || is_told("Slow", "pending"));
    // Longer than what is new is looked at.
    std::thread::sleep(std::time::Duration::from_secs(7));
    shop.expect(0, &["relay", "--drain"]);
    shop.wait_until("published", || is_told("Slow", "published"));
    assert_eq!(told(&shop).len(), 2, "each state once: {:?}", told(&shop));
}

#[test]
fn a_tap_tells_what_fails_however_old_it_is() {
    let shop = Shop::new();
    insert_made_before(&shop, "Old", 3600);
    shop.configure("topic = \"{header.missing}\"");
    shop.expect(1, &["relay", "--drain"]);
    let _tap = shop.background(&["tap", "--every", "100ms", "--output", "json"]);
    std::thread::sleep(std::time::Duration::from_secs(5));
    insert_made_before(&shop, "Older", 7200);
    shop.expect(1, &["relay", "--drain"]);
    let is_told = |kind: &str, state: &str| told(&shop).contains(&(kind.into(), state.into()));
    shop.wait_until("it died", || is_told("Older", "dead"));
    assert!(!is_told("Old", "dead"), "it was so before");
    shop.configure("");
    shop.expect(0, &["dead", "retry", "--all", "--yes"]);
    shop.expect(0, &["relay", "--drain"]);
    shop.wait_until("both leave", || is_told("Old", "published") && is_told("Older", "published"));
}

#[test]
fn status_looks_again_and_ctrl_c_ends_it_well() {
    let shop = Shop::new();
    let mut watching = shop.background(&["status", "--watch", "100ms"]);
    let looks = || shop.read("out").matches("PIPELINE").count();
    shop.wait_until("two looks", || looks() >= 2);
    shop.insert_of_type("1", "New");
    shop.wait_until("it is seen", || {
        let rows = shop.read("out");
        rows.lines().any(|line| line.split_whitespace().take(2).eq(["orders", "1"]))
    });
    watching.signal("INT");
    assert!(watching.0.wait().unwrap().success());
}

#[test]
fn top_has_rates_by_pipeline_and_aggregate_type() {
    let shop = Shop::new();
    let mut top = shop.background(&["top", "--every", "300ms"]);
    shop.wait_until("a look", || shop.read("out").contains("PUBLISHED/S"));
    shop.insert_of_type("1", "New");
    let is_busy = |line: &str| line.split_whitespace().take(2).eq(["orders", "order"]);
    shop.wait_until("it is busy", || shop.read("out").lines().any(is_busy));
    top.signal("INT");
    assert!(top.0.wait().unwrap().success());
}

#[test]
fn the_life_of_an_event_goes_from_the_outbox_to_the_effect() {
    let shop = Shop::new();
    shop.insert_of_type("1", "OrderPlaced");
    let id = shop.json(&["events", "list"])["events"][0]["id"].as_str().unwrap().to_owned();
    let told = shop.expect(0, &["events", "show", &id]);
    assert!(told.contains("written") && told.contains("waits to be published"), "{told}");
    shop.expect(0, &["relay", "--drain"]);
    shop.execute(&format!(
        "INSERT INTO semel_inbox (consumer, message_id, processed_at) VALUES
         ('payments', '{id}', 1790000000000000), ('emails', '{id}', 1790000001000000),
         ('other', '00000000-0000-7000-8000-000000000000', 1)"
    ));
    let show = ["events", "show", &id, "--inbox", "sqlite://shop.db"];
    let life = shop.json(&show)["life"].clone();
    let steps: Vec<_> =
        life.as_array().unwrap().iter().map(|step| step["what"].as_str().unwrap()).collect();
    let expected =
        ["written", "published: the sink confirmed it", "applied by payments", "applied by emails"];
    assert_eq!(steps, expected);
}

/// Two fail and die, are retried and die again, are retried once more and are published: what the relay made of
/// them before is not known any more, and who had it begin anew is.
#[test]
fn the_life_of_an_event_tells_what_operators_did_to_it() {
    let shop = Shop::new();
    shop.configure("topic = \"{header.missing}\"");
    shop.insert_of_type("1", "OrderPlaced");
    shop.insert_of_type("2", "OrderPaid");
    shop.expect(1, &["relay", "--drain"]);
    let ids = shop.json(&["events", "list"])["events"].clone();
    let [first, second] = [0, 1].map(|place| ids[place]["id"].as_str().unwrap().to_owned());
    let life = |id: &str| -> Vec<String> {
        let life = shop.json(&["events", "show", id])["life"].clone();
        life.as_array().unwrap().iter().map(|step| step["what"].as_str().unwrap().into()).collect()
    };
    let died = life(&first);
    assert_eq!(died.len(), 3, "written, tried, dead: {died:?}");
    shop.expect(0, &["dead", "retry", &first]);
    shop.expect(1, &["relay", "--drain"]);
    shop.configure("");
    shop.expect(0, &["dead", "retry", "--all", "--yes", "--type", "OrderPlaced"]);
    shop.expect(0, &["relay", "--drain"]);

    let lived = life(&first);
    let [written, by_id, by_kind, published] = &lived[..] else { panic!("{lived:?}") };
    assert_eq!((written.as_str(), published.as_str()), ("written", PUBLISHED));
    let (how, who) = by_id.split_once(" by ").unwrap();
    assert!(how == "retried" && who.contains('@'), "{by_id}");
    let expected =
        format!("perhaps retried by {who}, who chose state:dead event:OrderPlaced: 1 event");
    assert_eq!(*by_kind, expected);
    let told = shop.expect(0, &["events", "show", &first]);
    let line = told.lines().find(|line| line.ends_with(by_id)).expect(&told);
    assert!(line.trim_start().starts_with("20"), "it has its time: {line}");
    let other = life(&second);
    assert!(!other.iter().any(|step| step.contains(" by ")), "nobody touched it: {other:?}");
}

const PUBLISHED: &str = "published: the sink confirmed it";
