//! The topic of the ids: how it is made, and which one is refused.

use std::time::Duration;

use semel_core::inbox::{InboxStore, Seen};
use semel_core::{EventId, Fault};
use semel_testkit::services::{Service, service};
use tokio::time::timeout;

use super::{PATIENCE, commit, connect, expect, random_name, seen, settings, topics};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn a_topic_that_would_forget_at_the_wrong_time_is_refused() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (policy, age, size) = ("cleanup.policy", "retention.ms", "retention.bytes");
    let wrong: [&[(&str, &str)]; 4] = [
        &[(policy, "delete")],
        &[(policy, "compact")],
        &[(policy, "compact,delete"), (age, "3600000")],
        &[(policy, "compact,delete"), (size, "1048576")],
    ];
    for wrong in wrong {
        let name = random_name();
        topics::create(&brokers, &format!("{name}-inbox"), wrong).await;
        let opening = settings(&brokers, &name).keep(DAY);
        let failure = timeout(PATIENCE, opening.connect()).await.unwrap().unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-INBOX-TOPIC");
        let (setting, value) = wrong[wrong.len() - 1];
        assert!(failure.to_string().contains(&format!("{setting}={value}")), "{failure}");
    }
}

/// As an operator makes it: it may have more partitions, and keep ids for longer.
#[tokio::test]
async fn a_topic_that_is_there_is_used_with_all_its_partitions() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let name = random_name();
    let right = [("cleanup.policy", "delete,compact"), ("retention.ms", "-1")];
    topics::create(&brokers, &format!("{name}-inbox"), &right).await;
    let ids: Vec<_> = (0..30).map(|_| EventId::now()).collect();
    let store = connect(&settings(&brokers, &name).keep(DAY)).await;
    for id in &ids {
        let mut tx = store.begin().await.unwrap();
        assert_eq!(store.record(&mut tx, "payments", *id).await.unwrap(), Seen::First);
        commit(&store, tx).await.unwrap();
    }
    let again = connect(&settings(&brokers, &name).keep(DAY)).await;
    for id in ids {
        assert_eq!(seen(&again, id).await.unwrap(), Seen::Duplicate { result: None });
    }
}

/// The topic that an inbox makes passes its own check, and one that asks for more than it keeps
/// is told.
#[tokio::test]
async fn who_wants_to_remember_longer_must_let_the_topic_keep_longer() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let name = random_name();
    drop(connect(&settings(&brokers, &name).keep(DAY)).await);
    drop(connect(&settings(&brokers, &name).keep(DAY / 2)).await);
    let longer = settings(&brokers, &name).keep(2 * DAY);
    let failure = timeout(PATIENCE, longer.connect()).await.unwrap().unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-INBOX-TOPIC");
    assert!(failure.fix().unwrap().contains("retention.ms=172800000"), "{failure:?}");
    topics::alter(
        &brokers,
        &format!("{name}-inbox"),
        &[("cleanup.policy", "compact,delete"), ("retention.ms", "172800000")],
    )
    .await;
    drop(connect(&longer).await);
}
