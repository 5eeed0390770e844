//! A small service that counts what it does, and misbehaves when it is asked to.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// The service. What it does is decided by the path:
///
/// | path | what |
/// |---|---|
/// | `/orders` | 201 with the number of the order |
/// | `/slow` | the same, after 50 ms |
/// | `/gated` | the same, once the test opens the gate |
/// | `/lost` | takes the request, and hangs up |
/// | `/silent` | takes the request, and never answers |
/// | `/short` | promises more bytes than it sends |
/// | `/status/N` | answers N |
/// | `/echo` | 200 with the head and body as they came |
/// | `/stream` | a piece, and another once the test opens the gate |
pub(crate) struct Upstream {
    pub(crate) address: String,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

struct State {
    heads: Mutex<Vec<String>>,
    taken: watch::Sender<usize>,
    bytes: watch::Sender<usize>,
    gate: Semaphore,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn at(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            heads: Mutex::default(),
            taken: watch::Sender::new(0),
            bytes: watch::Sender::new(0),
            gate: Semaphore::new(0),
        });
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(attend(stream, Arc::clone(&shared)));
            }
        });
        Self { address, state, serving }
    }

    /// How many requests it took.
    pub(crate) fn taken(&self) -> usize {
        *self.state.taken.borrow()
    }

    /// The heads of all requests it took, in lower case.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }

    pub(crate) async fn until_taken(&self, count: usize) {
        let mut taken = self.state.taken.subscribe();
        timeout(PATIENCE, taken.wait_for(|taken| *taken >= count)).await.expect("taken").unwrap();
    }

    /// Waits until so many bytes of a body have come.
    pub(crate) async fn until_read(&self, count: usize) {
        let mut bytes = self.state.bytes.subscribe();
        timeout(PATIENCE, bytes.wait_for(|bytes| *bytes >= count)).await.expect("read").unwrap();
    }

    /// Lets one that waits at the gate go on.
    pub(crate) fn open_gate(&self) {
        self.state.gate.add_permits(1);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers the requests of a connection until it ends.
async fn attend(stream: TcpStream, state: Arc<State>) {
    let mut stream = BufReader::new(stream);
    while let Some(head) = read_head(&mut stream).await {
        let Some(body) = read_body(&mut stream, &head, &state).await else { return };
        state.heads.lock().unwrap().push(head.clone());
        let mut number = 0;
        state.taken.send_modify(|taken| {
            *taken += 1;
            number = *taken;
        });
        if answer(&mut stream, &state, &head, &body, number).await.is_none() {
            return;
        }
    }
}

async fn read_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return Some(head);
        }
        head += &line.to_ascii_lowercase();
    }
}

async fn read_body(
    stream: &mut BufReader<TcpStream>,
    head: &str,
    state: &State,
) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok()?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            read_exactly(stream, size, &mut body, state).await?;
            stream.read_line(&mut line).await.ok()?;
            if size == 0 {
                return Some(body);
            }
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(0, |length| length.trim().parse().unwrap());
    read_exactly(stream, length, &mut body, state).await?;
    Some(body)
}

async fn read_exactly(
    stream: &mut BufReader<TcpStream>,
    size: usize,
    body: &mut Vec<u8>,
    state: &State,
) -> Option<()> {
    let mut left = size;
    while left > 0 {
        let mut piece = vec![0; left.min(65_536)];
        let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
        state.bytes.send_modify(|bytes| *bytes += count);
        // Large bodies are only counted.
        if size <= 65_536 {
            body.extend_from_slice(&piece[..count]);
        }
        left -= count;
    }
    Some(())
}

async fn answer(
    stream: &mut BufReader<TcpStream>,
    state: &State,
    head: &str,
    body: &[u8],
    number: usize,
) -> Option<()> {
    let path = head.split(' ').nth(1)?;
    let path = path.split('?').next()?;
    let order = format!("{{\"order\":{number}}}");
    let reply = match path {
        "/lost" => return None,
        "/silent" => std::future::pending().await,
        "/short" => "HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\ntoo short".to_owned(),
        "/echo" => sized(200, "", &format!("{head}\r\n{}", String::from_utf8_lossy(body))),
        "/stream" => return stream_pieces(stream, state).await,
        "/slow" => {
            sleep(std::time::Duration::from_millis(50)).await;
            created(&order)
        }
        "/gated" => {
            state.gate.acquire().await.ok()?.forget();
            created(&order)
        }
        _ => match path.strip_prefix("/status/") {
            Some(status) => sized(status.parse().ok()?, "", &order),
            None => created(&order),
        },
    };
    stream.get_mut().write_all(reply.as_bytes()).await.ok()?;
    (path != "/short").then_some(())
}

fn created(order: &str) -> String {
    let headers = "location: /orders/1\r\nset-cookie: a=b\r\nconnection: x-hop\r\nx-hop: 1\r\n";
    sized(201, headers, order)
}

fn sized(status: u16, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} Fine\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

async fn stream_pieces(stream: &mut BufReader<TcpStream>, state: &State) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    stream.get_mut().write_all(head.as_bytes()).await.ok()?;
    state.gate.acquire().await.ok()?.forget();
    stream.get_mut().write_all(b"4\r\nlast\r\n0\r\n\r\n").await.ok()
}
