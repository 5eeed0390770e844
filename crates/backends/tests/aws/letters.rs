//! Dead letters of a subscription to SQS, and a queue that takes only some of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_backends::aws::SqsSubscription;
use semel_core::{EventId, Holding, Limit, Source};
use semel_testkit::workload::{dead, settlements};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::impostor::{Answer, Impostor};
use super::subscription::WAIT;
use super::{PATIENCE, config};

const HELD: &str = "\"ReceiptHandle\":\"handle\"";

/// A message of a queue, with the id that its event says it has.
fn message(body: &str, event_id: &str) -> serde_json::Value {
    let text = |value: &str| json!({ "DataType": "String", "StringValue": value });
    json!({
        "MessageId": body,
        "ReceiptHandle": "handle",
        "Body": body,
        "MessageAttributes": {
            "semel-event-id": text(event_id),
            "semel-event-type": text("Placed"),
            "semel-aggregate-type": text("order"),
            "semel-aggregate-id": text(body),
        },
    })
}

/// A service with these messages in a queue, which takes letters unless it answers otherwise.
async fn queue_of(
    messages: Vec<serde_json::Value>,
    answer: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static,
) -> (Impostor, SqsSubscription) {
    let received = json!({ "Messages": messages }).to_string();
    let is_received = AtomicBool::new(false);
    let impostor = Impostor::start(move |request| {
        if let Some(answer) = answer(request) {
            return answer;
        }
        let said = match request {
            _ if request.contains("QueueName") => "{\"QueueUrl\":\"http://sqs/1/orders\"}",
            _ if request.contains("MessageBody") => "{\"MessageId\":\"letter\"}",
            _ if request.contains("MaxNumberOfMessages")
                && !is_received.swap(true, Ordering::Relaxed) =>
            {
                &received
            }
            _ => "{}",
        };
        Some((200, "", said.to_owned()))
    })
    .await;
    let config = config(&impostor.url).subscribe_sqs("orders").wait(WAIT);
    let reader = timeout(PATIENCE, config.open()).await.unwrap().unwrap();
    (impostor, reader)
}

/// The letter of a message that is no event, in a queue that takes none with these words in it.
async fn letter_without(words: &'static str) -> String {
    let (impostor, _reader) = queue_of(vec![message("large", "seven")], move |request| {
        request.contains(words).then(|| Impostor::error(400, "InvalidParameterValue"))
    })
    .await;
    let is_deletion = |request: &String| request.contains(HELD) && !request.contains("Visibility");
    let deleted = async {
        loop {
            let requests = impostor.requests();
            if let Some(place) = requests.iter().position(is_deletion) {
                return requests[..place].to_vec();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let before = timeout(PATIENCE, deleted).await.expect("it is put aside");
    let taken = |it: &&String| it.contains("MessageBody") && !it.contains(words);
    before.iter().find(taken).expect("kept before it is deleted").clone()
}

/// A queue takes no larger letters than messages.
#[tokio::test]
async fn a_letter_that_is_too_large_with_its_reason_is_kept_without() {
    let letter = letter_without("cannot be read as an event").await;
    assert!(letter.contains("semel-origin") && letter.contains("orders@large"), "{letter}");
    assert!(letter.contains("E-WIRE"), "{letter}");
    letter_without("semel-epitaph").await;
}

/// The first is not sent again when the second was not taken.
#[tokio::test]
async fn a_letter_before_one_that_is_not_taken_is_kept_once() {
    let messages = ["one", "two"].map(|body| message(body, &EventId::now().to_string()));
    let is_full = AtomicBool::new(true);
    let (impostor, mut reader) = queue_of(messages.into(), move |request| {
        let refused =
            request.contains("\"MessageBody\":\"two\"") && is_full.swap(false, Ordering::Relaxed);
        refused.then(|| Impostor::error(400, "QueueDoesNotExist"))
    })
    .await;
    let mut taken = Vec::new();
    let both = async {
        while taken.len() < 2 {
            taken.extend(reader.next_batch(Limit::default()).await.unwrap().deliveries);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, both).await.expect("they come");
    let dead = settlements(taken.iter().map(|got| (got.receipt, dead(false))));
    timeout(PATIENCE, reader.settle(&dead)).await.expect("an answer").unwrap_err();
    let settled = timeout(PATIENCE, reader.settle(&dead)).await.expect("an answer");
    assert_eq!(settled, Ok(Holding::Held));
    let requests = impostor.requests();
    let sent = |body: &str| {
        let body = format!("\"MessageBody\":\"{body}\"");
        requests.iter().filter(|request| request.contains(&body)).count()
    };
    assert_eq!((sent("one"), sent("two")), (1, 2));
}
