//! Who may do what: the one place that decides it, for the page and the API alike.

use std::fmt;
use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::{Failure, Secret};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// What somebody may do. Each may do what those before it may.
///
/// ```
/// # use semel_dashboard::Role;
/// assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look, at everything but payloads and headers.
    Viewer,
    /// Reveal payloads, retry and discard.
    Operator,
    /// Publish again what was published, and free idempotency keys.
    Admin,
}

impl Role {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Somebody who asks.
///
/// ```
/// # use semel_dashboard::{Caller, Role};
/// let alice = Caller::new("alice", Role::Operator);
/// assert_eq!(alice.role, Role::Operator);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// As the log of changes has it.
    pub name: String,
    /// What they may do.
    pub role: Role,
}

impl Caller {
    /// Somebody of this name and role.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role }
    }
}

/// Who may do what, and under which names it is reached.
///
/// A caller proves who they are by `Authorization: Bearer TOKEN`, or as a browser does it, by
/// `Basic` with their name and the token as the password. Tokens are kept as hashes and compared in
/// constant time. Without callers nobody gets in, unless it was [opened](Access::open).
///
/// ```
/// use semel_core::Secret;
/// use semel_dashboard::{Access, Role};
///
/// let access = Access::default()
///     .host("semel.example.com")
///     .caller("alice", Role::Operator, &Secret::new("correct horse battery staple"));
/// assert!(!access.is_open() && !Access::default().is_open());
/// ```
#[derive(Clone, Default)]
pub struct Access {
    is_opened: bool,
    hosts: Vec<String>,
    known: Vec<(Caller, Hash)>,
}

type Hash = [u8; 32];

impl Access {
    /// Everybody who reaches it is admin: for a loopback interface, or behind something that lets nobody
    /// pass who may not. It is still reached by an address or `localhost` only, unless there are
    /// [`hosts`](Access::host).
    ///
    /// ```
    /// # use semel_dashboard::Access;
    /// assert!(Access::open().is_open());
    /// ```
    #[must_use]
    pub fn open() -> Self {
        Self { is_opened: true, ..Self::default() }
    }

    /// A name under which it is reached, beside addresses and `localhost`. Requests for any other
    /// name are refused, since a web page elsewhere could be behind them.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into().to_ascii_lowercase());
        self
    }

    /// Lets somebody in who has the token. From then on nobody else gets in, not even if it was open.
    #[must_use]
    pub fn caller(self, name: impl Into<String>, role: Role, token: &Secret) -> Self {
        self.caller_by_hash(name, role, Sha256::digest(token.reveal()).into())
    }

    /// The same, by the SHA-256 of the token.
    #[must_use]
    pub fn caller_by_hash(mut self, name: impl Into<String>, role: Role, hash: Hash) -> Self {
        self.known.push((Caller::new(name, role), hash));
        self
    }

    /// Whether nobody is asked who they are.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_opened && self.known.is_empty()
    }

    /// Whether there is nobody whom it could let in.
    pub(crate) fn is_closed(&self) -> bool {
        !self.is_opened && self.known.is_empty()
    }

    /// Whether it may be asked under this name. An address is no name: no page elsewhere can pretend
    /// to be one.
    pub(crate) fn answers_to(&self, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(HOST) else { return true };
        let host = host.to_str().unwrap_or_default().to_ascii_lowercase();
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_own = name.parse::<IpAddr>().is_ok() || name == "localhost";
        is_own || self.hosts.iter().any(|known| *known == name || *known == host)
    }

    /// Who asks, as the headers prove it.
    pub(crate) fn who(&self, headers: &HeaderMap) -> Option<Caller> {
        if self.is_open() {
            return Some(Caller::new("local", Role::Admin));
        }
        let (name, token) = credentials(headers)?;
        let hash: Hash = Sha256::digest(token).into();
        // All are compared, and none is compared up to the first difference only.
        let mut found = None;
        for (caller, known) in &self.known {
            let is_named = name.as_ref().is_none_or(|name| *name == caller.name);
            if is_same(&hash, known) && is_named {
                found = Some(caller);
            }
        }
        found.cloned()
    }
}

fn is_same(one: &Hash, other: &Hash) -> bool {
    std::hint::black_box(one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

/// The token, and the name if one was given.
fn credentials(headers: &HeaderMap) -> Option<(Option<String>, String)> {
    let (scheme, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((None, rest.trim().to_owned()));
    }
    let both = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
    let (name, token) = both.split_once(':')?;
    scheme.eq_ignore_ascii_case("basic").then(|| (Some(name.to_owned()), token.to_owned()))
}

/// Refuses somebody whose role does not reach.
pub(crate) fn require(caller: &Caller, role: Role) -> Result<(), Failure> {
    if caller.role >= role {
        return Ok(());
    }
    let (name, is) = (&caller.name, caller.role.as_str());
    let what = format!("{name} is {is}, and this needs {}", role.as_str());
    Err(Failure::refused("E-HTTP-ROLE", what)
        .with_fix(format!("ask somebody who is {}, or change [http.access.{name}]", role.as_str())))
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers: Vec<_> = self.known.iter().map(|(caller, _)| caller).collect();
        f.debug_struct("Access")
            .field("is_open", &self.is_open())
            .field("hosts", &self.hosts)
            .field("callers", &callers)
            .finish()
    }
}
