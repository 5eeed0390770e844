//! A marker in every secret is in nothing that the program says, whatever goes wrong.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::shop::{Running, Shop, all};

pub(super) const MARKER: &str = "c4n4ry5ecret";

/// Sinks as they might be, each secret of which is the marker, or holds it. Nothing answers there.
pub(super) const SINKS: &[(&str, &str)] = &[
    (
        "kafka",
        "brokers = '127.0.0.1:1'\nsasl = { mechanism = 'plain', user = 'me', password = 'MARKER' }",
    ),
    ("rabbitmq", "url = 'amqp://me:MARKER@127.0.0.1:1'\nuser = 'me'\npassword = 'MARKER'"),
    (
        "nats",
        "url = 'nats://me:MARKER@127.0.0.1:1'\nuser = 'me'\npassword = 'MARKER'\ntoken = 'MARKER'",
    ),
    ("redis", "url = 'redis://me:MARKER@127.0.0.1:1'\nuser = 'me'\npassword = 'MARKER'"),
    ("mqtt", "url = 'mqtt://me:MARKER@127.0.0.1:1'\nuser = 'me'\npassword = 'MARKER'"),
    ("sqs", AWS),
    ("sns", SNS),
    ("eventbridge", AWS),
    (
        "webhook",
        "url = 'https://127.0.0.1:1/MARKER?key=MARKER'\nallow = ['127.0.0.1']\n\
         secret = 'whsec_c4n4ry5ecretc4n4ry5ecretc4n4ry5ecret'\n\
         next_secret = 'whsec_c4n4ry5ecretc4n4ry5ecretc4n4ry5ecret'\nauthorization = 'Bearer MARKER'",
    ),
];
const AWS: &str = "region = 'eu-central-1'\nendpoint_url = 'http://127.0.0.1:1'\n\
                   access_key_id = 'me'\nsecret_access_key = 'MARKER'\nsession_token = 'MARKER'";
const SNS: &str = "region = 'eu-central-1'\nendpoint_url = 'http://127.0.0.1:1'\n\
                   access_key_id = 'me'\nsecret_access_key = 'MARKER'\nsession_token = 'MARKER'\n\
                   arn_prefix = 'arn:aws:sns:eu-central-1:123456789012:'";

fn configuration(sink: &str, lines: &str) -> String {
    format!(
        "[source.orders]\nurl = 'sqlite://shop.db'\n[sink.out]\ntype = '{sink}'\n{lines}\n\
         [pipeline.orders]\nfrom = 'orders'\nto = 'out'\ntopic = 'orders'\n"
    )
    .replace("MARKER", MARKER)
}

pub(super) fn is_silent(what: &str, output: &Output) {
    let text = all(output);
    assert!(!text.contains(MARKER), "{what}: {text}");
}

/// The schema knows which keys are secrets: those that may be in a file of their own.
pub(super) fn secrets_of(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if let Some(properties) = schema["properties"].as_object() {
        for (key, value) in properties {
            if properties.contains_key(&format!("{key}_file")) && value["type"] == "string" {
                found.insert(key.clone());
            }
            found.extend(secrets_of(value));
        }
    }
    found
}

#[test]
fn no_secret_of_a_sink_is_ever_said() {
    let shop = Shop::new();
    shop.insert_of_type("1", "OrderPlaced");
    let schema: Value = serde_json::from_str(&shop.expect(0, &["config", "schema"])).unwrap();
    let kinds = schema["properties"]["sink"]["additionalProperties"]["oneOf"].as_array().unwrap();
    let (mut relays, mut asking) = (Vec::new(), Vec::new());
    for kind in kinds {
        let name = kind["properties"]["type"]["const"].as_str().unwrap();
        let secrets = secrets_of(kind);
        let Some((_, lines)) = SINKS.iter().find(|(known, _)| *known == name) else {
            assert!(secrets.is_empty(), "{name} has secrets that are not tried: {secrets:?}");
            continue;
        };
        for key in &secrets {
            assert!(lines.contains(&format!("{key} = '")), "{name}: {key} is not tried");
        }
        let file = format!("{name}.toml");
        fs::write(shop.file(&file), configuration(name, lines)).unwrap();
        for command in [&["config", "check"][..], &["config", "show"], &["status"]] {
            let output = shop.command(command).args(["--config", &file]).output().unwrap();
            assert!(output.status.success(), "{name}: {}", all(&output));
            is_silent(name, &output);
        }
        wrong_values_are_not_repeated(&shop, name, lines, &secrets);
        relays.push((name.to_owned(), start_relay(&shop, name)));
        for command in [&["verify"][..], &["dead", "list", "--sink", "out", "--queue", "dead"]] {
            let mut command = shop.command(command);
            let command = command.args(["--config", &file]).env("SEMEL_SINK__OUT__TIMEOUT", "1s");
            asking.push((name.to_owned(), start(command.env("SEMEL_LOG", "debug"))));
        }
    }
    for (name, child) in asking {
        is_silent(&name, &child.wait_with_output().unwrap());
    }
    for (name, _) in &relays {
        shop.wait_until(name, || shop.read(&format!("{name}.log")).len() > 20);
    }
    // Long enough to fail, to wait and to fail again; what they say is in files.
    std::thread::sleep(Duration::from_secs(3));
    let mut leaks = Vec::new();
    for (name, mut relay) in relays {
        relay.signal("TERM");
        relay.signal("TERM");
        relay.0.wait().unwrap();
        let (out, log) = (shop.read(&format!("{name}.out")), shop.read(&format!("{name}.log")));
        let said = log.lines().chain(out.lines()).filter(|line| line.contains(MARKER));
        leaks.extend(said.map(|line| format!("{name}: {line}")));
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
}

/// Some servers refuse the login, others believe everybody: what is said after it holds no secret either.
#[cfg(feature = "full")]
#[test]
fn no_secret_of_a_sink_that_answers_is_ever_said() {
    use semel_testkit::services::{Service, service};
    let shop = Shop::new();
    shop.insert_of_type("1", "OrderPlaced");
    let servers = [
        ("sqs", Service::Aws),
        ("rabbitmq", Service::Rabbitmq),
        ("nats", Service::Nats),
        ("redis", Service::Redis),
        ("mqtt", Service::Mqtt),
    ];
    let mut started = Vec::new();
    for (kind, server) in servers {
        let Some(url) = service(server) else { continue };
        let text = configuration(kind, &with_marker(kind, &url));
        let text = text.replace("[pipeline.orders]", &format!("[pipeline.{kind}]"));
        // Others use these servers.
        let topic = format!("topic = 'canary-{}'", std::process::id());
        let text = text.replace("topic = 'orders'", &topic);
        let file = format!("{kind}.toml");
        fs::write(shop.file(&file), text).unwrap();
        let letters = ["dead", "list", "--sink", "out", "--queue", "dead"];
        for command in [&["relay", "--drain"][..], &["verify"], &letters] {
            let mut command = shop.command(command);
            let command = command.args(["--config", &file]).env("SEMEL_LOG", "debug");
            started.push((kind, start(command)));
        }
    }
    for (kind, child) in started {
        let output = child.wait_with_output().unwrap();
        is_silent(kind, &output);
        assert!(!all(&output).contains("-DOWN]"), "{kind}: {}", all(&output));
    }
}

/// A sink at this address, with the marker where its password goes.
#[cfg(feature = "full")]
fn with_marker(kind: &str, address: &str) -> String {
    if kind == "sqs" {
        return AWS.replace("http://127.0.0.1:1", address);
    }
    let (scheme, place) = address.split_once("://").unwrap();
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    format!("url = '{scheme}://me:MARKER@{place}'")
}

/// A secret of the wrong shape, or of the wrong type, is not in the message about it.
fn wrong_values_are_not_repeated(shop: &Shop, name: &str, lines: &str, secrets: &BTreeSet<String>) {
    for key in secrets {
        for wrong in [format!("'{MARKER}'"), format!("['{MARKER}']"), format!("'${{{MARKER}'")] {
            let begin = lines.find(&format!("{key} = '")).unwrap();
            let value = begin + key.len() + 3;
            let end = value + 1 + lines[value + 1..].find('\'').unwrap() + 1;
            let text = format!("{}{wrong}{}", &lines[..value], &lines[end..]);
            fs::write(shop.file("wrong.toml"), configuration(name, &text)).unwrap();
            let check = ["config", "check", "--config", "wrong.toml"];
            is_silent(&format!("{name} {key} {wrong}"), &shop.command(&check).output().unwrap());
        }
    }
}

fn start_relay(shop: &Shop, name: &str) -> Running {
    let file = |end: &str| fs::File::create(shop.file(&format!("{name}.{end}"))).unwrap();
    // Each has a pipeline of its own name, so that they do not wait for each other.
    let path = shop.file(&format!("{name}.toml"));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("[pipeline.orders]", &format!("[pipeline.{name}]"))).unwrap();
    let mut command = shop.command(&["relay", "--config", &format!("{name}.toml")]);
    let command = command.env("SEMEL_LOG", "debug").stdout(file("out")).stderr(file("log"));
    Running(command.spawn().unwrap())
}

#[test]
fn no_secret_of_a_source_is_ever_said() {
    let shop = Shop::new();
    shop.insert_of_type("1", "OrderPlaced");
    let id = shop.json(&["events", "list"])["events"][0]["id"].as_str().unwrap().to_owned();
    fs::write(shop.file("right.toml"), configuration("file", "path = 'x'")).unwrap();
    let right = ["--config", "right.toml"];
    let urls = [
        "postgres://me:MARKER@127.0.0.1:1/shop?password=MARKER",
        "mysql://me:MARKER@127.0.0.1:1/shop",
        "sqlite://missing/shop.db?key=MARKER",
        "oracle://me:MARKER@db/shop",
        "MARKER",
        "postgres://me:MARKER@[::1/shop",
        "postgres://me:MARKER?x@127.0.0.1:1/shop",
        "postgres://me:x?MARKER#x@127.0.0.1:1/shop",
        "mysql://me@127.0.0.1:1/shop?password=x@MARKER",
        "postgres://me@127.0.0.1:1/shop?sslpassword=MARKER",
    ];
    for url in urls.map(|url| url.replace("MARKER", MARKER)) {
        fs::write(shop.file("url"), &url).unwrap();
        let ways = [format!("url = '{url}'"), "url_file = 'url'".into(), "url = '${URL}'".into()];
        for line in &ways {
            let text =
                configuration("file", "path = 'x'").replace("url = 'sqlite://shop.db'", line);
            shop.write_config(&text);
            for output in ["text", "json"] {
                let show = ["config", "show", "--output", output];
                is_silent(line, &shop.command(&show).env("URL", &url).output().unwrap());
            }
        }
        // Connecting takes its time: all at once.
        let of_config = [&["status"][..], &["check"], &["relay", "--drain"], &["tap"]];
        let of_url = [&["migrate", "status"][..], &["grants"], &["check"]];
        let of_inbox = [&["verify", "--consumer", "bills"][..], &["events", "show", &id]];
        let mut started = Vec::new();
        for arguments in of_config {
            started.push(start(shop.command(arguments).env("URL", &url)));
        }
        for arguments in of_url {
            started.push(start(shop.command(arguments).args(["--database", &url])));
        }
        for arguments in of_inbox {
            started.push(start(shop.command(arguments).args(right).args(["--inbox", &url])));
        }
        started.push(start(&mut shop.command(&["keys", "list", "--store", &url])));
        for child in started {
            is_silent(&url.replace(MARKER, "MARKER"), &child.wait_with_output().unwrap());
        }
    }
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[cfg(feature = "proxy")]
#[test]
fn no_secret_of_the_proxy_is_ever_said() {
    let shop = Shop::new();
    let schema: Value = serde_json::from_str(&shop.expect(0, &["config", "schema"])).unwrap();
    let secrets = secrets_of(&schema["properties"]["proxy"]);
    let known = ["encryption_keys", "fingerprint_secret", "store"].map(String::from);
    assert_eq!(secrets, BTreeSet::from(known));
    let text = format!(
        "[proxy]\nlisten = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:1'\n\
         scope = 'single-tenant'\nstore = 'postgres://me:{MARKER}@127.0.0.1:1/keys'\n\
         fingerprint_secret = '{MARKER}{MARKER}{MARKER}'\n\
         encryption_keys = '{MARKER}{MARKER}{MARKER}AAAAAAA='\n"
    );
    shop.write_config(&text);
    for arguments in [&["config", "check"][..], &["config", "show"], &["proxy"]] {
        let mut command: Command = shop.command(arguments);
        let output = command.args(["--config", "semel.toml"]).output().unwrap();
        is_silent(&format!("{arguments:?}"), &output);
    }
    let upstream = format!("http://me:{MARKER}@127.0.0.1:1/x");
    for wrong in [
        text.replace("postgres://", "oracle://"),
        text.replace("AAAAAAA=", ""),
        text.replace("http://127.0.0.1:1", &upstream),
    ] {
        shop.write_config(&wrong);
        for arguments in [&["config", "check"][..], &["config", "show"], &["proxy"]] {
            let output = shop.command(arguments).args(["--config", "semel.toml"]).output().unwrap();
            is_silent(&format!("{arguments:?}"), &output);
        }
    }
    let options = ["--upstream", &upstream, "--store", "memory:", "--scope", "single-tenant"];
    let output = shop.command(&["proxy"]).args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", all(&output).replace(MARKER, "MARKER"));
    is_silent("--upstream", &output);
}
