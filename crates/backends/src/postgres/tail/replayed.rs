//! A server that says what it is told to, for what no server would send on purpose.

use std::time::Duration;

use pgwire_replication::{ReplicationClient, ReplicationConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

/// What PostgreSQL 15 sent: a transaction with a message of a writer (begin, message, commit), and one that
/// added two rows to an outbox (begin, relation, insert, insert, commit).
const LOG: [&[u8]; 8] = [
    b"B\x00\x00\x00\x00\x03\xa3\xc3\xd8\x00\x03\x03kA\xf5\xce\x07\x00\x00\x03!",
    b"M\x01\x00\x00\x00\x00\x03\xa3\xc3\xd8semel\x00\x00\x00\x00\x9f{\"id\" : \"0190b6e8-7a3c-\
      7def-8000-0123456789ab\", \"aggregate_type\" : \"order\", \"aggregate_id\" : \"42\", \"e\
      vent_type\" : \"OrderPlaced\", \"payload\" : \"{\\\"total\\\": 99}\"}",
    b"C\x00\x00\x00\x00\x00\x03\xa3\xc3\xd8\x00\x00\x00\x00\x03\xa3\xc4\x08\x00\x03\x03kA\xf5\
      \xce\x07",
    b"B\x00\x00\x00\x00\x03\xa3\xc5\xe0\x00\x03\x03kA\xf5\xd1*\x00\x00\x03\"",
    b"R\x00\x00EVsemel\x00outbox\x00d\x00\x01\x01seq\x00\x00\x00\x00\x14\xff\xff\xff\xff",
    b"I\x00\x00EVN\x00\x01t\x00\x00\x00\x011",
    b"I\x00\x00EVN\x00\x01t\x00\x00\x00\x012",
    b"C\x00\x00\x00\x00\x00\x03\xa3\xc5\xe0\x00\x00\x00\x00\x03\xa3\xc6\x10\x00\x03\x03kA\xf5\
      \xd1*",
];

/// It takes one client after the other.
pub(in super::super) struct Server {
    runtime: Runtime,
    folder: TempDir,
    listener: UnixListener,
}

impl Server {
    const PORT: u16 = 5432;

    pub(in super::super) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!(".s.PGSQL.{}", Self::PORT));
        let listener = runtime.block_on(async { UnixListener::bind(path).unwrap() });
        Self { runtime, folder, listener }
    }

    /// Says this to a client, and hangs up; gives what `listen` made of it, which must end.
    pub(in super::super) fn say<T>(
        &self,
        spoken: &[u8],
        listen: impl AsyncFnOnce(ReplicationClient) -> T,
    ) -> T {
        const PATIENCE: Duration = Duration::from_secs(30);
        let host = self.folder.path().display().to_string();
        let config = ReplicationConfig::new(host, "relay", "", "shop", "slot", "publication")
            .with_port(Self::PORT);
        self.runtime.block_on(async {
            let connecting = tokio::spawn(ReplicationClient::connect(config));
            let (stream, _) = self.listener.accept().await.unwrap();
            let speaking = tokio::spawn(speak(stream, spoken.to_owned()));
            let client = connecting.await.unwrap().unwrap();
            let listened = tokio::time::timeout(PATIENCE, listen(client)).await;
            speaking.abort();
            listened.expect("a session that has ended is noticed")
        })
    }
}

async fn speak(mut stream: UnixStream, spoken: Vec<u8>) {
    let length = stream.read_u32().await.unwrap();
    skip(&mut stream, length).await;
    // Welcome, without a password; go on.
    stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
    stream.read_u8().await.unwrap();
    let length = stream.read_u32().await.unwrap();
    skip(&mut stream, length).await;
    stream.write_all(b"W\0\0\0\x07\0\0\0").await.unwrap();
    // Whoever has understood enough may leave before the end.
    if stream.write_all(&spoken).await.is_ok() {
        stream.shutdown().await.ok();
    }
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
}

async fn skip(stream: &mut UnixStream, length: u32) {
    let mut message = vec![0; usize::try_from(length).unwrap() - 4];
    stream.read_exact(&mut message).await.unwrap();
}

/// The log as a server sends it, with a sign of life at its end.
pub(in super::super) fn log() -> Vec<u8> {
    const PLACE: u64 = 0x0180_0000;
    let place = PLACE.to_be_bytes();
    let mut spoken = Vec::new();
    for message in LOG {
        spoken.extend(copy_data(&[b"w", &place, &place, &[0; 8], message]));
    }
    spoken.extend(copy_data(&[b"k", &place, &[0; 8], &[0]]));
    spoken
}

fn copy_data(parts: &[&[u8]]) -> Vec<u8> {
    let payload = parts.concat();
    let length = u32::try_from(payload.len() + 4).unwrap();
    [b"d", &length.to_be_bytes()[..], &payload].concat()
}
