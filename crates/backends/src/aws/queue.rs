//! What a subscription says to SQS.

use std::sync::Arc;
use std::time::Duration;

use semel_core::wire::Epitaph;
use semel_core::{Failure, Fault, Message};
use tokio::time::sleep;

use super::SYSTEM;
use super::hold::{Hold, is_fifo};
use super::incoming::Incoming;
use crate::brevity::{in_brief, less_and_less};
use crate::intake::Intake;

/// A queue, and that of its dead letters.
pub(super) struct Queue {
    pub(super) hold: Hold,
    dead_url: String,
    pub(super) intake: Arc<Intake<Incoming>>,
}

impl Queue {
    pub(super) fn new(hold: Hold, dead_url: String) -> Self {
        Self { hold, dead_url, intake: Intake::new(SYSTEM) }
    }

    pub(super) fn is_fifo(&self) -> bool {
        is_fifo(&self.hold.url)
    }

    /// Waits for messages and takes them in.
    async fn receive(&self, count: usize) -> Result<(), Failure> {
        for incoming in self.hold.receive(count).await? {
            match incoming.event() {
                Ok(event) => {
                    let message = Message::first(self.hold.name.as_str(), event);
                    self.intake.receive(message, incoming);
                }
                Err(why) => {
                    match self.bury(&incoming, &why, 0).await {
                        Ok(()) => {
                            let (queue, id) = (&self.hold.name, &incoming.id);
                            tracing::warn!(%queue, %id, %why, "no event");
                        }
                        // What cannot be put aside now comes again.
                        Err(failure) => self.intake.fail(failure),
                    }
                    self.hold.forget(&incoming.id);
                }
            }
        }
        Ok(())
    }

    /// Sends a dead letter, and then deletes the message. In a FIFO queue a letter that comes again,
    /// because the outcome was not known, is dropped by its id.
    pub(super) async fn bury(
        &self,
        incoming: &Incoming,
        why: &Failure,
        attempts: u32,
    ) -> Result<(), Failure> {
        let Hold { sqs, name, .. } = &self.hold;
        let origin = format!("{name}@{}", incoming.id);
        let epitaph = Epitaph { failure: why, attempts, consumer: name, origin: &origin };
        let brief = in_brief(why);
        for epitaph in less_and_less(epitaph, &brief) {
            let letter = incoming.letter(&self.dead_url, epitaph.as_ref(), &incoming.id)?;
            match sqs.send_one("send a dead letter", letter).await {
                Err(failure) if epitaph.is_some() && failure.fault() == Fault::Refused => {}
                sent => {
                    sent?;
                    break;
                }
            }
        }
        self.hold.delete(std::slice::from_ref(&incoming.id)).await
    }
}

/// Asks for messages, for ever, as long as there is room.
pub(super) async fn receive(queue: Arc<Queue>, most: usize) {
    const PAUSE: Duration = Duration::from_millis(500);
    // As for a sink.
    const LONGEST_REST: Duration = Duration::from_secs(60);
    loop {
        let room = queue.intake.room(most).await;
        if let Err(failure) = queue.receive(room).await {
            let asked = failure.retry_after().unwrap_or_default();
            queue.intake.fail(failure);
            sleep(asked.clamp(PAUSE, LONGEST_REST)).await;
        }
    }
}

/// Keeps messages in hand hidden, as long as the subscription lives.
pub(super) async fn care(queue: Arc<Queue>) {
    let hold = &queue.hold;
    let pause = Duration::from_secs(u64::try_from(hold.visibility).unwrap_or(1)) / 3;
    loop {
        sleep(pause).await;
        // Where that fails the next question says so.
        hold.hide(&hold.held(), hold.visibility).await.ok();
    }
}
