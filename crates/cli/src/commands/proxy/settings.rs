//! What the command line and the file say together.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use semel_core::{Failure, Secret};
use semel_http::proxy::{Identity, PathPattern, Upstream};
use semel_http::{EncryptionKeys, Policy};

use super::EFFECT;
use crate::args::ProxyOptions;
use crate::config::{ProxyFile, Replaced, Route};
use crate::exit::Problem;

/// Everything a proxy needs to know.
pub(super) struct Settings {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) store: Secret,
    pub(super) encryption_keys: Option<EncryptionKeys>,
    /// As it was written.
    pub(super) upstream: String,
    pub(super) service: Upstream,
    pub(super) identity: Option<Identity>,
    pub(super) policy: Policy,
    pub(super) routes: Vec<(PathPattern, Option<Policy>)>,
    pub(super) observe: bool,
    pub(super) grace: Duration,
}

impl Settings {
    /// The command line has the last word.
    pub(super) fn read(options: &ProxyOptions) -> Result<Self, Problem> {
        let file = match &options.config {
            Some(path) => ProxyFile::load(path, EFFECT, replaced(options))?,
            None => ProxyFile::default(),
        };
        let upstream = options.upstream.clone().or(file.upstream);
        let upstream = said(upstream, "upstream", "http://127.0.0.1:3000")?;
        let store = options.store.as_deref().map(Secret::new).or(file.store);
        let scope = said(options.scope.clone().or(file.scope), "scope", "header:Authorization")?;
        let mut service = Upstream::new(&upstream)
            .map_err(|failure| Problem::new(failure, "--upstream", EFFECT).of_usage())?;
        service = file.timeout.into_iter().fold(service, Upstream::timeout);
        service = file.connect_timeout.into_iter().fold(service, Upstream::connect_timeout);
        if file.upstream_http2 == Some(true) {
            service = service.http2();
        }
        let ca_file = options.ca_file.as_ref().or(file.ca_file.as_ref());
        if let Some(path) = ca_file {
            service = read(path, "--ca-file", |pem| service.authorities(pem))?;
        }
        let certificate = options.certificate_file.clone().or(file.certificate_file);
        let key = options.key_file.clone().or(file.key_file);
        let identity = identity(certificate.as_deref(), key.as_deref())?;
        let admin = options.admin.or(file.admin).unwrap_or(local(9090));
        let is_open = options.admin_open || file.admin_open == Some(true);
        check_admin(admin, is_open)?;
        let policy_of =
            |route: Route| (route.paths, route.keys.or(&file.keys).policy(scope.clone()));
        let routes = file.routes.into_iter().map(policy_of).collect();
        let policy = file.keys.policy(scope.clone()).ok_or_else(ignores_everything)?;
        Ok(Self {
            listen: options.listen.or(file.listen).unwrap_or(local(8080)),
            admin,
            encryption_keys: file.encryption_keys,
            store: said(store, "store", "redis://127.0.0.1:6379")?,
            upstream,
            service,
            identity,
            policy,
            routes,
            observe: options.observe || file.observe == Some(true),
            grace: file.grace.unwrap_or(Duration::from_secs(30)),
        })
    }
}

fn replaced(options: &ProxyOptions) -> Replaced {
    Replaced {
        upstream: options.upstream.is_some(),
        admin: options.admin.is_some() || options.admin_open,
        identity: options.certificate_file.is_some() || options.key_file.is_some(),
    }
}

/// What is shown to clients that speak TLS: the command line and the file have both, or neither.
fn identity(certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<Identity>, Problem> {
    let Some((certificate, key)) = certificate.zip(key) else { return Ok(None) };
    let key = read(key, "--key-file", |pem| Ok(pem.to_vec()))?;
    read(certificate, "--certificate-file", |pem| Identity::from_pem(pem, &key)).map(Some)
}

/// Reads a file that an option names.
fn read<T>(
    path: &Path,
    option: &str,
    understand: impl FnOnce(&[u8]) -> Result<T, Failure>,
) -> Result<T, Problem> {
    let text = std::fs::read(path).map_err(|error| {
        Failure::misconfigured("E-PROXY-FILE", "the file cannot be read")
            .with_source(error)
            .with_fix("check its path, and that this user may read it")
    });
    let place = format!("{option} {}", path.display());
    text.and_then(|text| understand(&text)).map_err(|failure| Problem::new(failure, place, EFFECT))
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn said<T>(value: Option<T>, name: &str, example: &str) -> Result<T, Problem> {
    value.ok_or_else(|| {
        let what = format!("the proxy needs to know its {name}");
        let fix = format!("add --{name} {example}, or {name} = \"{example}\" in [proxy]");
        let failure = Failure::misconfigured("E-PROXY-SETTING", what).with_fix(fix);
        Problem::new(failure, "semel proxy", EFFECT).of_usage()
    })
}

/// Nobody is asked who they are there.
fn check_admin(address: SocketAddr, is_open: bool) -> Result<(), Problem> {
    if address.ip().is_loopback() || is_open {
        return Ok(());
    }
    let what = "health and metrics would be open to other machines";
    let failure = Failure::misconfigured("E-PROXY-ADMIN", what)
        .with_fix("choose an address such as 127.0.0.1:9090, or say --admin-open");
    Err(Problem::new(failure, address.to_string(), EFFECT).of_usage())
}

fn ignores_everything() -> Problem {
    let what = "key = \"ignored\" in [proxy] would leave nothing to do";
    let failure = Failure::misconfigured("E-PROXY-SETTING", what)
        .with_fix("write it in the [proxy.route.NAME] it is meant for");
    Problem::new(failure, "[proxy]", EFFECT)
}

#[cfg(test)]
#[cfg(feature = "full")]
mod tests {
    use super::*;
    use crate::config::documented;

    /// What the documentation says that holds, where nothing is said, is what does hold.
    #[test]
    fn a_documented_default_said_aloud_changes_nothing() {
        let silent = told("");
        let mut count = 0;
        for (path, _, key, value) in documented() {
            if path == "proxy" {
                let line = format!("{key} = {value}");
                assert_eq!(silent, told(&line), "{line}");
                count += 1;
            }
        }
        assert!(count > 20, "only {count} defaults are values");
    }

    fn told(line: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.toml");
        let needed =
            "upstream = \"http://127.0.0.1:3000\"\nstore = \"memory:\"\nscope = \"single-tenant\"";
        std::fs::write(&path, format!("[proxy]\n{needed}\n{line}\n")).unwrap();
        let options = ProxyOptions {
            upstream: None,
            listen: None,
            certificate_file: None,
            key_file: None,
            ca_file: None,
            store: None,
            scope: None,
            admin: None,
            admin_open: false,
            observe: false,
            config: Some(path),
        };
        let Settings { listen, admin, service, policy, observe, grace, .. } =
            Settings::read(&options).unwrap_or_else(|problem| panic!("{line}: {problem:?}"));
        format!("{:#?}", (listen, admin, service, policy, observe, grace))
    }
}
