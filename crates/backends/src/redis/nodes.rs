//! The servers that hold keys: one, or the nodes of a cluster, found as they are needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{ConnectionAddr, RedisError, ServerErrorKind};

use super::config::RedisConfig;
use super::link::Dialler;

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// The server of the configuration, and those it has referred to.
pub(super) struct Nodes {
    config: Arc<RedisConfig>,
    first: Arc<Dialler>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_address: HashMap<String, Arc<Dialler>>,
    by_slot: HashMap<u16, Arc<Dialler>>,
}

/// Where a key is, as a node of a cluster says that does not have it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Moved {
    slot: u16,
    address: String,
}

impl Moved {
    pub(super) fn read(error: &RedisError) -> Option<Self> {
        let is_moved = error.kind() == redis::ErrorKind::Server(ServerErrorKind::Moved);
        let (address, slot) = error.redirect_node().filter(|_| is_moved)?;
        Some(Self { slot, address: address.to_owned() })
    }
}

impl Nodes {
    pub(super) fn new(config: Arc<RedisConfig>) -> Self {
        let first = Arc::new(Dialler::new(Arc::clone(&config)));
        Self { config, first, known: Mutex::default() }
    }

    /// The server of the configuration.
    pub(super) fn first(&self) -> &Arc<Dialler> {
        &self.first
    }

    /// The server that has a name, as far as is known.
    pub(super) fn of(&self, name: &str) -> Arc<Dialler> {
        let known = self.known();
        if known.by_slot.is_empty() {
            return Arc::clone(&self.first);
        }
        Arc::clone(known.by_slot.get(&slot(name)).unwrap_or(&self.first))
    }

    /// The server at another address of the same cluster.
    pub(super) fn at(&self, address: &str) -> Arc<Dialler> {
        let mut known = self.known();
        let new = || Arc::new(Dialler::new(Arc::new(elsewhere(&self.config, address))));
        Arc::clone(known.by_address.entry(address.to_owned()).or_insert_with(new))
    }

    /// Learns where a slot is, and gives that server.
    pub(super) fn follow(&self, moved: &Moved) -> Arc<Dialler> {
        let node = self.at(&moved.address);
        self.known().by_slot.insert(moved.slot, Arc::clone(&node));
        node
    }

    /// Whom to ask instead of a server that was lost: another may have taken its slots.
    pub(super) fn instead_of(&self, lost: &Arc<Dialler>) -> Arc<Dialler> {
        let mut known = self.known();
        known.by_slot.retain(|_, node| !Arc::ptr_eq(node, lost));
        if !Arc::ptr_eq(lost, &self.first) {
            return Arc::clone(&self.first);
        }
        Arc::clone(known.by_address.values().next().unwrap_or(&self.first))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same configuration for another server. A node may name only its port.
fn elsewhere(config: &RedisConfig, address: &str) -> RedisConfig {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let there = |host_before: &String, port_before: u16| {
        let host = if host.is_empty() { host_before.clone() } else { host.to_owned() };
        (host, port.parse().unwrap_or(port_before))
    };
    let moved = match config.server.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let (host, port) = there(host, *port);
            ConnectionAddr::Tcp(host, port)
        }
        ConnectionAddr::TcpTls { host, port, insecure, tls_params } => {
            let (host, port) = there(host, *port);
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            }
        }
        other => other.clone(),
    };
    let mut config = config.clone();
    config.server = config.server.set_addr(moved);
    config
}

/// The slot of a name in a cluster: of what stands in braces, if anything does.
pub(super) fn slot(name: &str) -> u16 {
    let tagged = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tagged.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(name);
    crc16(hashed.as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as the specification of the cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (name, expected) in
            [("{a}:orders", 15495), ("{b}:orders", 3300), ("foo", 12182), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(name), expected, "{name}");
        }
    }

    #[test]
    fn a_node_that_names_only_its_port_is_on_the_same_host() {
        let config = RedisConfig::new("rediss://cache.example:6379").unwrap();
        let there = |address: &str| elsewhere(&config, address).server.addr().to_string();
        assert_eq!(there("10.0.0.7:6381"), "10.0.0.7:6381");
        assert_eq!(there(":6381"), "cache.example:6381");
    }
}
