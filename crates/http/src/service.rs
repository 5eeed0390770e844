//! The service itself: one keyed request from its headers to its answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, HeaderValue,
};
use http::request::Parts;
use http::{Method, Request, Response};
use pin_project_lite::pin_project;
use semel_core::idempotency::{Ending, Refusal, ScopedKey, Stored};
use tower_service::Service;

use crate::body::Body;
use crate::capture::{self, Captured};
use crate::engine::{Admission, Claimed, Ended, Engine, Started};
use crate::headers::{REPLAYED, RETENTION, STATUS};
use crate::policy::{Policy, Profile};
use crate::problem::Problem;
use crate::record;
use crate::run::refused;
use crate::settle::{Fate, Settlement};
use crate::tally::{Outcome, Tally};
use crate::trace::FirstTrace;

/// A service whose requests run once per key. Made by [`IdempotencyLayer`](crate::IdempotencyLayer).
///
/// Requests without a key pass through untouched.
#[derive(Clone)]
pub struct IdempotencyService<S> {
    pub(crate) inner: S,
    pub(crate) engine: Engine,
    pub(crate) policy: Arc<Policy>,
    pub(crate) observing: bool,
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
    R: http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.policy.concerns(&request) {
            let retention = self.retention_asked_for(&request);
            let future = self.inner.call(request.map(Body::from));
            return ResponseFuture { state: State::Passing { future, retention } };
        }
        // The one that was made ready goes with the request; a clone takes its place.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let (engine, policy) = (self.engine.clone(), Arc::clone(&self.policy));
        let service = Self { inner, engine, policy, observing: self.observing };
        let future: BoxFuture<'static, _> = if self.observing {
            Box::pin(service.observe(request))
        } else {
            let (parts, body) = request.into_parts();
            Box::pin(service.answer(parts, body))
        };
        ResponseFuture { state: State::Keyed { future } }
    }
}

impl<S> IdempotencyService<S> {
    /// How long answers are kept, in seconds, if that is to be told.
    fn retention_asked_for<B>(&self, request: &Request<B>) -> Option<u64> {
        let is_told = *request.method() == Method::OPTIONS && !self.observing;
        is_told.then_some(self.policy.rules.keep.as_secs())
    }

    async fn answer<B, R>(self, parts: Parts, body: B) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
        R: http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
    {
        let tally = Tally::new();
        let read = async {
            let key = capture::scoped_key(&self.policy, &parts)?;
            let captured = capture::request(&self.policy, body).await?;
            let job = capture::job(&self.policy, &parts, key, &captured.data)?;
            Ok((job, captured))
        };
        let (job, Captured { data, trailers }) = match read.await {
            Ok(read) => read,
            Err(problem) => {
                tally.is(Outcome::Rejected);
                return Ok(Problem::response(&problem, &self.policy));
            }
        };
        let policy = Arc::clone(&self.policy);
        match self.engine.admit(&job).await {
            Admission::Owner(claimed) => {
                let request = Request::from_parts(parts, Body::whole(data, trailers));
                match self.start(claimed, tally, request).end().await {
                    Ended::Returned(result, fate) => Ok(settled(&policy, job.key, result?, fate)),
                    Ended::Panicked => Ok(Problem::HandlerPanicked.response(&policy)),
                    Ended::Interrupted => Ok(Problem::Interrupted.response(&policy)),
                }
            }
            Admission::Replay(stored) => {
                tally.is(Outcome::Replayed);
                let response = replay(&policy, job.key, stored);
                #[cfg(feature = "trace")]
                if let Some(first) = response.extensions().get::<FirstTrace>() {
                    first.replayed_for(&parts.headers);
                }
                Ok(response)
            }
            Admission::Refused(refusal) => {
                tally.is(refused(&refusal));
                Ok(refuse(&policy, job.key, refusal))
            }
            Admission::Unavailable(failure) if policy.fail_open => {
                tracing::warn!(code = failure.code(), %failure, "the keys cannot be reached: running without protection");
                tally.is(Outcome::Unprotected);
                // Boxed, as what is rare elsewhere: it would make every future larger.
                let request = Request::from_parts(parts, Body::whole(data, trailers));
                Box::pin(self.run_unprotected(request)).await
            }
            Admission::Unavailable(failure) => {
                tracing::error!(code = failure.code(), %failure, "the keys cannot be reached: request refused");
                tally.is(Outcome::StoreError);
                Ok(Problem::StoreUnavailable.response(&policy))
            }
        }
    }

    /// Starts the handler in a task of its own.
    fn start<B, R>(
        self,
        claimed: Claimed,
        tally: Tally,
        mut request: Request<Body<B>>,
    ) -> Started<Result<Response<Body<R>>, S::Error>>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
        R: http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
    {
        let Self { mut inner, policy, .. } = self;
        claimed.start(tally, move |attempt| {
            let trace = FirstTrace::of(request.headers());
            request.extensions_mut().insert(attempt.under(&policy, trace.clone()));
            inner.call(request).then(move |result| handled(policy, trace, result))
        })
    }

    async fn run_unprotected<B, R>(
        mut self,
        request: Request<Body<B>>,
    ) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        B: http_body::Body,
        R: http_body::Body,
    {
        let mut response = self.inner.call(request).await?.map(Body::from);
        response.headers_mut().insert(STATUS, HeaderValue::from_static("unprotected"));
        Ok(response)
    }
}

/// What the handler returned, and what to keep of it.
async fn handled<R, E>(
    policy: Arc<Policy>,
    trace: Option<FirstTrace>,
    result: Result<Response<R>, E>,
) -> (Result<Response<Body<R>>, E>, Settlement)
where
    R: http_body::Body<Data = Bytes>,
{
    match result {
        Ok(response) => {
            let (response, settlement) = capture::response(&policy, trace.as_ref(), response).await;
            (Ok(response), settlement)
        }
        Err(error) => (Err(error), Settlement::Release),
    }
}

/// The first client's answer.
fn settled<R: http_body::Body>(
    policy: &Policy,
    key: ScopedKey,
    mut response: Response<Body<R>>,
    fate: Fate,
) -> Response<Body<R>> {
    match fate {
        Fate::Settled => response,
        // Whatever the handler says now: this is what was committed.
        Fate::Recorded(stored) => replay(policy, key, stored),
        Fate::NotCommitted => Problem::NotCommitted.response(policy),
        // All other clients get the successor's result, so this one does too.
        Fate::Superseded(stored) if stored.ending == Ending::Succeeded => {
            replay(policy, key, stored)
        }
        Fate::NotStored | Fate::Fenced | Fate::Superseded(_) => {
            response.headers_mut().insert(STATUS, HeaderValue::from_static("not-stored"));
            response
        }
    }
}

fn replay<R: http_body::Body>(
    policy: &Policy,
    operation: ScopedKey,
    stored: Stored,
) -> Response<Body<R>> {
    let Some(mut response) = record::decode(stored.payload) else {
        return Problem::NotRetained { operation, status: None }.response(policy);
    };
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    if policy.profile != Profile::Grpc {
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        // Browsers of that origin may read it, so they may read what we added.
        let added = HeaderValue::from_static("idempotent-replayed, retry-after");
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, added);
    }
    response
}

fn refuse<R: http_body::Body>(
    policy: &Policy,
    operation: ScopedKey,
    refusal: Refusal,
) -> Response<Body<R>> {
    let problem = match refusal {
        Refusal::InProgress => Problem::InProgress,
        Refusal::Mismatch => Problem::KeyReused,
        Refusal::NotRetained(note) => {
            Problem::NotRetained { operation, status: record::decode_tombstone(note) }
        }
        Refusal::Uncertain => Problem::OutcomeUnknown { operation },
    };
    problem.response(policy)
}

pin_project! {
    /// The answer of an [`IdempotencyService`]. Dropping it does not stop a handler that has
    /// started.
    pub struct ResponseFuture<F, R: http_body::Body, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, R: http_body::Body, E> {
        Passing { #[pin] future: F, retention: Option<u64> },
        Keyed { future: BoxFuture<'static, Result<Response<Body<R>>, E>> },
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: http_body::Body,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Passing { future, retention } => {
                let answered = ready!(future.poll(context));
                Poll::Ready(answered.map(|response| {
                    let mut response = response.map(Body::from);
                    if let Some(seconds) = *retention {
                        response.headers_mut().insert(RETENTION, seconds.into());
                    }
                    response
                }))
            }
            StateProjection::Keyed { future } => future.as_mut().poll(context),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<F, R: http_body::Body, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
