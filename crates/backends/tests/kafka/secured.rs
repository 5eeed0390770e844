//! Users, permissions and encryption. SCRAM and TLS need the feature `tls`.

use semel_backends::kafka::{Mechanism, Sasl, Tls};
use semel_core::{Fault, Sink, Verdict};
use semel_testkit::workload::event;

use super::lab::Lab;
use super::{config, expect, failure, messages, publish, topics};

#[tokio::test]
async fn a_wrong_password_is_a_mistake_in_the_set_up() {
    let Some(lab) = Lab::open().await else { return };
    for mechanism in [Mechanism::Plain, Mechanism::ScramSha256] {
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
    ];
    for user in users {
        let sink = config(&lab.sasl).sasl(user).connect().await.unwrap();
        let verdicts = publish(&sink, &messages(&topic, [event("a", 1)])).await;
        assert_eq!(verdicts, [Verdict::Confirmed]);
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

#[tokio::test]
async fn a_trusted_broker_gets_messages_over_tls() {
    let Some(lab) = Lab::open().await else { return };
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let tls = Tls::default().ca_file(lab.certificate());
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
