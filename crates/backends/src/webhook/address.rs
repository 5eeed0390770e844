//! Which addresses may be connected to.
//!
//! Whoever chooses a URL, or answers for its name, must not reach what only this machine can reach.
//! Names are resolved here, and the addresses that pass are those that are connected to, so a name
//! cannot mean one thing when it is checked and another when it is used.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tower_service::Service;

/// Lets public addresses pass, and what is listed.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    allowed: Arc<[IpNet]>,
}

impl Guard {
    pub(super) fn new(allowed: &[IpNet]) -> Self {
        Self { allowed: allowed.into() }
    }

    /// Whether an address may be connected to.
    pub(super) fn permits(&self, address: IpAddr) -> bool {
        let meant = meant(address);
        let listed = |net: &IpNet| net.contains(&address) || net.contains(&meant);
        is_public(meant) || self.allowed.iter().any(listed)
    }
}

/// As a resolver of names.
impl Service<Name> for Guard {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let guard = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let (permitted, forbidden): (Vec<_>, Vec<_>) =
                found.partition(|address| guard.permits(address.ip()));
            match forbidden.first() {
                Some(address) if permitted.is_empty() => {
                    Err(io::Error::other(Forbidden(address.ip())))
                }
                _ => Ok(permitted.into_iter()),
            }
        })
    }
}

/// The name leads to a private network.
#[derive(Debug)]
pub(super) struct Forbidden(pub(super) IpAddr);

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no public address", self.0)
    }
}

impl std::error::Error for Forbidden {}

/// The address that an IPv6 address stands for: IPv4 is reached through some of them.
fn meant(address: IpAddr) -> IpAddr {
    const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0], 96);
    match address {
        IpAddr::V6(v6) if NAT64.contains(&v6) => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        other => other.to_canonical(),
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !SPECIAL_V4.iter().any(|net| net.contains(&v4)),
        IpAddr::V6(v6) => {
            GLOBAL_V6.contains(&v6) && !SPECIAL_V6.iter().any(|net| net.contains(&v6))
        }
    }
}

/// What the registries of special addresses list, and what clouds use for their metadata.
const SPECIAL_V4: [Ipv4Net; 16] = [
    v4([0, 0, 0, 0], 8),        // this network
    v4([10, 0, 0, 0], 8),       // private
    v4([100, 64, 0, 0], 10),    // behind a carrier's translation
    v4([127, 0, 0, 0], 8),      // loopback
    v4([168, 63, 129, 16], 32), // metadata of Azure
    v4([169, 254, 0, 0], 16),   // link-local, metadata of most clouds
    v4([172, 16, 0, 0], 12),    // private
    v4([192, 0, 0, 0], 24),     // protocols
    v4([192, 0, 2, 0], 24),     // documentation
    v4([192, 88, 99, 0], 24),   // relays to IPv6
    v4([192, 168, 0, 0], 16),   // private
    v4([198, 18, 0, 0], 15),    // benchmarks
    v4([198, 51, 100, 0], 24),  // documentation
    v4([203, 0, 113, 0], 24),   // documentation
    v4([224, 0, 0, 0], 4),      // multicast
    v4([240, 0, 0, 0], 4),      // reserved, broadcast
];

/// Everything else is loopback, link-local, private, multicast or reserved.
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0], 3);

const SPECIAL_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0, 0, 0, 0], 23),     // protocols, tunnels
    v6([0x2001, 0xdb8, 0, 0, 0, 0], 32), // documentation
    v6([0x2002, 0, 0, 0, 0, 0], 16),     // tunnels to IPv4
    v6([0x3fff, 0, 0, 0, 0, 0], 20),     // documentation
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6([a, b, c, d, e, f]: [u16; 6], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, 0, 0), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(allowed: &[&str], address: &str) -> bool {
        let allowed: Vec<IpNet> = allowed.iter().map(|net| net.parse().unwrap()).collect();
        Guard::new(&allowed).permits(address.parse().unwrap())
    }

    #[test]
    fn what_is_not_public_is_refused() {
        let refused = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.8.8.8",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "5f00::1",
        ];
        for address in refused {
            assert!(!permits(&[], address), "{address}");
        }
    }

    #[test]
    fn what_is_public_passes() {
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::8.8.8.8",
            "2606:4700:4700::1111",
            "2a00:1450::1",
        ];
        for address in public {
            assert!(permits(&[], address), "{address}");
        }
    }

    #[test]
    fn what_is_listed_passes_in_every_spelling_and_nothing_beside_it() {
        let allowed = ["10.20.0.0/16", "fd12::/16"];
        for address in ["10.20.3.4", "::ffff:10.20.3.4", "64:ff9b::10.20.3.4", "fd12::1"] {
            assert!(permits(&allowed, address), "{address}");
        }
        for address in ["10.21.0.1", "::ffff:10.21.0.1", "fd13::1", "127.0.0.1"] {
            assert!(!permits(&allowed, address), "{address}");
        }
    }
}
