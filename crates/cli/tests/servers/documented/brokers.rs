//! What the pages of brokers tell an administrator to type, on brokers of our own.

use std::fs;

use semel_testkit::services::{Private, Service};

use super::run;
use crate::servers::server::Folder;
use crate::shell;

/// On a broker that gives permissions; its anonymous user may do everything.
#[test]
fn permissions_and_topics_of_kafka() {
    let authorizer =
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let options = ["--override", authorizer, "--override", "super.users=User:ANONYMOUS"];
    let Some(kafka) = Private::start_with(Service::Kafka, &options) else { return };
    let commands = commands("kafka");
    assert!(commands.len() >= 8, "{commands:#?}");
    let folder = Folder::new();
    for typed in commands {
        let typed = typed.replace("kafka-1:9092", kafka.address());
        assert!(typed.contains(kafka.address()), "{typed}");
        let (code, said) = run(&folder, &typed);
        assert_eq!(code, 0, "{typed}\n{said}");
    }
    let list = format!("kafka-acls.sh --bootstrap-server {} --list", kafka.address());
    let (_, said) = run(&folder, &list);
    for who in ["User:relay", "User:billing", "semel-orders-progress"] {
        assert!(said.contains(who), "{said}");
    }
}

#[test]
fn a_message_of_mqtt() {
    let Some(broker) = Private::start(Service::Mqtt) else { return };
    let [typed] = &commands("mqtt")[..] else { panic!("the page shows one message") };
    let folder = outbox("mqtt", broker.address(), "topic = \"shop/{aggregate_type}/{event_type}\"");
    let port = broker.address().rsplit_once(':').unwrap().1;
    // A session that is kept, so that it does not matter who comes first.
    let session = format!("-h 127.0.0.1 -p {port} -i reader -c -x 600");
    let (code, said) = run(&folder, &format!("mosquitto_sub -V 5 {session} -t 'shop/#' -q 1 -E"));
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(&folder, &format!("semel relay --drain\n{typed} {session} -C 1 -W 60"));
    assert_eq!(code, 0, "{said}");
    let shown = "shop/order/OrderPlaced {\"total\":99} application/json ";
    assert!(page("mqtt").contains(shown) && said.contains(shown), "{said}");
    assert!(said.contains("semel-event-id:") && said.contains("semel-event-type:"), "{said}");
}

#[test]
fn an_entry_of_redis() {
    let Some(server) = Private::start(Service::Redis) else { return };
    let [typed] = &commands("redis")[..] else { panic!("the page shows one entry") };
    let page = page("redis");
    let prefix = page.lines().find(|line| line.starts_with("key_prefix")).unwrap();
    let folder = outbox("redis", server.address(), "");
    let configuration = fs::read_to_string(folder.file("semel.toml")).unwrap();
    let configuration = configuration.replace("[pipeline", &format!("{prefix}\n[pipeline"));
    fs::write(folder.file("semel.toml"), configuration).unwrap();
    let typed = typed.replace("redis-cli", &format!("redis-cli -u {}", server.address()));
    let (code, said) = run(&folder, &format!("semel relay --drain\n{typed}"));
    assert_eq!(code, 0, "{said}");
    for field in ["content-type", "application/json", "semel-event-id", "payload", "{\"total\":99}"]
    {
        assert!(said.contains(field), "{field}: {said}");
    }
}

fn page(name: &str) -> String {
    fs::read_to_string(shell::root().join("docs/backends").join(format!("{name}.md"))).unwrap()
}

fn commands(name: &str) -> Vec<String> {
    shell::commands_of(&page(name))
}

/// A folder with an event in an outbox, to be sent to this broker.
fn outbox(sink: &str, url: &str, line: &str) -> Folder {
    let folder = Folder::new();
    let configuration = format!(
        "[source.orders]\nurl = \"{}\"\n[sink.out]\ntype = \"{sink}\"\nurl = \"{url}\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n{line}\n",
        super::DATABASE
    );
    fs::write(folder.file("semel.toml"), configuration).unwrap();
    folder.expect(0, "", &["migrate", "up", "--database", super::DATABASE]);
    let of = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "OrderPlaced"];
    let send = ["send", "--database", super::DATABASE, "--payload", "{\"total\":99}"];
    folder.expect(0, "", &[&send, &of[..]].concat());
    folder
}
