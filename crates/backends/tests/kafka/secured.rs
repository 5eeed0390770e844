//! Users, permissions and encryption. SCRAM and TLS need the feature `tls`.

use std::time::Duration;

use semel_backends::kafka::{KafkaConfig, KafkaSubscriptionConfig, Mechanism, Sasl, Tls};
use semel_core::coordination::Share;
use semel_core::{
    Batch, EventId, Failure, Fault, InboxStore, Limit, Message, Sink, Source, Verdict,
};
use semel_testkit::workload::event;
use tokio::time::{sleep, timeout};

use super::lab::Lab;
use super::{config, expect, failure, messages, publish, topics};

#[tokio::test]
async fn a_wrong_password_is_a_mistake_in_the_set_up() {
    let Some(lab) = Lab::open().await else { return };
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let config = config(&lab.sasl).sasl(Sasl::new(mechanism, "admin", "guessed"));
        let failure = config.connect().await.unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-AUTH");
        assert!(!format!("{failure:?} {failure}").contains("guessed"));
    }
}

#[tokio::test]
async fn a_user_with_the_right_password_may_publish() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let users = [
        Sasl::new(Mechanism::Plain, "admin", "admin-secret"),
        Sasl::new(Mechanism::ScramSha256, "scram", "scram-secret"),
        Sasl::new(Mechanism::ScramSha512, "scram", "other-secret"),
    ];
    for user in users {
        let encrypted = config(&lab.sasl_tls).tls(Tls::default().ca_file(lab.file("broker.pem")));
        for config in [config(&lab.sasl), encrypted] {
            let sink = config.sasl(user.clone()).connect().await.unwrap();
            let verdicts = publish(&sink, &messages(&topic, [event("a", 1)])).await;
            assert_eq!(verdicts, [Verdict::Confirmed]);
        }
    }
}

#[tokio::test]
async fn a_user_without_permission_is_a_mistake_in_the_set_up() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let user = Sasl::new(Mechanism::Plain, "nobody", "nobody-secret");
    let failure = match config(&lab.sasl).sasl(user).connect().await {
        Err(failure) => failure,
        Ok(sink) => {
            let verdicts = publish(&sink, &messages(&topic, [event("a", 1)])).await;
            failure(&verdicts[0]).clone()
        }
    };
    expect(&failure, Fault::Misconfigured, "E-KAFKA-ACL");
}

/// What exactly once needs, one permission after the other.
#[tokio::test]
async fn exactly_once_says_which_permission_is_missing() {
    let Some(lab) = Lab::open().await else { return };
    let (id, topic) = (format!("semel-once-{}", EventId::now()), topics::random_topic());
    let (journal, other_topic) = (&format!("{id}-progress"), &topics::random_topic());
    topics::create(&lab.plain, &topic, &[]).await;
    let connect = async || {
        let clerk = Sasl::new(Mechanism::Plain, "clerk", "clerk-secret");
        config(&lab.sasl).sasl(clerk).connect_exactly_once(&id, Share::WHOLE).await
    };
    let expect_missing = async |what: &str, fix: &str| {
        let failure = connect().await.map(drop).unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-ACL");
        assert!(failure.to_string().contains(what), "{failure:?}");
        assert!(failure.fix().is_some_and(|said| said.contains(fix)), "{failure:?}");
    };
    // Who may write nowhere may not even be a producer.
    lab.allow_clerk(&["--operation", "Write", "--topic", other_topic]);
    expect_missing("the journal", "kafka-topics.sh --create").await;
    lab.allow_clerk(&["--operation", "Create", "--operation", "Write", "--topic", journal]);
    expect_missing("the transactional id", "--transactional-id").await;
    let ids_of_shares = ["--transactional-id", &id, "--resource-pattern-type", "prefixed"];
    lab.allow_clerk(&[&["--operation", "Write"][..], &ids_of_shares].concat());
    expect_missing("the journal", "Read").await;
    lab.allow_clerk(&["--operation", "Read", "--topic", journal, "--group", journal]);
    lab.allow_clerk(&["--operation", "Describe", "--topic", &topic]);
    let sink = connect().await.unwrap();
    let verdicts = publish(&sink, &messages(&topic, [event("a", 1)])).await;
    expect(failure(&verdicts[0]), Fault::Misconfigured, "E-KAFKA-ACL");
}

#[tokio::test]
async fn the_inbox_says_which_permission_is_missing() {
    let Some(lab) = Lab::open().await else { return };
    let (name, topic) = (format!("semel-{}", EventId::now()), topics::random_topic());
    let (inbox, other_topic) = (&format!("{name}-inbox"), &topics::random_topic());
    topics::create(&lab.plain, &topic, &[]).await;
    let connect = async || {
        let clerk = Sasl::new(Mechanism::Plain, "clerk", "clerk-secret");
        config(&lab.sasl).sasl(clerk).inbox(&name).unwrap().connect().await
    };
    let expect_missing = async |what: &str, fix: &str| {
        let failure = connect().await.map(drop).unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-ACL");
        assert!(failure.to_string().contains(what), "{failure:?}");
        assert!(failure.fix().is_some_and(|said| said.contains(fix)), "{failure:?}");
    };
    // Who may write nowhere may not even be a producer.
    lab.allow_clerk(&["--operation", "Write", "--topic", other_topic]);
    expect_missing("the inbox", "kafka-topics.sh --create").await;
    lab.allow_clerk(&["--operation", "Create", "--operation", "Write", "--topic", inbox]);
    expect_missing("the transactional id", "--transactional-id").await;
    expect_missing("the inbox", "DescribeConfigs").await;
    lab.allow_clerk(&["--operation", "DescribeConfigs", "--topic", inbox]);
    lab.allow_clerk(&["--operation", "Write", "--transactional-id", inbox]);
    expect_missing("the inbox", "Read").await;
    lab.allow_clerk(&["--operation", "Read", "--topic", inbox, "--group", inbox]);
    lab.allow_clerk(&["--operation", "Describe", "--topic", &topic]);
    let store = connect().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    tx.send(Message::first(topic.as_str(), event("a", 1))).unwrap();
    let failure = store.commit(tx).await.unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-ACL");
}

#[tokio::test]
async fn a_trusted_broker_gets_messages_over_tls() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let tls = Tls::default().ca_file(lab.file("broker.pem"));
    let sink = config(&lab.tls).tls(tls).connect().await.unwrap();
    sink.check().await.unwrap();
    let verdicts = publish(&sink, &messages(&topic, [event("a", 1)])).await;
    assert_eq!(verdicts, [Verdict::Confirmed]);
}

#[tokio::test]
async fn a_broker_that_is_not_trusted_is_a_mistake_in_the_set_up() {
    let Some(lab) = Lab::open().await else { return };
    let failure = config(&lab.tls).tls(Tls::default()).connect().await.unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-TLS");
}

/// The broker knows the relay by its certificate alone.
#[tokio::test]
async fn a_certificate_that_the_broker_trusts_is_a_user() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let trusting = || Tls::default().ca_file(lab.file("broker.pem"));
    let as_relay = trusting().identity(lab.file("relay.pem"), lab.file("relay.key"));
    let sink = config(&lab.certified).tls(as_relay).connect().await.unwrap();
    let verdicts = publish(&sink, &messages(&topic, [event("a", 1)])).await;
    assert_eq!(verdicts, [Verdict::Confirmed]);

    let as_stranger = trusting().identity(lab.file("stranger.pem"), lab.file("stranger.key"));
    for tls in [trusting(), as_stranger] {
        let failure = config(&lab.certified).tls(tls).connect().await.unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-TLS");
    }
    let missing = trusting().identity(lab.file("relay.pem"), lab.file("no-such.key"));
    let failure = config(&lab.certified).tls(missing).connect().await.unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-CONFIG");
}

/// What comes of reading first: messages, or the reason why there never will be any.
async fn read(config: &KafkaSubscriptionConfig) -> Result<Batch, Failure> {
    let reading = async {
        let mut source = config.connect().await?;
        loop {
            match source.next_batch(Limit::default()).await {
                Ok(batch) if batch.deliveries.is_empty() => {}
                Err(failure) if failure.fault() == Fault::Unavailable => {}
                said => return said,
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), reading).await.expect("messages, or a reason")
}

#[tokio::test]
async fn a_consumer_that_is_not_let_in_ends() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    for name in [&topic, &format!("{topic}.dead")] {
        topics::create(&lab.plain, name, &[]).await;
    }
    let login = |mechanism| config(&lab.sasl).sasl(Sasl::new(mechanism, "admin", "guessed"));
    let stranger = Tls::default()
        .ca_file(lab.file("broker.pem"))
        .identity(lab.file("stranger.pem"), lab.file("stranger.key"));
    let cases: [(KafkaConfig, &str); 4] = [
        (login(Mechanism::Plain), "E-KAFKA-AUTH"),
        (login(Mechanism::ScramSha512), "E-KAFKA-AUTH"),
        (config(&lab.tls).tls(Tls::default()), "E-KAFKA-TLS"),
        (config(&lab.certified).tls(stranger), "E-KAFKA-TLS"),
    ];
    for (config, code) in cases {
        let failure = read(&config.subscription("billing", &[&topic]).unwrap()).await.unwrap_err();
        expect(&failure, Fault::Misconfigured, code);
        assert!(!format!("{failure:?} {failure}").contains("guessed"));
    }
}

/// What reading needs, one permission after the other.
#[tokio::test]
async fn a_consumer_without_permission_ends() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    let (dead, group) = (&format!("{topic}.dead"), &format!("billing-{topic}"));
    for name in [&topic, dead] {
        topics::create(&lab.plain, name, &[]).await;
    }
    let sent = event("a", 1);
    publish(&super::sink(&lab.plain).await, &messages(&topic, [sent.clone()])).await;
    let read_as = async |user: &str| {
        let user = Sasl::new(Mechanism::Plain, user, format!("{user}-secret"));
        read(&config(&lab.sasl).sasl(user).subscription(group, &[&topic]).unwrap()).await
    };
    let expect_missing = async |user: &str, what: &str| {
        let failure = read_as(user).await.unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-ACL");
        assert!(failure.to_string().contains(what), "{failure:?}");
    };
    expect_missing("nobody", "").await;
    // Who may write nowhere may not even be a producer, of dead letters.
    lab.allow_clerk(&["--operation", "Write", "--topic", dead]);
    expect_missing("clerk", &topic).await;
    lab.allow_clerk(&["--operation", "Describe", "--topic", &topic]);
    expect_missing("clerk", "Group authorization").await;
    lab.allow_clerk(&["--operation", "Read", "--group", group]);
    expect_missing("clerk", "Topic authorization").await;
    lab.allow_clerk(&["--operation", "Read", "--topic", &topic]);
    let batch = read_as("clerk").await.unwrap();
    assert_eq!(batch.deliveries[0].message.event.id, sent.id);
}
