//! Messages of a queue of SQS that somebody has in hand: received, hidden from others, deleted.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessageBatchRequestEntry, MessageSystemAttributeName,
};
use semel_core::Failure;

use super::error::{failure, impossible, not_done};
use super::incoming::Incoming;
use super::sqs::Sqs;

/// A queue, and what was received from it and is not settled.
pub(super) struct Hold {
    pub(super) sqs: Sqs,
    pub(super) name: String,
    pub(super) url: String,
    /// For how long a message in hand is hidden from others, in seconds.
    pub(super) visibility: i32,
    /// How long a question may wait for messages, in seconds.
    pub(super) wait: i32,
    /// Held while a question waits for its answer.
    pub(super) asking: tokio::sync::Mutex<()>,
    /// The latest receipt handle of every message in hand, by its id.
    handles: Mutex<HashMap<String, String>>,
}

/// SQS takes and gives so many at once.
const AT_ONCE: usize = 10;

impl Hold {
    pub(super) fn new(sqs: Sqs, name: String, url: String, (visibility, wait): (i32, i32)) -> Self {
        let (asking, handles) = Default::default();
        Self { sqs, name, url, visibility, wait, asking, handles }
    }

    /// Waits for messages; those that were in hand already are not given again.
    pub(super) async fn receive(&self, count: usize) -> Result<Vec<Incoming>, Failure> {
        let asked = self
            .sqs
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(count.clamp(1, AT_ONCE)).unwrap_or(1))
            .visibility_timeout(self.visibility)
            .wait_time_seconds(self.wait)
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp);
        let doing = format!("receive from the queue {:?}", self.name);
        let _asking = self.asking.lock().await;
        let got = asked.send().await.map_err(|error| failure(&doing, self.sqs.expiry, error))?;
        let got = got.messages.unwrap_or_default().into_iter().filter_map(Incoming::new);
        // After an outage it may come again while it is in hand.
        let is_new = |(incoming, handle): (Incoming, String)| {
            let before = self.handles().insert(incoming.id.clone(), handle);
            before.is_none().then_some(incoming)
        };
        Ok(got.filter_map(is_new).collect())
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

pub(super) fn is_fifo(name: &str) -> bool {
    name.ends_with(".fifo")
}

/// What the sender is at fault for is an old receipt.
fn all_done(what: &str, failed: &[BatchResultErrorEntry]) -> Result<(), Failure> {
    match failed.iter().find(|entry| !entry.sender_fault) {
        Some(entry) => Err(not_done(what, &entry.code, entry.message.as_deref().unwrap_or(""))),
        None => Ok(()),
    }
}
