//! A TCP proxy in front of a server, to cut connections, to delay and to lose what it says, and to count
//! how often it is asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// What the proxy does to connections.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    refuse: bool,
    swallow_replies: bool,
    delay_replies: Duration,
    /// Connections that were made before this changed are closed.
    cuts: u64,
}

/// A TCP proxy on a port of its own.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use semel_testkit::proxy::Proxy;
/// use tokio::{io::AsyncReadExt, net::{TcpListener, TcpStream}};
///
/// let server = TcpListener::bind("127.0.0.1:0").await?;
/// let proxy = Proxy::start(server.local_addr()?.to_string()).await;
/// let mut client = TcpStream::connect(proxy.address()).await?;
/// server.accept().await?;
/// proxy.cut();
/// assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0, "it is closed");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: Arc<watch::Sender<Weather>>,
    answers: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts one that leads to `target`, a host and port.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start(target: impl Into<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let weather = Arc::new(watch::Sender::new(Weather::default()));
        let answers = Arc::default();
        let accepting = accept(listener, target.into(), Arc::clone(&weather), Arc::clone(&answers));
        Self { address, weather, answers, accepting: tokio::spawn(accepting) }
    }

    /// Where it listens, as host and port.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Closes all connections there are.
    pub fn cut(&self) {
        self.weather.send_modify(|weather| weather.cuts += 1);
    }

    /// Whether new connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.weather.send_modify(|weather| weather.refuse = refuse);
    }

    /// By how much what the server says comes later.
    pub fn delay_replies(&self, delay: Duration) {
        self.weather.send_modify(|weather| weather.delay_replies = delay);
    }

    /// How many round trips there were: how often the server has answered on any connection. What it
    /// says without a word of the client between is one answer.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Whether what the server says is lost. What the client says still arrives.
    pub fn swallow_replies(&self, swallow: bool) {
        self.weather.send_modify(|weather| weather.swallow_replies = swallow);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    weather: Arc<watch::Sender<Weather>>,
    answers: Arc<AtomicU64>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let now = *weather.borrow();
        if now.refuse {
            continue;
        }
        let (target, mut changes) = (target.clone(), weather.subscribe());
        let (weather, answers) = (Arc::clone(&weather), Arc::clone(&answers));
        tokio::spawn(async move {
            let until_cut = changes.wait_for(|weather| weather.cuts != now.cuts);
            tokio::select! {
                _ = until_cut => {}
                () = carry(client, target, weather, now.cuts, answers) => {}
            }
        });
    }
}

/// Carries both directions until one side ends. After a cut nothing more passes, however late it is
/// noticed.
async fn carry(
    client: TcpStream,
    target: String,
    weather: Arc<watch::Sender<Weather>>,
    cuts_before: u64,
    answers: Arc<AtomicU64>,
) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    for side in [&client, &server] {
        side.set_nodelay(true).ok();
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let is_asked = AtomicBool::new(false);
    let questions = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            is_asked.store(true, Ordering::Relaxed);
            if to_server.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let replies = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if is_asked.swap(false, Ordering::Relaxed) {
                answers.fetch_add(1, Ordering::Relaxed);
            }
            let Weather { swallow_replies, delay_replies, cuts, .. } = *weather.borrow();
            if cuts != cuts_before {
                return;
            }
            if !delay_replies.is_zero() {
                sleep(delay_replies).await;
            }
            if !swallow_replies && to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = replies => {}
        () = questions => {}
    }
}
