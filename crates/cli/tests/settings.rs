//! What the configuration says about a relay is what the relay does.

use std::fs;

use crate::shop::Shop;

const RETENTION: &str = "[retention]\nkeep = \"0s\"\nevery = \"1s\"\nchunk = 2";

#[test]
fn old_events_go_while_the_relay_runs() {
    let shop = Shop::new();
    shop.configure(RETENTION);
    for number in 0..5 {
        shop.insert("42", &number.to_string());
    }
    let _relay = shop.relay();
    shop.wait_until("all deleted", || {
        shop.published().len() == 5 && shop.count("published") == 0 && shop.count("pending") == 0
    });
    shop.wait_until("told", || shop.log().contains("deleted events older than 0s"));
    shop.insert("42", "5");
    shop.wait_until("deleted again", || {
        shop.published().len() == 6 && shop.count("published") == 0
    });
}

#[test]
fn published_events_go_at_once_where_the_configuration_says_so() {
    let shop = Shop::new();
    shop.configure("[retention]\ndelete = \"on_publish\"");
    let _relay = shop.relay();
    for number in 0..300 {
        shop.insert("42", &number.to_string());
    }
    shop.wait_until("all deleted", || {
        shop.published().len() == 300 && shop.count("published") == 0
    });
    let arrived: Vec<_> = shop.published().iter().map(|event| event["payload"].as_u64()).collect();
    assert_eq!(arrived, (0..300).map(Some).collect::<Vec<_>>(), "each once, in order");
}

#[test]
fn old_events_that_cannot_be_deleted_stop_no_relay() {
    let shop = Shop::new();
    shop.configure(RETENTION);
    shop.execute(
        "CREATE TRIGGER kept BEFORE DELETE ON semel_outbox
         BEGIN SELECT RAISE(ABORT, 'kept by law'); END",
    );
    shop.insert("42", "1");
    let mut relay = shop.relay();
    shop.wait_until("told twice", || shop.log().matches("kept by law").count() >= 2);
    shop.insert("42", "2");
    shop.wait_until("published after that", || shop.published().len() == 2);
    assert!(relay.0.try_wait().unwrap().is_none(), "it still runs");
    assert_eq!(shop.count("published"), 2);
}

#[test]
fn an_event_over_the_limit_is_a_dead_letter_until_the_limit_is_raised() {
    let shop = Shop::new();
    shop.insert("large", &format!("\"{}\"", "x".repeat(2000)));
    shop.insert("small", "1");
    shop.configure("[limits]\npayload = \"1KiB\"");
    shop.expect(1, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 1, "the others go on");
    let dead = shop.json(&["dead", "list"]);
    let error = dead["events"][0]["error"].as_str().unwrap();
    assert!(error.contains("the payload is larger than the limit of 1024 bytes"), "{error}");
    shop.configure("[limits]\npayload = \"4KiB\"");
    shop.expect(0, &["dead", "retry", "--all", "--yes"]);
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 2);
}

#[test]
fn a_dead_letter_is_skipped_where_the_pipeline_says_so() {
    let shop = Shop::new();
    shop.insert("42", &format!("\"{}\"", "x".repeat(2000)));
    shop.insert("42", "1");
    shop.configure("retry = { on_dead = \"skip\" }\n[limits]\npayload = \"1KiB\"");
    shop.expect(1, &["relay", "--drain"]);
    assert_eq!(shop.published().len(), 1, "its aggregate goes on without it");
    assert_eq!((shop.count("dead"), shop.count("pending")), (1.into(), 0.into()));
}

#[test]
fn the_environment_overrides_the_file() {
    let shop = Shop::new();
    shop.insert("42", "1");
    let mut command = shop.command(&["relay", "--drain"]);
    let output = command.env("SEMEL_SINK__OUT__PATH", "elsewhere.ndjson").output().unwrap();
    assert!(output.status.success());
    assert_eq!(fs::read_to_string(shop.file("elsewhere.ndjson")).unwrap().lines().count(), 1);
    assert!(!shop.file("events.ndjson").exists());

    let mut command = shop.command(&["relay", "--drain"]);
    let output = command.env("SEMEL_SINK__OUT__PAHT", "x").output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8(output.stderr).unwrap();
    let expected = "SEMEL_SINK__OUT__PAHT  [sink.out] has no key \"paht\"; did you mean \"path\"?";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn values_out_of_bounds_start_nothing() {
    let shop = Shop::new();
    shop.configure("retry = { attempts = 0 }\n[limits]\npayload = \"1KB\"\n[retention]\nkep = 1");
    let message = shop.refused(78, &["relay"]);
    let parts = [
        "3 mistakes in semel.toml",
        "semel.toml:9  [pipeline.orders.retry] attempts: must be from 1 to 1000, not 0",
        "semel.toml:11  [limits] payload: must be from 1KiB to 1GiB",
        "semel.toml:13  [retention] has no key \"kep\"; did you mean \"keep\"?",
    ];
    for part in parts {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }
}

#[test]
fn the_help_of_the_relay_names_the_sinks() {
    let help = Shop::new().expect(0, &["relay", "--help"]);
    assert!(help.contains("Sinks:") && help.contains("file ") && help.lines().count() <= 60);
}
