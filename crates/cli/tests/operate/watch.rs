//! `semel status --watch`, `top`, `tap` and the life of an event.

use crate::shop::{Shop, lines};

#[test]
fn a_tap_shows_events_as_they_pass_and_changes_nothing() {
    let shop = Shop::new();
    shop.insert_of_type("1", "Before");
    let tap = ["tap", "--every", "100ms", "--count", "2", "--output", "json", "--type", "Now"];
    let mut running = shop.background(&tap);
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
