//! What is wrong between the keys of a sink, and between a sink and the topics of a pipeline.

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::super::routing::USUAL_TOPIC;
use super::*;

/// The smallest file with another sink.
fn to(sink: &str) -> String {
    SMALLEST.replace("type = \"file\"\npath = \"events.ndjson\"", sink)
}

#[test]
fn half_a_login_is_a_mistake() {
    let with = |kind: &str, url: &str, line: &str| {
        to(&format!("type = \"{kind}\"\nurl = \"{url}\"\n{line}"))
    };
    let user = "f:6  [sink.out] user: needs password beside it, and the other way round";
    let password = "f:6  [sink.out] password: needs user beside it, and the other way round";
    for (kind, url) in [
        ("rabbitmq", "amqp://shop@localhost"),
        ("nats", "nats://localhost"),
        ("mqtt", "mqtt://localhost"),
        ("redis", "redis://shop@localhost"),
    ] {
        check(&[
            (with(kind, url, "user = \"shop\""), user),
            (with(kind, url, "password = \"hunter2\""), password),
        ]);
        parse(&with(kind, url, "user = \"shop\"\npassword = \"hunter2\"")).unwrap();
    }
    check(&[
        (with("redis", "redis://localhost", "user = \"shop\""), user),
        (
            with("nats", "nats://localhost", "user = \"shop\"\npassword_file = \"/missing\""),
            "f:7  [sink.out] password_file: /missing: ",
        ),
        (
            to("type = \"kafka\"\nbrokers = \"b:9092\"\ntls = { certificate_file = \"c\" }"),
            "f:6  [sink.out.tls] certificate_file: needs key_file beside it",
        ),
        (
            to("type = \"kafka\"\nbrokers = \"b:9092\"\ntls = { key_file = \"k\" }"),
            "f:6  [sink.out.tls] key_file: needs certificate_file beside it",
        ),
        (
            to("type = \"eventbridge\"\nsecret_access_key = \"hunter2\""),
            "f:5  [sink.out] secret_access_key: needs access_key_id beside it",
        ),
        (
            to("type = \"eventbridge\"\nsession_token = \"hunter2\""),
            "f:5  [sink.out] session_token: needs access_key_id and secret_access_key beside it",
        ),
    ]);
}

#[test]
fn a_sink_that_delivers_exactly_once_is_alone() {
    let once = "type = \"kafka\"\nbrokers = \"b:9092\"\ndelivery = \"exactly_once\"";
    let audit = "[sink.audit]\ntype = \"stdout\"\n";
    let both = |sink: &str| to(sink).replace("to = \"out\"", "to = [\"audit\", \"out\"]") + audit;
    let wrong = "f:9  [pipeline.orders] to: \"out\" delivers exactly once, but not beside others";
    check(&[(both(once), wrong)]);
    let two = to(once) + audit + "[pipeline.audit]\nfrom = \"orders\"\nto = \"audit\"\n";
    let list = to(once).replace("to = \"out\"", "to = [\"out\"]");
    for right in [both(&once.replace("exactly", "at_least")), two, list] {
        parse(&right).unwrap();
    }
}

#[tokio::test]
async fn a_password_alone_is_that_of_the_default_user_of_redis() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let sink =
        format!("type = \"redis\"\nurl = \"{url}\"\npassword = \"hunter2\"\ntimeout = \"5s\"");
    let connecting = parse(&to(&sink)).unwrap().pipelines[0].sinks[0].connect.connect();
    let listening = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut said = [0; 1024];
        let length = stream.read(&mut said).await.unwrap();
        String::from_utf8_lossy(&said[..length]).into_owned()
    };
    let (said, connected) = tokio::join!(listening, connecting);
    assert!(connected.is_err(), "nobody answered");
    assert!(said.contains("AUTH\r\n$7\r\ndefault\r\n$7\r\nhunter2\r\n"), "{said}");
}

#[test]
fn the_usual_topic_is_that_of_the_library() {
    let usual: semel_core::TopicTemplate = USUAL_TOPIC.parse().unwrap();
    assert_eq!(format!("{usual:?}"), format!("{:?}", semel_core::TopicTemplate::default()));
}

#[test]
fn topics_that_can_never_be_are_found_before_the_first_event() {
    let arn = "type = \"sns\"\narn_prefix = \"arn:aws:sns:eu-central-1:123456789012:\"";
    let usual = "f:6  [pipeline.orders] topic: \"{aggregate_type}.events\" cannot be a topic of";
    let queue = to("type = \"sqs\"\nregion = \"eu-central-1\"");
    let topic = |text: &str, topic: &str| format!("{text}topic = \"{topic}\"\n");
    check(&[
        (queue.clone(), &format!("{usual} sqs: a queue is named by")),
        (to(arn), &format!("{usual} sns: a topic is named by")),
        (to("type = \"sns\"\nregion = \"eu-central-1\""), &format!("{usual} sns: it is no ARN")),
        (
            format!("{queue}routing = \"debezium\"\n"),
            "f:6  [pipeline.orders] topic: \"outbox.event.{aggregate_type}\" cannot be",
        ),
        (
            topic(&to("type = \"kafka\"\nbrokers = \"b:9092\""), &"x".repeat(250)),
            "f:9  [pipeline.orders] topic: \"xxx",
        ),
    ]);
    for right in [
        topic(&queue, "{aggregate_type}-events.fifo"),
        topic(&to(arn), "{aggregate_type}-events"),
        to("type = \"eventbridge\"\nregion = \"eu-central-1\""),
    ] {
        parse(&right).unwrap();
    }
}

#[test]
fn an_arn_of_another_region_is_found_before_the_first_event() {
    let arn = "arn:aws:sns:us-east-1:123456789012:";
    let sns = |lines: &str| to(&format!("type = \"sns\"\nregion = \"eu-central-1\"\n{lines}"));
    let prefix = format!("arn_prefix = \"{arn}\"\n");
    let whole = |sink: String| format!("{sink}topic = \"{arn}orders\"\n");
    check(&[
        (
            format!("{}topic = \"orders\"\n", sns(&prefix)),
            "f:6  [sink.out] arn_prefix: its region is not that of the sink; write",
        ),
        (
            whole(sns("")),
            "f:10  [pipeline.orders] topic: \"arn:aws:sns:us-east-1:123456789012:orders\" cannot be a \
             topic of sns: its region",
        ),
    ]);
    parse(&whole(sns("").replace("eu-central-1", "us-east-1"))).unwrap();
    // What only speaks like AWS may call its region anything.
    parse(&whole(sns("endpoint_url = \"http://localhost:4566\"\n"))).unwrap();
}

#[test]
fn headers_that_can_never_be_carried_are_found_before_the_first_event() {
    let with =
        |sink: &str, header: &str| format!("{}[pipeline.orders.headers]\n{header}\n", to(sink));
    let mqtt = "type = \"mqtt\"\nurl = \"mqtt://localhost\"";
    let rabbitmq = "type = \"rabbitmq\"\nurl = \"amqp://localhost\"";
    let line = "note = \"a\\n{aggregate_id}\"";
    let long = format!("{} = \"x\"", "n".repeat(256));
    check(&[
        (
            with(mqtt, line),
            "f:10  [pipeline.orders.headers] note: mqtt cannot carry this header: it has a control \
             character",
        ),
        (
            with(mqtt, &format!("note = \"{}\"", "x".repeat(65_536))),
            "f:10  [pipeline.orders.headers] note",
        ),
        (with(rabbitmq, &long), "f:10  [pipeline.orders.headers] nnn"),
    ]);
    let structured = |sink: &str| format!("{sink}\nformat = \"cloudevents-structured\"");
    for right in [
        with(mqtt, "note = \"ü {aggregate_id}\""),
        with(mqtt, &long),
        with(rabbitmq, line),
        // There they are in the body, or nowhere.
        with(&structured(mqtt), line),
        with(&structured(rabbitmq), &long),
        with(&format!("{mqtt}\nversion = 3"), line),
        // As JSON beside others.
        with(&format!("{mqtt}\nformat = \"cloudevents-binary\""), &line.replace("note", "a-note")),
    ] {
        parse(&right).unwrap();
    }
}

#[test]
fn what_waits_for_others_must_not_wait_until_the_call_is_over() {
    let kafka = |lines: &str| to(&format!("type = \"kafka\"\nbrokers = \"b:9092\"\n{lines}"));
    let wrong = "linger: Kafka: messages wait ";
    for (lines, at) in [("linger = \"30s\"", 6), ("timeout = \"3s\"\nlinger = \"1s\"", 7)] {
        check(&[(kafka(lines), &format!("f:{at}  [sink.out] {wrong}"))]);
    }
    for right in ["linger = \"6s\"", "timeout = \"40s\"\nlinger = \"10s\""] {
        parse(&kafka(right)).unwrap();
    }
}

#[test]
fn a_publish_call_may_take_longer_than_its_sinks_wait() {
    let limit = |text: &str| parse(text).unwrap().pipelines[0].settings.publish_timeout.as_secs();
    let hook =
        |more: &str| format!("type = \"webhook\"\nurl = \"https://partner.example\"\n{more}");
    assert_eq!(limit(SMALLEST), 30);
    assert_eq!(limit(&to(&hook(""))), 30);
    assert_eq!(limit(&to(&hook("timeout = \"12s\""))), 30);
    assert_eq!(limit(&to(&hook("timeout = \"20s\""))), 45);
    for sink in [
        "type = \"kafka\"\nbrokers = \"b:9092\"",
        "type = \"rabbitmq\"\nurl = \"amqp://localhost\"",
        "type = \"nats\"\nurl = \"nats://localhost\"",
        "type = \"mqtt\"\nurl = \"mqtt://localhost\"",
        "type = \"redis\"\nurl = \"redis://localhost\"",
        "type = \"eventbridge\"\nregion = \"eu-central-1\"",
    ] {
        assert_eq!(limit(&to(&format!("{sink}\ntimeout = \"20s\""))), 30, "{sink}");
        assert_eq!(limit(&to(&format!("{sink}\ntimeout = \"60s\""))), 65, "{sink}");
    }
    let night = hook("timeout = \"5m\"\n");
    assert_eq!(limit(&format!("{SMALLEST}alert = \"night\"\n[sink.night]\n{night}")), 605);
}

#[test]
fn one_sink_has_one_identity_and_a_changed_one_another() {
    let second = "[pipeline.second]\nfrom = \"orders\"\nto = \"out\"\nalert = \"out\"\n";
    let config = parse(&format!("{SMALLEST}{second}")).unwrap();
    let [first, second] = &config.pipelines[..] else { panic!("two pipelines") };
    let identity = |sink: &Sink| sink.connect.identity.clone().unwrap();
    assert_eq!(identity(&first.sinks[0]), identity(&second.sinks[0]));
    assert_eq!(identity(&first.sinks[0]), identity(second.alert.as_ref().unwrap()));
    let hook = |secret: &str| {
        let lines = format!("type = \"webhook\"\nurl = \"https://partner.example\"\n{secret}");
        identity(&parse(&to(&lines)).unwrap().pipelines[0].sinks[0])
    };
    assert_eq!(hook("authorization = \"a\""), hook("authorization = \"a\""));
    assert_ne!(hook("authorization = \"a\""), hook("authorization = \"b\""), "secrets count");
}

#[test]
fn a_sink_that_cannot_take_the_topic_of_alerts_is_found() {
    let alert = |sink: &str| format!("{SMALLEST}alert = \"night\"\n[sink.night]\n{sink}\n");
    let queue = "type = \"sqs\"\nregion = \"eu-central-1\"";
    check(&[(
        alert(queue),
        "f:9  [pipeline.orders] alert: alerts go to \"semel.dead_letter\", which sqs cannot take",
    )]);
    parse(&alert("type = \"file\"\npath = \"night.ndjson\"")).unwrap();
}
