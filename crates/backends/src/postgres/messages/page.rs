//! What is read of the log, to be put down at once.

use bytes::Bytes;
use futures_util::FutureExt;
use pgwire_replication::{Lsn, PgWireError, ReplicationClient, ReplicationEvent};
use semel_core::Failure;

use super::super::tail::{of_session, refused};
use super::PREFIX;

/// What was read and is not in the outbox yet.
#[derive(Default)]
pub(super) struct Page {
    /// Each with where it is in the log.
    pub(super) messages: Vec<(Lsn, Bytes)>,
    bytes: usize,
    /// All before this is in the outbox, or will be with this page.
    pub(super) carried: Lsn,
    /// Whether the end of a transaction is still to come.
    inside: bool,
}

impl Page {
    const EVENTS: usize = 1000;
    const BYTES: usize = 4 * 1024 * 1024;

    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= Self::EVENTS || self.bytes >= Self::BYTES
    }

    /// Whether there are messages in it, or none up to there.
    pub(super) fn shows_progress(&self, up_to: Lsn) -> bool {
        !self.messages.is_empty() || self.carried >= up_to
    }

    /// An empty one that goes on where this one ends.
    pub(super) fn following(&self) -> Self {
        Self { carried: self.carried, inside: self.inside, ..Self::default() }
    }

    /// Reads all that is there, or until there is something to say to the server.
    pub(super) async fn fill(&mut self, client: &mut ReplicationClient) -> Result<(), Failure> {
        if self.messages.is_empty() {
            self.take(received(client.recv().await)?);
        }
        while !self.messages.is_empty() && !self.is_full() {
            let Some(event) = client.recv().now_or_never() else { break };
            self.take(received(event)?);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, event: ReplicationEvent) {
        match event {
            ReplicationEvent::Begin { .. } => self.inside = true,
            ReplicationEvent::Commit { end_lsn, .. } => {
                self.inside = false;
                self.carried = end_lsn;
            }
            ReplicationEvent::KeepAlive { wal_end, .. } if !self.inside => {
                self.carried = self.carried.max(wal_end);
            }
            ReplicationEvent::Message { transactional: true, prefix, content, lsn }
                if prefix == PREFIX =>
            {
                self.bytes += content.len();
                self.messages.push((lsn, content));
            }
            _ => {}
        }
    }
}

/// What came, unless the session is over.
pub(super) fn received(
    event: Result<Option<ReplicationEvent>, PgWireError>,
) -> Result<ReplicationEvent, Failure> {
    let event = event.map_err(|error| of_session(&error))?;
    event.ok_or_else(|| refused("the server ended the connection"))
}

#[cfg(test)]
mod tests {
    use semel_testkit::fuzz::fuzz;

    use super::super::super::tail::replayed::{self, Server};
    use super::super::format;
    use super::*;

    #[test]
    fn fuzzed_any_log_is_carried_as_far_as_it_is_understood() {
        let server = Server::start();
        let carry = |spoken: &[u8]| {
            server.say(spoken, async |mut client| {
                let mut page = Page::default();
                while let Ok(Some(event)) = client.recv().await {
                    page.take(event);
                }
                let events =
                    page.messages.iter().filter_map(|(_, content)| format::decode(content).ok());
                events.count()
            })
        };
        assert_eq!(carry(&replayed::log()), 1);
        fuzz(&[replayed::log()], |spoken| assert!(carry(spoken) <= spoken.len()));
    }
}
