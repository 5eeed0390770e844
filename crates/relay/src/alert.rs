//! Tells somebody about dead letters, through a sink of its own.
//!
//! Nothing here holds the pipeline up: a dead letter is noted and forgotten about. A task sends what
//! was noted, one message a second at most; what dies meanwhile is counted, and the next message
//! tells how many there were. So a thousand dead letters are a few messages, and take no more memory
//! than ten.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::{Event, Failure, Fault, Message, Published, Sink, Verdict};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::relay::Relay;

/// What was noted, and the task that sends it; dropping it ends the task.
pub(crate) struct Alerts {
    noted: Arc<Noted>,
    task: JoinSet<()>,
}

#[derive(Default)]
struct Noted {
    letters: Mutex<Letters>,
    changed: Notify,
}

/// Dead letters that nobody was told about yet.
#[derive(Default)]
struct Letters {
    count: u64,
    first: Vec<Value>,
    closing: bool,
}

impl Alerts {
    /// How long the end of a relay waits for the last message.
    const LAST_WORDS: Duration = Duration::from_secs(5);

    pub(crate) fn start(pipeline: &str, sink: Arc<dyn Sink>, limit: Duration) -> Self {
        let noted = Arc::new(Noted::default());
        let mut task = JoinSet::new();
        let (pipeline, source) = (pipeline.to_owned(), Arc::clone(&noted));
        task.spawn(async move { send_all(&pipeline, &source, &*sink, limit).await });
        Self { noted, task }
    }

    /// Notes a dead letter.
    pub(crate) fn note(&self, pipeline: &str, message: &Message, failure: &Failure) {
        const SHOWN: usize = 10;
        let mut letters = self.noted.lock();
        letters.count += 1;
        if letters.first.len() < SHOWN {
            letters.first.push(letter(pipeline, message, failure));
        }
        self.noted.changed.notify_one();
    }

    /// Waits a while for what was noted to be sent.
    pub(crate) async fn close(mut self) {
        self.noted.lock().closing = true;
        self.noted.changed.notify_one();
        if timeout(Self::LAST_WORDS, self.task.join_next()).await.is_err() {
            tracing::error!("nobody could be told about the last dead letters");
        }
    }
}

impl Noted {
    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn closing(&self) {
        while !self.lock().closing {
            self.changed.notified().await;
        }
    }
}

async fn send_all(pipeline: &str, noted: &Noted, sink: &dyn Sink, limit: Duration) {
    const PAUSE: Duration = Duration::from_secs(1);
    loop {
        let (count, first, closing) = {
            let mut letters = noted.lock();
            let first = std::mem::take(&mut letters.first);
            (std::mem::take(&mut letters.count), first, letters.closing)
        };
        if count > 0 {
            send(pipeline, &alert(pipeline, count, &first), sink, limit).await;
            // It ends early when the relay does.
            timeout(PAUSE, noted.closing()).await.ok();
        } else if closing {
            return;
        } else {
            noted.changed.notified().await;
        }
    }
}

/// Tries until the message is confirmed, or never will be.
async fn send(pipeline: &str, message: &Message, sink: &dyn Sink, limit: Duration) {
    const LONGEST_WAIT: Duration = Duration::from_secs(60);
    let mut wait = Duration::from_secs(1);
    while let Err(failure) = attempt(message, sink, limit).await {
        if matches!(failure.fault(), Fault::Refused | Fault::Misconfigured) {
            tracing::error!(pipeline, code = failure.code(), %failure, "nobody could be told about dead letters");
            return;
        }
        tracing::warn!(pipeline, code = failure.code(), %failure, "an alert about dead letters waits");
        sleep(failure.retry_after().unwrap_or_default().max(wait)).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn attempt(message: &Message, sink: &dyn Sink, limit: Duration) -> Result<(), Failure> {
    let call = AssertUnwindSafe(sink.publish(std::slice::from_ref(message))).catch_unwind();
    let failed = |what: &str| Err(Failure::transient("E-ALERT", what));
    match timeout(limit, call).await {
        Ok(Ok(Published::All)) => Ok(()),
        Ok(Ok(Published::None(failure))) => Err(failure),
        Ok(Ok(Published::Each(mut verdicts))) => match verdicts.pop() {
            Some(Verdict::Confirmed) => Ok(()),
            Some(Verdict::Failed(failure) | Verdict::Buried(failure)) => Err(failure),
            Some(Verdict::Behind) | None => failed("the sink gave no verdict"),
        },
        Ok(Err(_)) => failed("the sink panicked"),
        Err(_) => failed("the sink did not confirm in time"),
    }
}

/// What is told about one dead letter. Its payload stays where it is.
fn letter(pipeline: &str, message: &Message, failure: &Failure) -> Value {
    const SHOWN: usize = 500;
    let Message { event, attempt, .. } = message;
    let id = event.id;
    json!({
        "event_id": id,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "event_type": event.event_type,
        "created_at": event.created_at,
        "attempts": attempt,
        "code": failure.code(),
        "error": failure.to_string().chars().take(SHOWN).collect::<String>(),
        "fix": failure.fix(),
        "show": format!("semel dead show {id} --pipeline {pipeline}"),
        "retry": format!("semel dead retry {id} --pipeline {pipeline}"),
    })
}

fn alert(pipeline: &str, count: u64, letters: &[Value]) -> Message {
    const KIND: &str = Relay::ALERTS;
    let content = json!({
        "pipeline": pipeline,
        "count": count,
        "letters": letters,
        "list": format!("semel dead list --pipeline {pipeline}"),
    });
    let event = Event::new(KIND, pipeline, "DeadLettered");
    Message::first(KIND, event.with_bytes("application/json", content.to_string()))
}
