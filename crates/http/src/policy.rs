//! Which requests need a key, whose it is, and what is kept.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use semel_core::Secret;
use semel_core::idempotency::Rules;

use crate::attempt::Attempt;
use crate::headers::ReplayHeaders;
use crate::key::KeySyntax;
use crate::scope::Scope;
use crate::verdict::Verdict;

/// The rules of one layer. Routes that differ get layers that differ.
///
/// | question | [`Policy::ietf`] | [`Policy::stripe`] |
/// |---|---|---|
/// | methods | POST, PATCH | POST |
/// | no key | passes, unless [`Policy::require_key`] | passes |
/// | the key covers | tenant, method, path | tenant |
/// | another request under the same key | 422 | 400, `idempotency_error` |
/// | kept | 2xx–4xx without 401 403 408 421 425 429 | also 5xx |
///
/// [`Policy::grpc`] is for gRPC.
///
/// ```
/// use semel_http::{Policy, Scope};
/// use std::time::Duration;
///
/// let policy = Policy::ietf(Scope::authorization())
///     .require_key()
///     .uuid_keys_only()
///     .rules(|rules| rules.wait = Duration::ZERO);
/// ```
#[derive(Clone)]
pub struct Policy {
    pub(crate) profile: Profile,
    pub(crate) methods: Vec<Method>,
    pub(crate) key_headers: Vec<HeaderName>,
    pub(crate) key_required: bool,
    pub(crate) key_syntax: KeySyntax,
    pub(crate) key_covers: Covers,
    pub(crate) scope: Scope,
    pub(crate) rules: Rules,
    pub(crate) fingerprint_secret: Option<Secret>,
    pub(crate) canonical_json: bool,
    pub(crate) max_request_bytes: usize,
    pub(crate) max_response_bytes: usize,
    pub(crate) stream_after: Duration,
    pub(crate) replay_headers: ReplayHeaders,
    pub(crate) fail_open: bool,
    pub(crate) docs: String,
    pub(crate) streaming_methods: Vec<String>,
    keeps: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
}

/// Whose words refusals are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Ietf,
    Stripe,
    Grpc,
}

/// What makes two uses of a key the same operation, beside the tenant.
///
/// ```
/// # use semel_http::{Covers, Policy, Scope};
/// let misuse_is_visible = Policy::ietf(Scope::authorization()).key_covers(Covers::Tenant);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covers {
    /// Method and path: the same key on another endpoint is another operation.
    Endpoint,
    /// Nothing else: the same key on another endpoint is a mistake, and refused as one.
    Tenant,
}

impl Policy {
    /// Where refusals are explained, unless [`Policy::docs`] says otherwise.
    pub const DOCS: &'static str =
        "https://docs.rs/semel-http/latest/semel_http/problem/index.html#";

    const MEBIBYTE: usize = 1024 * 1024;

    /// The `Idempotency-Key` header as the IETF's draft describes it.
    #[must_use]
    pub fn ietf(scope: Scope) -> Self {
        Self {
            profile: Profile::Ietf,
            methods: vec![Method::POST, Method::PATCH],
            key_headers: vec![HeaderName::from_static("idempotency-key")],
            key_required: false,
            key_syntax: KeySyntax::default(),
            key_covers: Covers::Endpoint,
            scope,
            rules: Rules::default(),
            fingerprint_secret: None,
            canonical_json: false,
            max_request_bytes: Self::MEBIBYTE,
            max_response_bytes: Self::MEBIBYTE,
            stream_after: Duration::from_secs(1),
            replay_headers: ReplayHeaders::default(),
            fail_open: false,
            docs: Self::DOCS.to_owned(),
            streaming_methods: Vec::new(),
            keeps: Arc::new(|status| is_settled(status) && !status.is_server_error()),
        }
    }

    /// Keys as clients of Stripe's first API know them.
    #[must_use]
    pub fn stripe(scope: Scope) -> Self {
        Self {
            profile: Profile::Stripe,
            methods: vec![Method::POST],
            key_covers: Covers::Tenant,
            keeps: Arc::new(is_settled),
            ..Self::ietf(scope)
        }
    }

    /// Keys of unary gRPC calls, in the metadata `idempotency-key`. Put the layer around the server;
    /// it needs no generated code and reads no message.
    ///
    /// A retry gets the same message, status and metadata, and `idempotent-replayed: true`. Kept are
    /// OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION and OUT_OF_RANGE; every
    /// other status frees the key.
    ///
    /// | refusal | status |
    /// |---|---|
    /// | key missing or malformed, message cut off | INVALID_ARGUMENT |
    /// | the caller is not known | UNAUTHENTICATED |
    /// | another message under the same key | FAILED_PRECONDITION |
    /// | the first call is still running | ABORTED, with `grpc-retry-pushback-ms` |
    /// | the result was not retained | FAILED_PRECONDITION |
    /// | the outcome is unknown | UNKNOWN |
    /// | the message is too large | RESOURCE_EXHAUSTED |
    /// | a stream | UNIMPLEMENTED |
    /// | the store is down | UNAVAILABLE, with `grpc-retry-pushback-ms` |
    ///
    /// Which of them it was is in the metadata `idempotency-problem`, by its [name](crate::problem).
    ///
    /// A call with more than one message, or that does not end after its message, is refused as a
    /// stream. Of a method that answers a single message with a stream nothing can be seen before it
    /// runs: name it in [`Policy::streaming_methods`]. Otherwise such an answer is kept if it is short,
    /// and "not retained" if it is not.
    ///
    /// ```
    /// use semel_http::{Policy, Scope};
    ///
    /// let policy = Policy::grpc(Scope::authorization()).streaming_methods(["/shop.Orders/Watch"]);
    /// ```
    #[must_use]
    pub fn grpc(scope: Scope) -> Self {
        Self { profile: Profile::Grpc, methods: vec![Method::POST], ..Self::ietf(scope) }
            .replay_all_headers()
    }

    /// The methods of gRPC, as `/package.Service/Method`, that are refused if they come with a key.
    #[must_use]
    pub fn streaming_methods<P: Into<String>>(
        mut self,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        self.streaming_methods.extend(paths.into_iter().map(Into::into));
        self
    }

    /// The methods that take a key. Others pass, with or without one.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// The headers that may carry the key, in place of `Idempotency-Key`.
    #[must_use]
    pub fn key_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.key_headers = names.into_iter().collect();
        self
    }

    /// Refuses requests without a key.
    #[must_use]
    pub fn require_key(mut self) -> Self {
        self.key_required = true;
        self
    }

    /// Refuses keys that are not quoted, as the draft has it. Most clients do not quote.
    #[must_use]
    pub fn quoted_keys_only(mut self) -> Self {
        self.key_syntax.quoted_only = true;
        self
    }

    /// Refuses keys that do not look like a UUID, of any version.
    #[must_use]
    pub fn uuid_keys_only(mut self) -> Self {
        self.key_syntax.uuid_shaped = true;
        self
    }

    /// Refuses keys shorter than this.
    #[must_use]
    pub fn min_key_bytes(mut self, bytes: usize) -> Self {
        self.key_syntax.min_bytes = bytes;
        self
    }

    /// What makes two uses of a key the same operation.
    #[must_use]
    pub fn key_covers(mut self, covers: Covers) -> Self {
        self.key_covers = covers;
        self
    }

    /// Changes lease, retention, wait, and what a crash means.
    #[must_use]
    pub fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    /// Mixes a secret into the fingerprint, so that nobody who reads the store can guess bodies.
    /// All instances need the same one.
    #[must_use]
    pub fn fingerprint_secret(mut self, secret: Secret) -> Self {
        self.fingerprint_secret = Some(secret);
        self
    }

    /// Two JSON bodies that differ in white space or the order of members are the same request.
    #[must_use]
    pub fn canonical_json(mut self) -> Self {
        self.canonical_json = true;
        self
    }

    /// The largest body of a request with a key; 1 MiB by default.
    #[must_use]
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.max_request_bytes = bytes;
        self
    }

    /// The largest response that is kept; 1 MiB by default. A larger one reaches the first client,
    /// and no other.
    #[must_use]
    pub fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.max_response_bytes = bytes;
        self
    }

    /// A response of unknown length that has not ended after this long is passed on as a stream
    /// and not kept; 1 s by default. Server-sent events are never held back.
    #[must_use]
    pub fn stream_after(mut self, patience: Duration) -> Self {
        self.stream_after = patience;
        self
    }

    /// Which results are kept, by status. A handler's [`Verdict`] overrides it.
    #[must_use]
    pub fn keep_if(mut self, keeps: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.keeps = Arc::new(keeps);
        self
    }

    /// Headers to replay beside the usual ones and `X-…`. Cookies, credentials and headers of the
    /// connection are never replayed.
    #[must_use]
    pub fn replay_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.replay_headers.also.extend(names);
        self
    }

    /// Replays every header except cookies, credentials and headers of the connection.
    #[must_use]
    pub fn replay_all_headers(mut self) -> Self {
        self.replay_headers.all = true;
        self
    }

    /// Runs requests without protection while the store is down, in place of refusing them.
    #[must_use]
    pub fn fail_open(mut self) -> Self {
        self.fail_open = true;
        self
    }

    /// Where your own documentation explains the refusals; the name of each is appended.
    #[must_use]
    pub fn docs(mut self, address: impl Into<String>) -> Self {
        self.docs = address.into();
        self
    }

    /// Whether the request is this layer's business at all.
    pub(crate) fn concerns<B>(&self, request: &Request<B>) -> bool {
        self.methods.contains(request.method())
            // Another layer outside has claimed a key for it.
            && request.extensions().get::<Attempt>().is_none()
            && (self.key_required
                || self.key_headers.iter().any(|name| request.headers().contains_key(name))
                || is_early(request.headers()))
    }

    pub(crate) fn keeps(&self, verdict: Option<Verdict>, status: StatusCode) -> bool {
        match verdict {
            Some(Verdict::Final) => true,
            Some(Verdict::Retryable | Verdict::NotStarted | Verdict::Unknown) => false,
            None => (self.keeps)(status),
        }
    }
}

/// Whether a server took the request from TLS early data, which anybody can repeat.
fn is_early(headers: &HeaderMap) -> bool {
    headers.get("early-data").is_some_and(|value| value == "1")
}

/// Whether a retry of the same request would get the same answer, as far as a status tells.
fn is_settled(status: StatusCode) -> bool {
    !status.is_informational() && !matches!(status.as_u16(), 401 | 403 | 408 | 421 | 425 | 429)
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("profile", &self.profile)
            .field("methods", &self.methods)
            .field("key_headers", &self.key_headers)
            .field("key_required", &self.key_required)
            .field("key_syntax", &self.key_syntax)
            .field("key_covers", &self.key_covers)
            .field("scope", &self.scope)
            .field("rules", &self.rules)
            .field("canonical_json", &self.canonical_json)
            .field("max_request_bytes", &self.max_request_bytes)
            .field("max_response_bytes", &self.max_response_bytes)
            .field("stream_after", &self.stream_after)
            .field("fail_open", &self.fail_open)
            .finish_non_exhaustive()
    }
}
