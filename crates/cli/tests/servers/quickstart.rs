//! The quickstarts, followed to the letter: their configuration, and every command of theirs. That of
//! NATS ends on the page, so the tests of the page follow it.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_testkit::services::{Private, Service, python, service};

use super::server::Server;

const STATUS: &str = "---- status ----";

/// Follows a page with these variables, of which one says where its broker is; gives what the commands printed.
async fn follow(page: &str, variables: &[(&str, &str)]) -> Option<String> {
    let server = Server::start(Service::Postgres, &format!("quickstart_{page}")).await?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/quickstart").join(format!("{page}.md"))).unwrap();
    let [configuration] = blocks(&text, "toml")[..] else { panic!("{page} has one configuration") };
    fs::write(server.file("semel.toml"), configuration).unwrap();

    let commands = blocks(&text, "sh").concat();
    // Where the servers are is the reader's to say, and here ours.
    let said = commands.lines().filter(|line| !line.starts_with("export "));
    let mut script: String = said.flat_map(|line| [line, "\n"]).collect();
    script.push_str(&format!("echo {STATUS}; semel status --output json"));
    let semel = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap();
    let clients = env::var_os("SEMEL_TEST_PYTHON").map(PathBuf::from);
    let clients = clients.iter().filter_map(|python| python.parent()).map(Path::to_owned);
    let tools = [semel.to_owned(), root.join("scripts/kafka")].into_iter().chain(clients);
    let path = env::join_paths(tools.chain(env::split_paths(&env::var_os("PATH")?)));
    let output = Command::new("timeout")
        .args(["120", "sh", "-eu", "-c", &script])
        .current_dir(server.file(""))
        .env("PATH", path.unwrap())
        .env("DATABASE_URL", &server.url)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page}: {}\n{said}{complained}", output.status);
    let (said, status) = said.split_once(STATUS).unwrap();
    let status: serde_json::Value = serde_json::from_str(status).unwrap();
    assert_eq!(status[0]["published"], 1, "{page}: {said}{complained}");
    server.remove().await;
    Some(said.to_owned())
}

/// The code of this language, in the order of the page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[tokio::test]
async fn kafka() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let Some(said) = follow("kafka", &[("KAFKA_BROKERS", &brokers)]).await else { return };
    assert!(said.contains("42 {\"total\": 99}"), "{said}");
}

#[tokio::test]
async fn rabbitmq() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    follow("rabbitmq", &[("AMQP_URL", &url)]).await;
}

#[tokio::test]
async fn redis() {
    let Some(url) = service(Service::Redis) else { return };
    let Some(said) = follow("redis", &[("REDIS_URL", &url)]).await else { return };
    assert!(said.contains("OrderPlaced") && said.contains("{\"total\": 99}"), "{said}");
}

#[tokio::test]
async fn mqtt() {
    // What others keep there would be read as well.
    let Some(broker) = Private::start(Service::Mqtt) else { return };
    let Some(said) = follow("mqtt", &[("MQTT_URL", broker.address())]).await else { return };
    assert!(said.contains("shop/order/OrderPlaced {\"total\": 99}"), "{said}");
    assert!(said.contains("semel-event-id:"), "{said}");
}

#[tokio::test]
async fn aws() {
    // Its command line is one of the Python clients.
    let Some(_) = python() else { return };
    // A queue of the same name may be with others, and have what they put there.
    let Some(server) = Private::start(Service::Aws) else { return };
    let variables = [
        ("SQS_URL", server.address()),
        ("AWS_DEFAULT_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let Some(said) = follow("aws", &variables).await else { return };
    let (_, message) = said.split_once("\"Messages\"").expect("a message");
    assert!(message.contains(r#"{\"total\": 99}"#), "{message}");
    assert!(message.contains("semel-event-id") && message.contains("OrderPlaced"), "{message}");
    assert!(message.contains(r#""MessageGroupId": "order/42""#), "{message}");
}

#[tokio::test]
async fn webhook() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/");
    let Some(said) = follow("webhook", &[("HOOK_URL", &url)]).await else { return };
    assert!(said.contains("OrderPlaced {\"total\": 99}"), "{said}");
}
