//! A client that speaks HTTP/1.1 word by word.

use std::collections::HashMap;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

/// Where requests go.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(address: String) -> Self {
        Self { address }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n")).await
    }

    /// A POST of `acme`'s.
    pub(crate) async fn post(&self, path: &str, key: Option<&str>, body: &str) -> Reply {
        self.ask(&post(path, key, body)).await
    }

    /// The same; again while the proxy has no answer from its store, since nothing was run then.
    pub(crate) async fn insist(&self, path: &str, key: &str, body: &str) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reply = self.post(path, Some(key), body).await;
            if reply.status != 503 {
                return reply;
            }
            assert_eq!(reply.problem(), "store-unavailable", "{reply:?}");
            assert!(Instant::now() < deadline, "the store stood still for {PATIENCE:?}: {reply:?}");
        }
    }

    /// Sends these words, and takes one answer.
    pub(crate) async fn ask(&self, words: &str) -> Reply {
        let answers = self.say(words.as_bytes()).await;
        let reply = read(&answers);
        assert!(reply.is_some(), "no answer: {:?}", String::from_utf8_lossy(&answers));
        reply.unwrap()
    }

    /// Sends these bytes, and takes everything until the end of the connection.
    pub(crate) async fn say(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.open(bytes).await;
        let mut all = Vec::new();
        // Whoever closes a connection with words unread resets it: what came counts.
        timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("an end").ok();
        all
    }

    /// Sends these bytes, and leaves the connection open.
    pub(crate) async fn open(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }
}

/// A POST of `acme`'s that ends its connection.
pub(crate) fn post(path: &str, key: Option<&str>, body: &str) -> String {
    let key = key.map_or(String::new(), |key| format!("idempotency-key: {key}\r\n"));
    format!(
        "POST {path} HTTP/1.1\r\nhost: shop\r\nauthorization: acme\r\n{key}connection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The one answer in these bytes.
pub(crate) fn read(bytes: &[u8]) -> Option<Reply> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let body = if chunked { unchunk(rest)? } else { rest.to_vec() };
    Some(Reply { status, headers, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The last part of a problem's type.
    pub(crate) fn problem(&self) -> &str {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let (_, rest) = self.text().split_once("index.html#").unwrap();
        rest.split_once('"').unwrap().0
    }
}
