//! `semel init`.

use std::fs;

use crate::shop::{Shop, all};

#[test]
fn a_first_configuration_is_right_and_never_overwrites() {
    let shop = Shop::new();
    fs::remove_file(shop.file("semel.toml")).unwrap();
    let mut command = shop.command(&["init"]);
    let output = command.env("DATABASE_URL", "sqlite://shop.db").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("SQLite (from $DATABASE_URL)"), "{told}");

    // What goes on here beside it decides about the sink, so let it be a file.
    let text = shop.read("semel.toml");
    let begin = text.find("type = ").unwrap();
    let end = text.find("[pipeline.orders]").unwrap();
    let sink = "type = \"file\"\npath = \"events.ndjson\"\n\n";
    fs::write(shop.file("semel.toml"), format!("{}{sink}{}", &text[..begin], &text[end..]))
        .unwrap();
    shop.insert_of_type("42", "OrderPlaced");
    for arguments in [&["config", "check"][..], &["config", "test"], &["relay", "--drain"]] {
        let output =
            shop.command(arguments).env("DATABASE_URL", "sqlite://shop.db").output().unwrap();
        assert!(output.status.success(), "{}", all(&output));
    }
    assert_eq!(shop.published().len(), 1);

    let before = shop.read("semel.toml");
    let message = shop.refused(78, &["init"]);
    assert!(message.contains("E-INIT-EXISTS") && message.contains("--config"), "{message}");
    assert_eq!(shop.read("semel.toml"), before);
}

#[test]
fn a_configuration_of_debezium_server_is_converted() {
    let shop = Shop::new();
    let properties = "\
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.database.hostname=db1
debezium.source.database.password=hunter2
debezium.source.snapshot.mode=never
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.sink.type=http
debezium.sink.http.url=https://example.com/events
";
    fs::write(shop.file("application.properties"), properties).unwrap();
    let from = ["init", "--from", "application.properties", "--config", "new.toml"];
    let told = shop.expect(0, &from);
    assert!(told.contains("debezium.source.snapshot.mode = never"), "{told}");
    assert!(!shop.read("new.toml").contains("hunter2"));
    let check = ["config", "check", "--config", "new.toml"];
    let output = shop.command(&check).env("DATABASE_PASSWORD", "x").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
}
