//! The client's half of the bargain: one key per logical call, repeated with every retry.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use reqwest::{Request, Response};
use semel_core::idempotency::ScopedKey;
use semel_core::{Clock, Schedule, SystemClock, Timestamp};
use tokio::time::{Instant, sleep, timeout};

use crate::headers::REPLAYED;
use crate::key::IdempotencyKey;

/// Sends requests with an idempotency key, and repeats them under the same key until there is an
/// answer.
///
/// | answer | what it does |
/// |---|---|
/// | cannot connect, connection lost, no answer in time | repeats |
/// | 408, 425, 429, 500, 502, 503, 504 | repeats, unless it is a replay of a stored answer |
/// | 409 with `Retry-After` | repeats: the first request is still running |
/// | everything else, 400 and 422 above all | returns it |
///
/// Pauses follow a [`Schedule`] with jitter, and are never shorter than `Retry-After`. TLS is what
/// your own `reqwest` was built with.
///
/// To survive a crash of the *client*, make the key first, store it together with the request, and
/// use [`Client::send_as`] again after the restart.
///
/// ```no_run
/// use semel_http::client::{CallError, Client};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let http = reqwest::Client::new();
/// let client = Client::new(http.clone());
/// let order = http.post("https://shop.example/orders").body("{\"total\":1}").build()?;
/// match client.send(order).await {
///     Ok(response) => println!("answered: {}", response.status()),
///     Err(CallError::Unknown { key, .. }) => println!("ask again later with key {key}"),
///     Err(error) => println!("nothing happened: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    schedule: Schedule,
    header: HeaderName,
    within: Duration,
    answer_within: Duration,
}

impl Client {
    /// Sends through this client: at once, then after 0.5, 1, 2, 4 and 8 seconds; five minutes at
    /// most.
    #[must_use]
    pub fn new(http: reqwest::Client) -> Self {
        let waits = [0, 500, 1000, 2000, 4000, 8000].map(Duration::from_millis);
        Self {
            http,
            schedule: Schedule::new(waits.to_vec()),
            header: HeaderName::from_static("idempotency-key"),
            within: Duration::from_secs(5 * 60),
            answer_within: Duration::from_secs(30),
        }
    }

    /// When each attempt is made.
    #[must_use]
    pub fn with_schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// The header that carries the key.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// No attempt is made later than this after the first. It must be shorter than the server
    /// keeps its results, or a late attempt would run as a new request.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// How long each attempt waits for its answer to begin: 30 seconds unless set. A server that
    /// hangs would otherwise keep the call for ever.
    #[must_use]
    pub fn answer_within(mut self, time: Duration) -> Self {
        self.answer_within = time;
        self
    }

    /// Sends the request under a new key.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send(&self, request: Request) -> Result<Response, CallError> {
        self.send_as(&IdempotencyKey::new(), request).await
    }

    /// Sends the request under this key.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send_as(
        &self,
        key: &IdempotencyKey,
        mut request: Request,
    ) -> Result<Response, CallError> {
        if let Ok(value) = HeaderValue::from_str(key.as_str()) {
            request.headers_mut().insert(&self.header, value);
        }
        let salt = salt(key);
        let started = Instant::now();
        let (mut attempts, mut may_have_run) = (0, false);
        loop {
            let copy = request.try_clone().ok_or(CallError::NotRepeatable)?;
            let result = timeout(self.answer_within, self.http.execute(copy)).await.ok();
            attempts += 1;
            let judgement = match &result {
                Some(Ok(response)) => {
                    judge(response.status(), response.headers(), SystemClock.now())
                }
                Some(Err(error)) => judge_error(error),
                None => Judgement { repeat: Some(Duration::ZERO), may_have_run: true },
            };
            may_have_run |= judgement.may_have_run;
            let pause = judgement.repeat.and_then(|least| {
                let pause = self.schedule.delay_after(attempts, salt)?.max(least);
                (started.elapsed() + pause < self.within).then_some(pause)
            });
            match pause {
                Some(pause) => sleep(pause).await,
                None => return conclude(key, attempts, may_have_run, judgement.repeat, result),
            }
        }
    }
}

/// Why there is no answer.
///
/// ```
/// # use semel_http::client::CallError;
/// assert!(CallError::NotRepeatable.to_string().contains("cannot be repeated"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request never reached a server: nothing happened.
    #[error("the request was not sent")]
    NotSent(#[source] reqwest::Error),
    /// All attempts are spent, and at least one of them may have taken effect. Ask again later,
    /// with the same key and [`Client::send_as`].
    #[error("after {attempts} attempts it is unknown whether the request took effect")]
    Unknown {
        /// The key to ask again with.
        key: IdempotencyKey,
        /// How many attempts were made.
        attempts: u32,
        /// The last answer, if there was one.
        status: Option<StatusCode>,
        /// The last error, if there was no answer.
        source: Option<reqwest::Error>,
    },
    /// The body is a stream, which cannot be sent twice; nothing was sent.
    #[error("the request has a body that cannot be repeated: give it as bytes, not as a stream")]
    NotRepeatable,
}

/// What follows from one attempt.
#[derive(Debug, PartialEq, Eq)]
struct Judgement {
    /// Another attempt is worth it, after at least this long.
    repeat: Option<Duration>,
    /// It may have taken effect without saying so.
    may_have_run: bool,
}

fn judge(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Judgement {
    const ANSWERED: Judgement = Judgement { repeat: None, may_have_run: false };
    let after = headers.get(RETRY_AFTER).and_then(|value| retry_after(value, now));
    if headers.contains_key(REPLAYED) {
        return ANSWERED;
    }
    match status.as_u16() {
        425 | 429 => Judgement { repeat: Some(after.unwrap_or_default()), may_have_run: false },
        409 if after.is_some() => Judgement { repeat: after, may_have_run: true },
        408 | 500 | 502..=504 => {
            Judgement { repeat: Some(after.unwrap_or_default()), may_have_run: true }
        }
        _ => ANSWERED,
    }
}

fn judge_error(error: &reqwest::Error) -> Judgement {
    let never_sent = error.is_builder() || error.is_connect();
    let hopeless = error.is_builder() || error.is_redirect();
    Judgement { repeat: (!hopeless).then_some(Duration::ZERO), may_have_run: !never_sent }
}

/// Seconds, or a date.
fn retry_after(value: &HeaderValue, now: Timestamp) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(date.duration_since(now).try_into().unwrap_or(Duration::ZERO))
}

/// No further attempt is made: says what is known. No result is an answer that did not come in time.
fn conclude(
    key: &IdempotencyKey,
    attempts: u32,
    may_have_run: bool,
    repeat: Option<Duration>,
    result: Option<Result<Response, reqwest::Error>>,
) -> Result<Response, CallError> {
    let unknown =
        |status, source| CallError::Unknown { key: key.clone(), attempts, status, source };
    match result {
        Some(Ok(response)) if repeat.is_some() && may_have_run => {
            Err(unknown(Some(response.status()), None))
        }
        Some(Ok(response)) => Ok(response),
        Some(Err(error)) if may_have_run => Err(unknown(None, Some(error))),
        Some(Err(error)) => Err(CallError::NotSent(error)),
        None => Err(unknown(None, None)),
    }
}

/// Calls that fail together do not come back together.
fn salt(key: &IdempotencyKey) -> u64 {
    let hash = ScopedKey::new(&["salt", key.as_str()]);
    hash.as_bytes().iter().take(8).fold(0, |salt, byte| salt << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0); // Thu, 01 Jan 2026 00:00:00 GMT

    fn judged(status: u16, headers: &[(&'static str, &'static str)]) -> Judgement {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        judge(StatusCode::from_u16(status).unwrap(), &headers, NOW)
    }

    #[test]
    fn refusals_are_never_repeated() {
        for status in [200, 201, 303, 400, 401, 403, 404, 409, 412, 422, 501] {
            assert_eq!(judged(status, &[]), Judgement { repeat: None, may_have_run: false });
        }
        for status in [400, 422] {
            assert_eq!(judged(status, &[("retry-after", "1")]).repeat, None, "{status}");
        }
    }

    #[test]
    fn what_may_still_succeed_is_repeated() {
        let at_once = Some(Duration::ZERO);
        for status in [408, 500, 502, 503, 504] {
            assert_eq!(judged(status, &[]), Judgement { repeat: at_once, may_have_run: true });
        }
        for status in [425, 429] {
            assert_eq!(judged(status, &[]), Judgement { repeat: at_once, may_have_run: false });
        }
    }

    #[test]
    fn a_conflict_is_repeated_only_if_the_server_says_when() {
        assert_eq!(judged(409, &[("retry-after", "2")]).repeat, Some(Duration::from_secs(2)));
        assert_eq!(judged(409, &[("retry-after", "soon")]).repeat, None);
    }

    #[test]
    fn a_stored_error_is_the_answer() {
        let replayed = [("idempotent-replayed", "true")];
        assert_eq!(judged(500, &replayed).repeat, None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let cases = [
            ("7", Some(7)),
            ("Thu, 01 Jan 2026 00:01:00 GMT", Some(60)),
            ("Wed, 31 Dec 2025 00:00:00 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ];
        for (text, seconds) in cases {
            let after = retry_after(&HeaderValue::from_static(text), NOW);
            assert_eq!(after, seconds.map(Duration::from_secs), "{text}");
        }
    }
}
