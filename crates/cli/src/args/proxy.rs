//! `semel proxy`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use semel_http::Scope;

use crate::config::parse_scope;

/// `semel proxy`
#[derive(Args, Debug)]
pub(crate) struct ProxyOptions {
    /// The service behind it, such as http://127.0.0.1:3000 or https://shop.example
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,

    /// Where clients find it [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,

    /// Speak TLS to clients: the certificate to show, and those that lead to its authority
    #[arg(long, value_name = "FILE", requires = "key_file")]
    pub(crate) certificate_file: Option<PathBuf>,

    /// The private key of the certificate
    #[arg(long, value_name = "FILE", requires = "certificate_file")]
    pub(crate) key_file: Option<PathBuf>,

    /// Who signs the certificate of an https upstream [default: whom the system trusts]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// Where the keys are kept: memory:, redis://…, postgres://…, mysql://…, sqlite://…
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Whose keys they are: header:NAME, such as header:Authorization, or single-tenant
    #[arg(long, value_name = "SCOPE", value_parser = parse_scope)]
    pub(crate) scope: Option<Scope>,

    /// Where /livez, /readyz and /metrics are [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<SocketAddr>,

    /// Let other machines reach them, too
    #[arg(long)]
    pub(crate) admin_open: bool,

    /// Let every request through, and only say what would have been done with it
    #[arg(long)]
    pub(crate) observe: bool,

    /// More rules: the section [proxy] of this file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}
