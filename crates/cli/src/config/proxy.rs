//! `[proxy]` and `[proxy.route.NAME]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_core::Secret;
use semel_core::idempotency::AfterCrash;
use semel_http::proxy::{PathPattern, Upstream};
use semel_http::{Covers, EncryptionKeys, IdempotencyKey, Policy, Scope};

use super::document::Document;
use super::{SECTIONS, Section};
use crate::exit::Problem;
use crate::wiring::both_or_neither;

/// What `[proxy]` says; what it does not say may be said on the command line.
#[derive(Debug, Default)]
pub(crate) struct ProxyFile {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_open: Option<bool>,
    pub(crate) upstream: Option<String>,
    pub(crate) upstream_http2: Option<bool>,
    pub(crate) certificate_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) store: Option<Secret>,
    pub(crate) encryption_keys: Option<EncryptionKeys>,
    pub(crate) scope: Option<Scope>,
    pub(crate) observe: Option<bool>,
    pub(crate) grace: Option<Duration>,
    pub(crate) keys: KeyOptions,
    pub(crate) routes: Vec<Route>,
}

/// `[proxy.route.NAME]`.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) paths: PathPattern,
    pub(crate) keys: KeyOptions,
}

/// The rules for keys, as far as they are said.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyOptions {
    key: Option<Need>,
    profile: Option<Profile>,
    methods: Option<Vec<http::Method>>,
    key_headers: Option<Vec<http::HeaderName>>,
    key_format: Option<KeyFormat>,
    min_key: Option<usize>,
    covers: Option<Covers>,
    canonical_json: Option<bool>,
    lease: Option<Duration>,
    keep: Option<Duration>,
    wait: Option<Duration>,
    after_crash: Option<AfterCrash>,
    max_request: Option<usize>,
    max_response: Option<usize>,
    stream_after: Option<Duration>,
    replay_headers: Option<Vec<http::HeaderName>>,
    fail_open: Option<bool>,
    fingerprint_secret: Option<Secret>,
    docs: Option<String>,
    streaming_methods: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Optional,
    Required,
    Ignored,
}

#[derive(Clone, Copy, Debug)]
enum Profile {
    Ietf,
    Stripe,
    Grpc,
}

#[derive(Clone, Copy, Debug)]
enum KeyFormat {
    Any,
    Quoted,
    Uuid,
}

impl ProxyFile {
    /// Reads and checks a file, but for what the command line replaces.
    pub(crate) fn load(
        path: &Path,
        effect: &'static str,
        replaced: Replaced,
    ) -> Result<Self, Problem> {
        super::load(path, effect, |document| Self::read(document, replaced)).map(|(file, ..)| file)
    }

    pub(super) fn read(document: &Document<'_>, replaced: Replaced) -> Self {
        document.allow_only(SECTIONS);
        let file = document.section("proxy", |section| read_proxy(section, replaced));
        file.unwrap_or_default()
    }
}

/// What the command line says instead of the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replaced {
    pub(crate) upstream: bool,
    /// Where `admin` listens, or that it may be open.
    pub(crate) admin: bool,
    /// The certificate, or its key.
    pub(crate) identity: bool,
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const KIB: usize = 1024;
const GIB: usize = 1024 * 1024 * KIB;

fn read_proxy(section: &mut Section<'_>, replaced: Replaced) -> Option<ProxyFile> {
    let scope = section.optional("scope");
    let scope =
        scope.and_then(|text| parse_scope(&text).map_err(|why| section.wrong("scope", &why)).ok());
    let file = ProxyFile {
        listen: address(section, "listen"),
        admin: address(section, "admin"),
        admin_open: section.boolean("admin_open"),
        upstream: section.optional("upstream"),
        upstream_http2: section.boolean("upstream_http2"),
        certificate_file: section.optional("certificate_file").map(PathBuf::from),
        key_file: section.optional("key_file").map(PathBuf::from),
        ca_file: section.optional("ca_file").map(PathBuf::from),
        timeout: section.duration("timeout", SECOND / 100..=DAY),
        connect_timeout: section.duration("connect_timeout", SECOND / 100..=60 * SECOND),
        store: section.secret("store"),
        encryption_keys: encryption_keys(section),
        scope,
        observe: section.boolean("observe"),
        grace: section.duration("grace", Duration::ZERO..=DAY),
        keys: read_keys(section),
        routes: section.tables("route", read_route),
    };
    check(section, &file, replaced);
    Some(file)
}

/// What can be seen to be wrong, whatever the command line adds.
fn check(section: &Section<'_>, file: &ProxyFile, replaced: Replaced) {
    let upstream = file.upstream.as_deref().filter(|_| !replaced.upstream);
    if let Some(Err(failure)) = upstream.map(Upstream::new) {
        let fix = failure.fix().unwrap_or_default();
        section.wrong("upstream", &format!("{failure}; {fix}"));
    }
    if !replaced.identity {
        both_or_neither(section, ["certificate_file", "key_file"]);
    }
    let is_open = replaced.admin || file.admin_open == Some(true);
    if file.admin.is_some_and(|admin| !admin.ip().is_loopback()) && !is_open {
        section.wrong(
            "admin",
            "health and metrics would be open to other machines; choose an address such as \
             127.0.0.1:9090, or add admin_open = true",
        );
    }
    if file.keys.key == Some(Need::Ignored) {
        section.wrong(
            "key",
            "\"ignored\" would leave nothing to do; write it in the [proxy.route.NAME] it is meant for",
        );
    }
}

fn read_route(section: &mut Section<'_>) -> Option<Route> {
    let (paths, keys) = (section.required("path"), read_keys(section));
    let paths = paths?.parse::<PathPattern>();
    let paths = paths.map_err(|failure| section.wrong("path", &failure.to_string())).ok()?;
    Some(Route { paths, keys })
}

fn read_keys(section: &mut Section<'_>) -> KeyOptions {
    let needs =
        [("optional", Need::Optional), ("required", Need::Required), ("ignored", Need::Ignored)];
    let formats =
        [("any", KeyFormat::Any), ("quoted", KeyFormat::Quoted), ("uuid", KeyFormat::Uuid)];
    let profiles = [("ietf", Profile::Ietf), ("stripe", Profile::Stripe), ("grpc", Profile::Grpc)];
    let crashes = [("run_again", AfterCrash::RunAgain), ("uncertain", AfterCrash::Uncertain)];
    KeyOptions {
        key: section.choice("key", &needs),
        profile: section.choice("profile", &profiles),
        methods: parsed(section, "methods", |word| word.to_ascii_uppercase().parse().ok()),
        key_headers: parsed(section, "key_headers", |word| word.parse().ok()),
        key_format: section.choice("key_format", &formats),
        min_key: section.size("min_key", 1..=IdempotencyKey::MAX_BYTES),
        covers: section
            .choice("covers", &[("endpoint", Covers::Endpoint), ("tenant", Covers::Tenant)]),
        canonical_json: section.boolean("canonical_json"),
        lease: section.duration("lease", SECOND / 10..=DAY),
        keep: section.duration("keep", SECOND..=10 * 365 * DAY),
        wait: section.duration("wait", Duration::ZERO..=300 * SECOND),
        after_crash: section.choice("after_crash", &crashes),
        max_request: section.size("max_request", 1..=GIB),
        max_response: section.size("max_response", 1..=GIB),
        stream_after: section.duration("stream_after", Duration::ZERO..=300 * SECOND),
        replay_headers: parsed(section, "replay_headers", |word| word.parse().ok()),
        fail_open: section.boolean("fail_open"),
        fingerprint_secret: section.secret("fingerprint_secret"),
        docs: section.optional("docs"),
        streaming_methods: section.list("streaming_methods"),
    }
}

/// Who is told apart by what: `header:NAME`, or `single-tenant`.
pub(crate) fn parse_scope(text: &str) -> Result<Scope, String> {
    let header = text.strip_prefix("header:").and_then(|name| name.trim().parse().ok());
    match (text, header) {
        ("single-tenant", _) => Ok(Scope::single_tenant()),
        (_, Some(header)) => Ok(Scope::header(header)),
        _ => Err(format!(
            "{text:?} is no scope; write \"header:Authorization\" or \"single-tenant\""
        )),
    }
}

fn encryption_keys(section: &mut Section<'_>) -> Option<EncryptionKeys> {
    const NAME: &str = "encryption_keys";
    let secret = section.secret(NAME)?;
    let keys = EncryptionKeys::parse(&secret);
    keys.map_err(|failure| section.wrong(NAME, &failure.to_string())).ok()
}

fn address(section: &mut Section<'_>, key: &str) -> Option<SocketAddr> {
    let text = section.optional(key)?;
    let address = text.parse();
    address
        .map_err(|_| section.wrong(key, "must be an address with a port, such as 127.0.0.1:8080"))
        .ok()
}

fn parsed<T>(
    section: &mut Section<'_>,
    key: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<Vec<T>> {
    let words = section.list(key)?;
    let values: Option<Vec<T>> = words.iter().map(|word| parse(word)).collect();
    if values.is_none() {
        section.wrong(key, "has a word that cannot stand there");
    }
    values
}

impl KeyOptions {
    /// What is not said here is as in `base`.
    pub(crate) fn or(self, base: &Self) -> Self {
        let base = base.clone();
        Self {
            key: self.key.or(base.key),
            profile: self.profile.or(base.profile),
            methods: self.methods.or(base.methods),
            key_headers: self.key_headers.or(base.key_headers),
            key_format: self.key_format.or(base.key_format),
            min_key: self.min_key.or(base.min_key),
            covers: self.covers.or(base.covers),
            canonical_json: self.canonical_json.or(base.canonical_json),
            lease: self.lease.or(base.lease),
            keep: self.keep.or(base.keep),
            wait: self.wait.or(base.wait),
            after_crash: self.after_crash.or(base.after_crash),
            max_request: self.max_request.or(base.max_request),
            max_response: self.max_response.or(base.max_response),
            stream_after: self.stream_after.or(base.stream_after),
            replay_headers: self.replay_headers.or(base.replay_headers),
            fail_open: self.fail_open.or(base.fail_open),
            fingerprint_secret: self.fingerprint_secret.or(base.fingerprint_secret),
            docs: self.docs.or(base.docs),
            streaming_methods: self.streaming_methods.or(base.streaming_methods),
        }
    }

    /// The policy they make; none, if keys are ignored.
    pub(crate) fn policy(self, scope: Scope) -> Option<Policy> {
        if self.key == Some(Need::Ignored) {
            return None;
        }
        let mut policy = match self.profile {
            Some(Profile::Stripe) => Policy::stripe(scope),
            Some(Profile::Grpc) => Policy::grpc(scope),
            Some(Profile::Ietf) | None => Policy::ietf(scope),
        };
        policy = match self.key_format {
            Some(KeyFormat::Quoted) => policy.quoted_keys_only(),
            Some(KeyFormat::Uuid) => policy.uuid_keys_only(),
            Some(KeyFormat::Any) | None => policy,
        };
        if self.key == Some(Need::Required) {
            policy = policy.require_key();
        }
        if self.canonical_json == Some(true) {
            policy = policy.canonical_json();
        }
        if self.fail_open == Some(true) {
            policy = policy.fail_open();
        }
        policy = with(policy, self.methods, Policy::methods);
        policy = with(policy, self.key_headers, Policy::key_headers);
        policy = with(policy, self.min_key, Policy::min_key_bytes);
        policy = with(policy, self.covers, Policy::key_covers);
        policy = with(policy, self.max_request, Policy::max_request_bytes);
        policy = with(policy, self.max_response, Policy::max_response_bytes);
        policy = with(policy, self.stream_after, Policy::stream_after);
        policy = with(policy, self.replay_headers, Policy::replay_headers);
        policy = with(policy, self.fingerprint_secret, Policy::fingerprint_secret);
        policy = with(policy, self.docs, Policy::docs);
        policy = with(policy, self.streaming_methods, Policy::streaming_methods);
        Some(policy.rules(|rules| {
            rules.lease = self.lease.unwrap_or(rules.lease);
            rules.keep = self.keep.unwrap_or(rules.keep);
            rules.wait = self.wait.unwrap_or(rules.wait);
            rules.after_crash = self.after_crash.unwrap_or(rules.after_crash);
        }))
    }
}

fn with<T>(policy: Policy, value: Option<T>, set: impl FnOnce(Policy, T) -> Policy) -> Policy {
    match value {
        Some(value) => set(policy, value),
        None => policy,
    }
}
