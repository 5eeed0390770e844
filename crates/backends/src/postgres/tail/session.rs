//! A replication connection with a slot of its own, and the task that listens to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use pgwire_replication::{PgWireError, ReplicationClient, ReplicationEvent};
use semel_core::Failure;
use sqlx::PgPool;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::super::types::Snapshot;
use super::address::config;
use super::heard::Heard;
use super::held_back;
use super::publication::PUBLICATION;
use super::refusal::{of_session, refused};

/// What the log tells, as long as this value lives. Its slot is gone with it.
pub(in super::super) struct Session {
    heard: Arc<Heard>,
    /// Where the last look ended.
    end: Mutex<Option<Arc<Snapshot>>>,
    listening: AbortHandle,
    watching: AbortHandle,
}

impl Session {
    /// How often the server is told that all was heard, so that it keeps no log.
    const CONFIRM: Duration = Duration::from_secs(1);
    /// Nobody looks into what comes; it need not be kept.
    const BUFFER: usize = 64;

    /// Connects and makes the slot. That waits for the transactions which run at the time; if one
    /// of them takes long, the server gives up, and leaves nothing behind when nobody waits any
    /// more. Nor does it keep the slot of somebody who has fallen silent.
    pub(super) async fn open(pool: &PgPool, pipeline: &str, budget: u64) -> Result<Self, Failure> {
        let slot = slot_name(pipeline);
        let mut config = config(&pool.connect_options(), &slot, PUBLICATION)?;
        config.application_name = Some("semel tail".into());
        config.options = Some("-c lock_timeout=60s -c wal_sender_timeout=60s".into());
        config.status_interval = Self::CONFIRM;
        config.buffer_events = Self::BUFFER;
        let mut client = Unstarted(Some(
            ReplicationClient::connect_gated(config).await.map_err(|error| of_session(&error))?,
        ));
        let client = client.start(&slot).await.map_err(|error| of_session(&error))?;
        let heard = Arc::new(Heard::default());
        let listening = tokio::spawn(listen(client, Arc::clone(&heard))).abort_handle();
        let watching = held_back::watch(pool.clone(), slot, budget, Arc::clone(&heard));
        let watching = tokio::spawn(watching).abort_handle();
        Ok(Self { heard, end: Mutex::default(), listening, watching })
    }

    /// A look ended here; says whether the log had told of anything that it found, unless it was the
    /// same look as before.
    pub(super) fn looked(&self, end: &Arc<Snapshot>) -> Option<bool> {
        let mut last = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(Arc::clone(end));
        let is_same = before.as_ref().is_some_and(|before| Arc::ptr_eq(before, end));
        (!is_same).then(|| self.heard.looked(before.as_deref(), end))
    }
}

impl crate::tailing::Session for Session {
    fn ended(&self) -> Option<Failure> {
        self.heard.ended()
    }

    fn news(&self) -> BoxFuture<'static, ()> {
        Arc::clone(&self.heard).news().boxed()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.listening.abort();
        self.watching.abort();
    }
}

/// A client that is not listened to yet. Dropped, it would go on waiting for its slot.
struct Unstarted(Option<ReplicationClient>);

impl Unstarted {
    async fn start(&mut self, slot: &str) -> Result<ReplicationClient, PgWireError> {
        let gone = || PgWireError::Internal("no connection".into());
        let client = self.0.as_mut().ok_or_else(gone)?;
        let create =
            format!("CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT");
        client.simple_query(&create).await?;
        client.start().await?;
        client.wait_started().await?;
        self.0.take().ok_or_else(gone)
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if let Some(client) = &mut self.0 {
            client.abort();
        }
    }
}

/// Only committed transactions come, one after the other: the first row of one says all.
async fn listen(mut client: ReplicationClient, heard: Arc<Heard>) {
    const INSERT: u8 = b'I';
    let mut transaction = None;
    let why = loop {
        match client.recv().await {
            Ok(Some(ReplicationEvent::Begin { xid, .. })) => transaction = Some(xid),
            Ok(Some(ReplicationEvent::XLogData { data, .. })) => {
                if data.first() == Some(&INSERT)
                    && let Some(id) = transaction.take()
                {
                    heard.hear(id);
                }
            }
            // The slot dies with this session, so what it confirms need not be settled.
            Ok(Some(ReplicationEvent::Commit { end_lsn, .. })) => {
                client.update_applied_lsn(end_lsn);
            }
            Ok(Some(ReplicationEvent::KeepAlive { wal_end, .. })) => {
                client.update_applied_lsn(wal_end);
            }
            Ok(Some(_)) => {}
            Ok(None) => break refused("the server ended the connection"),
            Err(error) => break of_session(&error),
        }
    };
    heard.end(why);
}

/// Slots are named in the whole cluster: no two may have the same name, ever so shortly.
fn slot_name(pipeline: &str) -> String {
    format!("{}{}", slot_prefix(pipeline), random_end())
}

/// Tells slots of one kind apart.
pub(super) fn random_end() -> String {
    const RANDOM: usize = 16;
    let mut id = Uuid::now_v7().simple().to_string();
    id.split_off(id.len() - RANDOM)
}

/// How the names of all slots of a pipeline begin, and no others: readable, and told apart.
pub(in crate::postgres) fn slot_prefix(pipeline: &str) -> String {
    const READABLE: usize = 20;
    const DIGITS: usize = 8;
    let readable = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '_',
    };
    let hash = blake3::hash(pipeline.as_bytes()).to_hex();
    let pipeline: String = pipeline.chars().take(READABLE).map(readable).collect();
    format!("semel_{pipeline}_{}_", &hash[..DIGITS])
}

#[cfg(test)]
mod tests {
    use semel_testkit::fuzz::fuzz;

    use super::super::replayed::{self, Server};
    use super::*;

    /// What the client library makes of it, too: whatever comes, the session goes on or ends.
    #[test]
    fn fuzzed_any_log_is_heard_or_ends_the_session() {
        let server = Server::start();
        let hear = |spoken: &[u8]| {
            server.say(spoken, async |client| {
                let heard = Arc::new(Heard::default());
                listen(client, Arc::clone(&heard)).await;
                assert!(heard.ended().is_some());
                heard.count()
            })
        };
        assert_eq!(hear(&replayed::log()), 1, "the rows of one transaction are one piece of news");
        fuzz(&[replayed::log()], |spoken| assert!(hear(spoken) <= spoken.len()));
    }

    #[test]
    fn slots_have_names_that_the_server_takes() {
        for pipeline in ["orders", "Größe; drop table", "", &"x".repeat(99)] {
            let name = slot_name(pipeline);
            assert!(name.len() < 64, "{name}");
            assert!(name.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit()));
            assert_ne!(name, slot_name(pipeline));
        }
        assert!(slot_name("orders").starts_with("semel_orders_"));
        assert_ne!(slot_prefix("a.b"), slot_prefix("a-b"));
    }
}
