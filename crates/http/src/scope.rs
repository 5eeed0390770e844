//! Whose key it is.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, header};

/// Tells callers apart, so that none ever gets another's stored response.
///
/// There is no default: a service with several tenants must say how it knows them.
///
/// ```
/// use semel_http::Scope;
///
/// #[derive(Clone)]
/// struct Account(String); // put into the request by your authentication layer
///
/// let by_account = Scope::by(|request| request.extensions.get::<Account>().map(|a| a.0.clone()));
/// let by_api_key = Scope::header("x-api-key".parse()?);
/// let one_tenant = Scope::single_tenant();
/// # Ok::<(), http::header::InvalidHeaderName>(())
/// ```
#[derive(Clone)]
pub struct Scope(Resolver);

#[derive(Clone)]
enum Resolver {
    SingleTenant,
    Header(HeaderName),
    By(Arc<NameOf>),
}

type NameOf = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl Scope {
    /// All callers are one: the service has a single tenant, or a layer outside keeps them apart.
    #[must_use]
    pub fn single_tenant() -> Self {
        Self(Resolver::SingleTenant)
    }

    /// The value of a request header, such as an API key. A caller whose token changes from
    /// request to request loses its replays: name it by [`Scope::by`] instead.
    #[must_use]
    pub fn header(name: HeaderName) -> Self {
        Self(Resolver::Header(name))
    }

    /// The value of the `Authorization` header.
    #[must_use]
    pub fn authorization() -> Self {
        Self::header(header::AUTHORIZATION)
    }

    /// Whatever names the caller, usually an extension that the authentication layer has set.
    /// A request for which it answers `None` or an empty string is refused.
    #[must_use]
    pub fn by(name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Resolver::By(Arc::new(name)))
    }

    /// The caller's name; `None` if it cannot be known.
    pub(crate) fn resolve<'p>(&self, parts: &'p Parts) -> Option<Cow<'p, str>> {
        match &self.0 {
            Resolver::SingleTenant => Some(Cow::Borrowed("")),
            Resolver::Header(name) => named(parts.headers.get(name)?.to_str().ok()?.into()),
            Resolver::By(name) => named(name(parts)?.into()),
        }
    }
}

fn named(name: Cow<'_, str>) -> Option<Cow<'_, str>> {
    Some(name).filter(|name| !name.trim().is_empty())
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Resolver::SingleTenant => f.write_str("Scope(single tenant)"),
            Resolver::Header(name) => write!(f, "Scope(header {name})"),
            Resolver::By(_) => f.write_str("Scope(by …)"),
        }
    }
}
