//! `semel config`.

use std::fs;

use serde_json::Value;

use crate::shop::{Shop, all};

#[test]
fn a_mistake_is_shown_with_its_line_and_a_mark_and_without_its_value() {
    let shop = Shop::new();
    shop.configure("retry = { attempts = 0 }\nkey = \"{hunter2\"");
    let message = shop.refused(78, &["config", "check"]);
    let expected = "\
  where   semel.toml:9  [pipeline.orders.retry] attempts: must be from 1 to 1000, not 0
            9 | retry = { attempts = …
              |           ^^^^^^^^
  where   semel.toml:10  [pipeline.orders] key: ";
    assert!(message.contains(expected), "{message}");
    assert!(message.contains("10 | key = …\n"), "{message}");
}

#[test]
fn a_folder_is_one_configuration() {
    let shop = Shop::new();
    let text = shop.read("semel.toml");
    let (source, rest) = text.split_at(text.find("[sink.out]").unwrap());
    fs::create_dir(shop.file("conf")).unwrap();
    fs::write(shop.file("conf/10-source.toml"), source).unwrap();
    fs::write(shop.file("conf/20-rest.toml"), rest).unwrap();
    fs::write(shop.file("conf/.20-rest.toml.swp"), "[broken").unwrap();
    fs::write(shop.file("conf/notes.txt"), "[broken").unwrap();
    shop.insert_of_type("42", "OrderPlaced");
    shop.expect(0, &["relay", "--config", "conf", "--drain"]);
    assert_eq!(shop.published().len(), 1);

    fs::write(shop.file("conf/30-more.toml"), source).unwrap();
    let message = shop.refused(78, &["config", "check", "--config", "conf"]);
    let expected = "conf/30-more.toml:1  source.orders is in conf/10-source.toml:1 already";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn what_holds_is_shown_with_who_says_so() {
    let shop = Shop::new();
    fs::write(shop.file("url"), "sqlite://shop.db\n").unwrap();
    let text = shop.read("semel.toml").replace("url = \"sqlite://shop.db\"", "url_file = \"url\"");
    shop.write_config(&text.replace("events.ndjson", "${FILE:-events.ndjson}"));
    let mut command = shop.command(&["config", "show"]);
    let output = command.env("SEMEL_SOURCE__ORDERS__BATCH", "7").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| {
        let begins = |line: &&str| line.split_whitespace().next() == Some(key);
        let found = shown.lines().find(begins).unwrap_or_else(|| panic!("{key} in {shown}"));
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("url"), "url = *** # semel.toml:2, file url");
    assert_eq!(line("batch"), "batch = 7 # SEMEL_SOURCE__ORDERS__BATCH");
    assert_eq!(line("path"), "path = \"events.ndjson\" # semel.toml:5, ${FILE}");
    assert_eq!(line("poll_interval"), "poll_interval = \"100ms\" # default");
    assert_eq!(line("topic"), "topic = \"{aggregate_type}.events\" # default");
    assert_eq!(line("to"), "to = \"out\" # semel.toml:8");

    let all = shop.json(&["config", "show"]);
    let url = all.as_array().unwrap().iter().find(|one| one["key"] == "url").unwrap();
    assert_eq!((&url["value"], &url["secret"]), (&"***".into(), &true.into()));
}

/// What is shown can be put into a file; what can only be told in words is a comment.
#[test]
fn what_is_shown_is_a_configuration() {
    let shop = Shop::new();
    shop.configure(
        "[limits]\n[retention]\n[sink.hook]\ntype = \"webhook\"\nurl = \"https://a.example\"",
    );
    let shown = shop.expect(0, &["config", "show"]);
    assert!(
        shown.contains("\n# in_flight_events: 1000, or batch if that is more  # default\n"),
        "{shown}"
    );
    let again = shown.replace("= ***", "= \"sqlite://shop.db\"");
    let parsed: toml::Table = again.parse().unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(parsed["source"]["orders"]["batch"].as_integer(), Some(500));
    assert_eq!(parsed["limits"]["in_flight_bytes"].as_str(), Some("16MiB"));
    assert_eq!(parsed["sink"]["hook"]["timeout"].as_str(), Some("10s"));
}

#[test]
fn tests_of_the_routing_are_run() {
    let shop = Shop::new();
    let test = |topic: &str| {
        format!(
            "[[test]]\nname = \"orders go to {topic}\"\n\
             given = {{ aggregate_type = \"order\", aggregate_id = \"7\", event_type = \"X\" }}\n\
             expect = {{ topic = {topic:?}, key = \"7\" }}\n"
        )
    };
    shop.configure(&test("order.events"));
    let told = shop.expect(0, &["config", "test"]);
    assert_eq!(told, "ok      orders go to order.events\n1 passed, 0 failed\n");
    shop.configure(&(test("order.events") + &test("orders")));
    let told = shop.expect(1, &["config", "test"]);
    assert!(told.contains("the topic is \"order.events\", not \"orders\""), "{told}");
    assert!(told.ends_with("1 passed, 1 failed\n"), "{told}");
}

#[test]
fn the_schema_is_json_and_names_the_sinks() {
    let schema: Value =
        serde_json::from_str(&Shop::new().expect(0, &["config", "schema"])).unwrap();
    let types = schema["properties"]["sink"]["additionalProperties"]["oneOf"].as_array().unwrap();
    let names: Vec<_> = types.iter().map(|one| &one["properties"]["type"]["const"]).collect();
    assert!(names.contains(&&"file".into()) && names.contains(&&"webhook".into()), "{names:?}");
}

/// The configuration that the containers start with.
#[test]
#[cfg(all(feature = "kafka", feature = "page", feature = "postgres"))]
fn the_configuration_of_the_compose_file_is_right() {
    let shop = Shop::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/docker/semel.toml");
    let mut command = shop.command(&["config", "check", "--config", file]);
    command.env("DATABASE_URL", "postgres://postgres@db/shop");
    let without = command.output().unwrap();
    assert!(!without.status.success(), "everybody on the network would be let in");
    let output = command.env("SEMEL_API_TOKEN", "0123456789abcdef").output().unwrap();
    assert!(output.status.success(), "{}", crate::shop::all(&output));
}

/// The command that the compose file asks in vain when there is no relay, or no token.
#[test]
#[cfg(feature = "page")]
fn the_health_check_of_the_compose_file_tells_a_relay_that_works() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/docker/compose.yaml");
    let compose = std::fs::read_to_string(file).unwrap();
    let line = compose.lines().find(|line| line.contains("/usr/bin/semel")).unwrap();
    let (_, words) = line.split_once("test: ").unwrap();
    let words: Vec<String> = serde_json::from_str(words).unwrap();
    assert_eq!(words[..2], ["CMD", "/usr/bin/semel"]);

    let (shop, token) = (Shop::new(), "0123456789abcdef");
    let http = "[http]\nlisten = '127.0.0.1:0'\n[http.access.operator]\nrole = 'operator'\n";
    shop.configure(&format!("{http}token = '{token}'"));
    let mut relay = shop.relay();
    let address = shop.page();
    let healthy = |token: &str| {
        let arguments = words[2..].iter().map(|word| word.replace("127.0.0.1:9464", &address));
        let mut command = shop.command(&[]);
        let command = command.args(arguments).env("SEMEL_API_TOKEN", token);
        command.output().unwrap().status.success()
    };
    assert!(healthy(token) && !healthy("another token, as long"));
    relay.signal("TERM");
    relay.0.wait().unwrap();
    assert!(!healthy(token));
}
