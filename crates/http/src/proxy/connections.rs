//! Connections to an upstream that speaks HTTP/1.1.
//!
//! Each carries one request after another. One that is idle may be closed by the upstream at any
//! moment, so that a request may find it gone; it is then sent over another one, but only if nothing
//! of it has left.

use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::Instant;
use tower_service::Service;

use super::lines::unanswered;
use super::refusal::Refusal;
use crate::body::Body;

/// A connection that nobody has used for so long is not used again.
const LONGEST_IDLE: Duration = Duration::from_secs(90);

/// The connections of one worker.
pub(super) struct Connections {
    upstream: Uri,
    connector: HttpsConnector<HttpConnector>,
    idle: Arc<Idle>,
}

type Connection = SendRequest<Body<Incoming>>;

/// Those that nobody uses, since when; the last one was used last.
#[derive(Default)]
struct Idle(Mutex<VecDeque<(Connection, Instant)>>);

/// A connection whose answer is being read; closed with this value.
pub(super) struct Used {
    connection: Connection,
    idle: Arc<Idle>,
}

impl Connections {
    pub(super) fn new(upstream: Uri, connector: HttpsConnector<HttpConnector>) -> Self {
        Self { upstream, connector, idle: Arc::default() }
    }

    /// Sends a request, and gives the head of its answer.
    pub(super) async fn send(
        &self,
        mut request: Request<Body<Incoming>>,
    ) -> Result<(Response<Incoming>, Used), Refusal> {
        while let Some(mut connection) = self.idle.take() {
            if connection.ready().await.is_err() {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, self.used(connection))),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(unanswered(Refusal::UpstreamLost, error.error())),
                },
            }
        }
        let connected = self.connect().await;
        let mut connection =
            connected.map_err(|error| unanswered(Refusal::UpstreamUnreachable, &*error))?;
        match connection.try_send_request(request).await {
            Ok(response) => Ok((response, self.used(connection))),
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                let refusal =
                    if unsent { Refusal::UpstreamUnreachable } else { Refusal::UpstreamLost };
                Err(unanswered(refusal, error.error()))
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Box<dyn Error + Send + Sync>> {
        let mut connector = self.connector.clone();
        poll_fn(|context| connector.poll_ready(context)).await?;
        let stream = connector.call(self.upstream.clone()).await?;
        let (mut connection, driver) = http1::handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a connection to the upstream ended early");
            }
        });
        connection.ready().await?;
        Ok(connection)
    }

    fn used(&self, connection: Connection) -> Used {
        Used { connection, idle: Arc::clone(&self.idle) }
    }
}

impl Used {
    /// Leaves it to others: its answer is at its end.
    pub(super) fn give_back(mut self) {
        if self.connection.is_ready() {
            return self.idle.put(self.connection);
        }
        // An upstream may have answered before it had the whole request.
        tokio::spawn(async move {
            if self.connection.ready().await.is_ok() {
                self.idle.put(self.connection);
            }
        });
    }
}

impl Idle {
    fn take(&self) -> Option<Connection> {
        let mut all = self.all();
        all.pop_back().filter(|(_, since)| since.elapsed() < LONGEST_IDLE).map(|(it, _)| it)
    }

    fn put(&self, connection: Connection) {
        let (now, mut all) = (Instant::now(), self.all());
        all.push_back((connection, now));
        while all.front().is_some_and(|(_, since)| now - *since > LONGEST_IDLE) {
            all.pop_front();
        }
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<(Connection, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
