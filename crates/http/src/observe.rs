//! Lets every request through, and says what would have been done with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use metrics::counter;
use semel_core::idempotency::{Claim, Ending, ScopedKey, Stored, Token};
use semel_core::telemetry::IDEMPOTENCY_OBSERVED;
use tower_service::Service;

use crate::body::{Body, Gathered, gather};
use crate::capture;
use crate::engine::{Engine, Job};
use crate::policy::Policy;
use crate::problem::Problem;
use crate::service::IdempotencyService;
use crate::verdict::Verdict;

impl<S> IdempotencyService<S> {
    /// Forwards the request whatever its key says.
    pub(crate) async fn observe<B, R>(
        mut self,
        request: Request<B>,
    ) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        B: http_body::Body<Data = Bytes, Error: Send> + Send,
        R: http_body::Body,
    {
        let observer = Observer { engine: self.engine.clone(), policy: Arc::clone(&self.policy) };
        let (parts, body) = request.into_parts();
        let (body, job) = observer.read(&parts, body).await;
        let owned = match job {
            Ok(job) => observer.judge(job).await.map(|token| (job, token)),
            Err(problem) => {
                let words = format!("it would be refused: {}", problem.name());
                note("rejected", &words, None);
                None
            }
        };
        let response = self.inner.call(Request::from_parts(parts, body)).await;
        if let Some((job, token)) = owned {
            let is_kept = response.as_ref().is_ok_and(|response| {
                let verdict = response.extensions().get::<Verdict>().copied();
                observer.policy.keeps(verdict, response.status())
            });
            observer.remember(job, token, is_kept).await;
        }
        response.map(|response| response.map(Body::from))
    }
}

struct Observer {
    engine: Engine,
    policy: Arc<Policy>,
}

impl Observer {
    /// Reads as much of the request as would have been read, and leaves none of it out.
    async fn read<B>(&self, parts: &Parts, body: B) -> (Body<B>, Result<Job, Problem>)
    where
        B: http_body::Body<Data = Bytes, Error: Send> + Send,
    {
        const PATIENCE: Duration = Duration::from_secs(60);
        let limit = self.policy.max_request_bytes;
        let key = match capture::scoped_key(&self.policy, parts) {
            Ok(key) => key,
            Err(problem) => return (body.into(), Err(problem)),
        };
        let gathered = gather(body, limit, PATIENCE).await;
        let job = match &gathered {
            Gathered::Whole { data, .. } => capture::job(&self.policy, parts, key, data),
            Gathered::Rest { .. } => Err(Problem::BodyTooLarge { limit }),
            Gathered::Broken { .. } => Err(Problem::BodyCutOff),
        };
        let apart = |job: Job| Job { key: apart(&job.key), ..job };
        (gathered.into(), job.map(apart))
    }

    /// Says what would have been done; the token of a request that would have been the first.
    async fn judge(&self, job: Job) -> Option<Token> {
        let Job { key, fingerprint, rules } = job;
        let (outcome, words) =
            match self.engine.store().claim(&key, &fingerprint, rules.lease).await {
                Ok(Claim::Fresh { token, .. }) => {
                    note("executed", "it would run", Some(&key));
                    return Some(token);
                }
                Ok(Claim::Done(_)) => ("replayed", "it would get the first one's answer"),
                Ok(Claim::InFlight { .. }) => {
                    ("in_progress", "it would wait for the first, or get 409")
                }
                Ok(Claim::Mismatch) => {
                    ("mismatch", "it would be refused: the key is another request's")
                }
                Err(_) => ("store_error", "it would be refused: the keys cannot be reached"),
            };
        note(outcome, words, Some(&key));
        None
    }

    async fn remember(&self, job: Job, token: Token, is_kept: bool) {
        let done = if is_kept {
            let seen = Stored::record(Ending::NotRetained, Vec::new());
            self.engine.store().complete(&job.key, token, seen, job.rules.keep).await
        } else {
            self.engine.store().release(&job.key, token).await
        };
        if let Err(failure) = done {
            tracing::warn!(key = %job.key, code = failure.code(), %failure, "cannot remember what was observed");
        }
    }
}

/// A key that is never taken for one in earnest.
fn apart(key: &ScopedKey) -> ScopedKey {
    ScopedKey::new(&["observed", &key.to_string()])
}

fn note(outcome: &'static str, words: &str, key: Option<&ScopedKey>) {
    counter!(IDEMPOTENCY_OBSERVED.name, "outcome" => outcome).increment(1);
    let key = key.map(ToString::to_string);
    tracing::info!(outcome, key, "observed: {words}");
}
