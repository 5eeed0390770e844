//! The sink: one POST per event, a lane one after another, lanes side by side.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use semel_core::wire::Binding;
use semel_core::{Event, Failure, LaneKey, Message, Published, Sink, Verdict};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::call::{Call, LaneEnd, Progress, Stopped, Turn};
use super::client::HttpClient;
use super::config::WebhookConfig;
use super::error::{Answer, answered, paused, silent, too_slow, unanswered};

/// Publishes to an HTTP endpoint. Clones share its connections and limits.
///
/// ```
/// use semel_backends::webhook::WebhookConfig;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let metadata = WebhookConfig::new("https://169.254.169.254/latest")?.connect().await;
/// assert_eq!(metadata.unwrap_err().code(), "E-WEBHOOK-ADDRESS");
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct WebhookSink(Arc<Endpoint>);

struct Endpoint {
    config: WebhookConfig,
    client: HttpClient,
    /// The endpoint as it is shown.
    name: String,
    permits: Semaphore,
    progress: Progress,
    /// It asked to be left alone until then.
    quiet_until: Mutex<Option<Instant>>,
}

impl WebhookSink {
    const CHECK: Duration = Duration::from_secs(5);

    pub(super) fn new(config: WebhookConfig, client: HttpClient) -> Self {
        Self(Arc::new(Endpoint {
            name: config.shown(),
            permits: Semaphore::new(config.concurrency),
            progress: Progress::default(),
            quiet_until: Mutex::new(None),
            client,
            config,
        }))
    }
}

#[async_trait]
impl Sink for WebhookSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let endpoint = &*self.0;
        let call = Call::until(Instant::now() + endpoint.config.timeout, &endpoint.progress);
        let mut lanes = lanes(batch);
        endpoint.progress.put_suspects_last(batch, &mut lanes);
        let lanes = lanes.into_iter().map(|places| endpoint.lane(&call, batch, places));
        let sending = stream::iter(lanes).buffer_unordered(endpoint.config.concurrency);
        let ends = sending.collect().await;
        let verdicts = call.verdicts(batch.len(), ends);
        if verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) {
            return Published::All;
        }
        Published::Each(verdicts)
    }

    /// Asks for the endpoint's head, which has no effect. Any answer will do, except of a gateway
    /// that has nothing behind it.
    async fn check(&self) -> Result<(), Failure> {
        let endpoint = &*self.0;
        endpoint.is_quiet()?;
        let limit = Self::CHECK.min(endpoint.config.timeout);
        let head = endpoint.message(Method::HEAD, endpoint.config.headers.clone(), Bytes::new());
        let head = endpoint.client.request(head);
        let answer = match timeout(limit, head).await {
            Ok(Ok(response)) => endpoint.judge(&response),
            Ok(Err(error)) => unanswered(&endpoint.name, error),
            Err(_) => silent(&endpoint.name, limit),
        };
        match answer {
            Answer::Suspicious(suspicion) => Err(suspicion.of_the_endpoint()),
            Answer::Throttled(_, wait) => {
                endpoint.keep_quiet(wait);
                endpoint.is_quiet()
            }
            // Only a request of its own shows whether a POST is redirected.
            Answer::Down(failure) if failure.code() != "E-WEBHOOK-MOVED" => Err(failure),
            _ => Ok(()),
        }
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

impl Endpoint {
    /// Sends the events of a lane one after another, until one is not confirmed.
    fn lane<'a>(
        &'a self,
        call: &'a Call<'a>,
        batch: &'a [Message],
        places: Vec<usize>,
    ) -> BoxFuture<'a, LaneEnd> {
        Box::pin(async move {
            let mut end = LaneEnd { places, confirmed: 0, stopped: None };
            for place in &end.places {
                if let Err(stopped) = self.send(call, &batch[*place].event).await {
                    end.stopped = Some(stopped);
                    break;
                }
                end.confirmed += 1;
            }
            end
        })
    }

    async fn send(&self, call: &Call<'_>, event: &Event) -> Result<(), Stopped> {
        let permit = self.permit(call).await.map_err(Stopped::By)?;
        let request = self.request(event).map_err(Stopped::By)?;
        let turn = call.send();
        let (answer, heard) = self.ask(call, request).await;
        drop(permit);
        match answer {
            Answer::Confirmed => {
                call.confirm(&event.id, turn);
                Ok(())
            }
            Answer::Failed(failure) => Err(Stopped::By(failure)),
            Answer::Throttled(failure, wait) => {
                self.keep_quiet(wait);
                Err(Stopped::By(failure))
            }
            Answer::Suspicious(suspicion) => Err(call.suspect(suspicion, event.id, heard)),
            Answer::Down(failure) => {
                call.end(failure.clone());
                Err(Stopped::By(failure))
            }
        }
    }

    /// Sends a request; also says when it was known to fail, if it did. Silence is known half-way:
    /// if the endpoint serves others from there on, it is not frozen.
    async fn ask(&self, call: &Call<'_>, request: Request<Full<Bytes>>) -> (Answer, Turn) {
        let limit = self.config.timeout;
        let mut asking = pin!(self.client.request(request));
        let mut heard = None;
        for _ in 0..2 {
            let Ok(answer) = timeout(limit / 2, &mut asking).await else {
                heard.get_or_insert(call.latest());
                continue;
            };
            let answer = match answer {
                Ok(response) => {
                    let answer = self.judge(&response);
                    drain(response).await;
                    answer
                }
                Err(error) => unanswered(&self.name, error),
            };
            return (answer, call.latest());
        }
        (silent(&self.name, limit), heard.unwrap_or(call.latest()))
    }

    /// Waits until a request may be sent.
    async fn permit(&self, call: &Call<'_>) -> Result<SemaphorePermit<'_>, Failure> {
        let permit = timeout_at(call.until, self.permits.acquire()).await;
        if let Some(why) = call.over() {
            return Err(why.clone());
        }
        self.is_quiet()?;
        match permit {
            Ok(Ok(permit)) if Instant::now() < call.until => Ok(permit),
            _ => Err(too_slow(&self.name)),
        }
    }

    fn request(&self, event: &Event) -> Result<Request<Full<Bytes>>, Failure> {
        let config = &self.config;
        let body = config.format.body(event);
        let id = event.id.to_string();
        let timestamp = config.clock.now().as_second();
        let mut headers = Headers(config.headers.clone(), Ok(()));
        headers.0.reserve(16);
        config.format.headers(event, Binding::Http, &mut |name, value| headers.set(name, value));
        headers.set(CONTENT_TYPE.as_str(), config.format.content_type(event));
        headers.set("webhook-id", &id);
        headers.set("webhook-timestamp", &timestamp.to_string());
        if !config.signer.is_empty() {
            headers.set("webhook-signature", &config.signer.sign(&id, timestamp, &body));
        }
        let Headers(headers, valid) = headers;
        valid?;
        Ok(self.message(Method::POST, headers, body))
    }

    fn message(&self, method: Method, headers: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
        let mut message = Request::new(Full::new(body));
        *message.method_mut() = method;
        *message.uri_mut() = self.config.uri.clone();
        *message.headers_mut() = headers;
        message
    }

    fn judge<B>(&self, response: &Response<B>) -> Answer {
        answered(&self.name, response.status(), response.headers(), self.config.clock.now())
    }

    fn keep_quiet(&self, wait: Duration) {
        let until = Instant::now() + wait;
        let mut quiet_until = self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
        if quiet_until.is_none_or(|known| known < until) {
            tracing::warn!(endpoint = self.name, ?wait, "the endpoint asks to be left alone");
            *quiet_until = Some(until);
        }
    }

    fn is_quiet(&self) -> Result<(), Failure> {
        let quiet_until = *self.quiet_until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = quiet_until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(left) if !left.is_zero() => Err(paused(&self.name, left)),
            _ => Ok(()),
        }
    }
}

/// The headers of a request, or the first that HTTP does not allow.
struct Headers(HeaderMap, Result<(), Failure>);

impl Headers {
    fn set(&mut self, name: &str, value: &str) {
        match (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            (Ok(name), Ok(value)) => {
                self.0.insert(name, value);
            }
            _ => {
                let what = format!("webhook: HTTP allows no header {name:?} with this value");
                self.1 = Err(Failure::refused("E-WEBHOOK-HEADER", what)
                    .with_fix("write the event with another header or content type"));
            }
        }
    }
}

/// The places of each lane's messages in the batch; lanes by their first message.
fn lanes(batch: &[Message]) -> Vec<Vec<usize>> {
    let mut lanes: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<LaneKey, usize> = HashMap::with_capacity(batch.len());
    for (place, message) in batch.iter().enumerate() {
        let lane = *known.entry(message.event.lane_key()).or_insert(lanes.len());
        match lanes.get_mut(lane) {
            Some(places) => places.push(place),
            None => lanes.push(vec![place]),
        }
    }
    lanes
}

/// Reads what is left of an answer, so that its connection can be used again. What is too long or
/// too slow is not waited for, and the connection is closed.
async fn drain(response: Response<impl Body<Data = Bytes> + Unpin>) {
    const BYTES: usize = 16 * 1024;
    const TIME: Duration = Duration::from_millis(500);
    let mut body = response.into_body();
    let read = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > BYTES {
                return;
            }
        }
    };
    // Nothing follows from it either way.
    let _ = timeout(TIME, read).await;
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebhookSink").field(&self.0.config).finish()
    }
}
