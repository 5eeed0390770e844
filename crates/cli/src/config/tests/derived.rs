//! What is derived from the readers: schema, documentation, fingerprints; several files; tests of
//! routing.

use super::*;

#[test]
fn every_key_is_documented() {
    let explored = schema::Explored::new();
    let missing: Vec<_> = explored
        .keys()
        .filter(|asked| manual::look_up(asked).is_none())
        .map(|asked| format!("{} {:?} {}", asked.path, asked.variant, asked.key))
        .collect();
    assert!(missing.is_empty(), "not in the documentation: {missing:#?}");
    assert!(explored.keys().count() > 60);
}

/// What a reader no longer asks for is refused, and must not stay in the documentation.
#[cfg(feature = "full")]
#[test]
fn every_key_that_is_documented_is_asked_for() {
    let unasked = manual::unasked(schema::Explored::new().keys());
    assert!(unasked.is_empty(), "in the documentation alone: {unasked:#?}");
}

#[test]
fn the_schema_has_every_section() {
    let schema = json_schema();
    let sections: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    let mut known: Vec<_> =
        SECTIONS.iter().filter(|kind| **kind != "proxy" || cfg!(feature = "proxy")).collect();
    known.sort();
    assert_eq!(sections, known);
}

/// What the readers refuse, the schema refuses too, as far as a schema can.
#[test]
fn the_schema_refuses_what_is_wrong() {
    let schema = jsonschema::validator_for(&json_schema()).unwrap();
    let is_valid = |text: &str| schema.is_valid(&toml::from_str(text).unwrap());
    assert!(is_valid(SMALLEST));
    let wrong = [
        SMALLEST.replace("url =", "ulr ="),
        SMALLEST.replace("[sink.out]", "url_file = \"x\"\n[sink.out]"),
        SMALLEST.replace("\"file\"", "\"fiel\""),
        SMALLEST.replace("path = \"events.ndjson\"", "path = 7"),
        SMALLEST.replace("path = \"events.ndjson\"", ""),
        SMALLEST.replace("[sink.out]", "batch = 0\n[sink.out]"),
        SMALLEST.replace("[sink.out]", "poll_interval = \"fast\"\n[sink.out]"),
        SMALLEST.replace("[sink.out]", "mode = \"auot\"\n[sink.out]"),
        format!("{SMALLEST}retry = {{ attemps = 3 }}"),
        format!("{SMALLEST}retry = \"webhok\""),
        format!("{SMALLEST}[limits]\npayload = \"1M\""),
        format!("{SMALLEST}[pipelin.x]"),
    ];
    for text in wrong {
        assert!(!is_valid(&text), "{text}");
    }
    let right = [
        "retry = { schedule = [\"0s\", \"1s\"], attempts = 2 }",
        "retry = \"webhook\"",
        "headers = { any = \"x\" }",
        "retry = { schedule = \"${SCHEDULE}\" }",
    ];
    for line in right {
        assert!(is_valid(&format!("{SMALLEST}{line}\n")), "{line}");
    }
}

#[test]
fn files_of_a_folder_are_one_configuration_and_nothing_is_said_twice() {
    let environment = Environment { variable: &|_| None, all: Vec::new() };
    let (source, rest) = SMALLEST.split_at(SMALLEST.find("[sink.out]").unwrap());
    let source = source.replace("${FILE}", "shop.db");
    let more = "[sink.other]\ntype = \"stdout\"\n[limits]\npayload = \"1MiB\"\n";
    let files = [("a.toml", source.as_str()), ("b.toml", rest), ("c.toml", more)];
    assert_eq!(parse_files(&files, &environment).unwrap().pipelines.len(), 1);

    let again = "\n[source.orders]\nurl = \"sqlite://b.db\"\n[limits]\npayload = \"2MiB\"\n";
    let files = [files[0], files[1], files[2], ("d.toml", again)];
    let found = parse_files(&files, &environment).unwrap_err().lines();
    let expected = [
        "d.toml:2  source.orders is in a.toml:1 already; keep one",
        "d.toml:5  limits.payload is in c.toml:4 already; keep one",
    ];
    assert_eq!(found, expected);
}

#[test]
fn another_fingerprint_is_another_configuration() {
    let print = |text: &str| parse(text).unwrap().pipelines[0].fingerprint;
    let usual = print(SMALLEST);
    assert_eq!(usual, print(&format!("# a comment\n{SMALLEST}\n[sink.spare]\ntype = \"stdout\"")));
    let changed = [
        SMALLEST.replace("events.ndjson", "other.ndjson"),
        SMALLEST.replace("sqlite://${FILE}", "sqlite://other.db"),
        format!("{SMALLEST}topic = \"x\""),
        format!("{SMALLEST}[limits]\npayload = \"1MiB\""),
        format!("{SMALLEST}[retention]\nkeep = \"1d\""),
        format!("{SMALLEST}[retention]\n"),
    ];
    for text in changed {
        assert_ne!(usual, print(&text), "{text}");
    }
    // However the list of sinks is written, each of them belongs to it.
    let second = format!("{SMALLEST}[sink.audit]\ntype = \"file\"\npath = \"audit.ndjson\"\n");
    for to in ["out,audit", "out, audit", "audit ,out"] {
        let print = |text: &str| {
            let to = [("SEMEL_PIPELINE__ORDERS__TO", to)];
            parse_with(text, &to).unwrap().pipelines[0].fingerprint
        };
        for file in ["events.ndjson", "audit.ndjson"] {
            let other = second.replace(file, "other.ndjson");
            assert_ne!(print(&second), print(&other), "{to}: {file}");
        }
    }
}

#[test]
fn tests_of_routing_say_what_differs() {
    let trial = |lines: &str| {
        let text = format!(
            "{SMALLEST}topic = \"{{aggregate_type}}.{{header.region}}\"\nevent_types = [\"Order*\"]\n\
             [[test]]\nname = \"t\"\n{lines}"
        );
        let config = parse(&text).unwrap();
        config.trials[0].run(&config.pipelines)
    };
    let order =
        "given = { aggregate_type = \"order\", aggregate_id = \"7\", event_type = \"OrderPlaced\"";
    let eu = format!("{order}, headers = {{ Region = \"eu\" }} }}");
    let as_expected = "expect = { to = \"out\", topic = \"order.eu\", key = \"7\", headers = { region = \"eu\" } }";
    assert!(trial(&format!("{eu}\n{as_expected}")).is_empty());
    let wrong = trial(&format!(
        "{eu}\nexpect = {{ topic = \"order.us\", key = \"8\", to = [\"out\", \"x\"] }}"
    ));
    let expected = [
        "the topic is \"order.eu\", not \"order.us\"",
        "the key is \"7\", not \"8\"",
        "the sink is \"out\", not \"out, x\"",
    ];
    assert_eq!(wrong, expected);
    assert!(trial(&format!("{order} }}\nexpect = {{ outcome = \"dead\" }}")).is_empty());
    let wrong = trial(&format!("{order} }}\nexpect = {{ topic = \"order.eu\" }}"));
    assert!(wrong[0].contains("the event is dead (E-ROUTE-HEADER"), "{wrong:?}");
    let other = eu.replace("OrderPlaced", "PaymentTaken");
    assert!(trial(&format!("{other}\nexpect = {{ outcome = \"passed_over\" }}")).is_empty());
}
