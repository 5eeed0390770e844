//! What a subscription says to SQS.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessageBatchRequestEntry, MessageSystemAttributeName,
};
use semel_core::wire::Epitaph;
use semel_core::{Failure, Message};
use tokio::time::sleep;

use super::SYSTEM;
use super::error::{failure, impossible, not_done};
use super::incoming::Incoming;
use super::sqs::Sqs;
use crate::intake::Intake;

/// A queue, and that of its dead letters.
pub(super) struct Queue {
    pub(super) sqs: Sqs,
    pub(super) name: String,
    pub(super) url: String,
    pub(super) dead_url: String,
    /// For how long a message in hand is hidden from others, in seconds.
    pub(super) visibility: i32,
    /// How long a question may wait for messages, in seconds.
    pub(super) wait: i32,
    pub(super) intake: Arc<Intake<Incoming>>,
    /// The latest receipt handle of every message in hand, by its id.
    handles: Mutex<HashMap<String, String>>,
}

/// SQS takes and gives so many at once.
const AT_ONCE: usize = 10;

impl Queue {
    pub(super) fn new(
        sqs: Sqs,
        name: String,
        (url, dead_url): (String, String),
        (visibility, wait): (i32, i32),
    ) -> Self {
        let (intake, handles) = (Intake::new(SYSTEM), Mutex::default());
        Self { sqs, name, url, dead_url, visibility, wait, intake, handles }
    }

    pub(super) fn is_fifo(&self) -> bool {
        is_fifo(&self.url)
    }

    /// Waits for messages and takes them in.
    async fn receive(&self, count: usize) -> Result<(), Failure> {
        let asked = self
            .sqs
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(count.min(AT_ONCE)).unwrap_or(1))
            .visibility_timeout(self.visibility)
            .wait_time_seconds(self.wait)
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId);
        let doing = format!("receive from the queue {:?}", self.name);
        let got = asked.send().await.map_err(|error| failure(&doing, self.sqs.expiry, error))?;
        for (incoming, handle) in
            got.messages.unwrap_or_default().into_iter().filter_map(Incoming::new)
        {
            // After an outage it may come again while it is in hand.
            let is_new = self.handles().insert(incoming.id.clone(), handle).is_none();
            match incoming.event() {
                _ if !is_new => {}
                Ok(event) => {
                    let message = Message::first(self.name.as_str(), event);
                    self.intake.receive(message, incoming);
                }
                Err(failure) => {
                    // What cannot be put aside now comes again.
                    self.bury(&incoming, &failure, 0).await.ok();
                    self.handles().remove(&incoming.id);
                }
            }
        }
        Ok(())
    }

    /// Takes messages from the queue for good. A receipt that is not valid any more is passed over:
    /// the message comes again.
    pub(super) async fn delete(&self, ids: &[String]) -> Result<(), Failure> {
        for handles in self.handles_of(ids).chunks(AT_ONCE) {
            let entries = handles.iter().enumerate().map(|(place, handle)| {
                let entry = DeleteMessageBatchRequestEntry::builder().id(place.to_string());
                entry.receipt_handle(handle).build().map_err(impossible)
            });
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            let delete = self.sqs.client.delete_message_batch().queue_url(&self.url);
            let deleted = delete.set_entries(Some(entries)).send().await;
            let deleted = deleted
                .map_err(|error| failure("delete from the queue", self.sqs.expiry, error))?;
            all_done("delete from the queue", &deleted.failed)?;
        }
        Ok(())
    }

    /// Hides messages in hand from others for so many seconds, from now.
    pub(super) async fn hide(&self, ids: &[String], seconds: i32) -> Result<(), Failure> {
        for handles in self.handles_of(ids).chunks(AT_ONCE) {
            let entries = handles.iter().enumerate().map(|(place, handle)| {
                let entry = ChangeMessageVisibilityBatchRequestEntry::builder();
                let entry = entry.id(place.to_string()).receipt_handle(handle);
                entry.visibility_timeout(seconds).build().map_err(impossible)
            });
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            let hide = self.sqs.client.change_message_visibility_batch().queue_url(&self.url);
            let hidden = hide.set_entries(Some(entries)).send().await;
            let hidden =
                hidden.map_err(|error| failure("keep messages hidden", self.sqs.expiry, error))?;
            all_done("keep messages hidden", &hidden.failed)?;
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
        let origin = format!("{}@{}", self.name, incoming.id);
        let epitaph = Epitaph { failure: why, attempts, consumer: &self.name, origin: &origin };
        let mut letter = self
            .sqs
            .client
            .send_message()
            .queue_url(&self.dead_url)
            .message_body(&incoming.body)
            .set_message_attributes(Some(incoming.with_epitaph(&epitaph)?));
        if is_fifo(&self.dead_url) {
            let group = incoming.group.as_deref().unwrap_or(&incoming.id);
            letter = letter.message_group_id(group).message_deduplication_id(&incoming.id);
        }
        let sent = letter.send().await;
        sent.map_err(|error| failure("send a dead letter", self.sqs.expiry, error))?;
        self.delete(std::slice::from_ref(&incoming.id)).await
    }

    /// Forgets a message that is settled.
    pub(super) fn forget(&self, id: &str) {
        self.handles().remove(id);
    }

    pub(super) fn held(&self) -> Vec<String> {
        self.handles().keys().cloned().collect()
    }

    fn handles_of(&self, ids: &[String]) -> Vec<String> {
        let handles = self.handles();
        ids.iter().filter_map(|id| handles.get(id).cloned()).collect()
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_fifo(name: &str) -> bool {
    name.ends_with(".fifo")
}

/// What the sender is at fault for is an old receipt.
fn all_done(what: &str, failed: &[BatchResultErrorEntry]) -> Result<(), Failure> {
    match failed.iter().find(|entry| !entry.sender_fault) {
        Some(entry) => Err(not_done(what, &entry.code, entry.message.as_deref().unwrap_or(""))),
        None => Ok(()),
    }
}

/// Asks for messages, for ever, as long as there is room.
pub(super) async fn receive(queue: Arc<Queue>, most: usize) {
    const PAUSE: Duration = Duration::from_millis(500);
    loop {
        let room = queue.intake.room(most).await;
        if let Err(failure) = queue.receive(room).await {
            queue.intake.fail(failure);
            sleep(PAUSE).await;
        }
    }
}

/// Keeps messages in hand hidden, as long as the subscription lives.
pub(super) async fn care(queue: Arc<Queue>) {
    let pause = Duration::from_secs(u64::try_from(queue.visibility).unwrap_or(1)) / 3;
    loop {
        sleep(pause).await;
        // Where that fails the next question says so.
        queue.hide(&queue.held(), queue.visibility).await.ok();
    }
}
