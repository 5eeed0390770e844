//! `[http]`: where the page is, under which names it is reached, and who may do what there.

use std::net::{Ipv4Addr, SocketAddr};

use semel_core::Secret;
use semel_dashboard::{Access, Role};

use super::Section;

/// Where the page is, and for whom.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) listen: SocketAddr,
    pub(crate) access: Access,
}

const PORT: u16 = 9464;

/// A token that could be guessed is none.
const SHORTEST: usize = 16;

pub(super) fn read_http(section: &mut Section<'_>) -> Option<Http> {
    let listen = match section.optional("listen") {
        Some(text) => text.parse().map_err(|_| {
            section.wrong("listen", "must be an address with a port, such as 127.0.0.1:9464");
        }),
        None => Ok((Ipv4Addr::LOCALHOST, PORT).into()),
    };
    let hosts = section.list("hosts").unwrap_or_default();
    let mut is_anybody_named = false;
    let callers = section.tables("access", |caller| {
        is_anybody_named = true;
        read_caller(caller)
    });
    let listen: SocketAddr = listen.ok()?;
    // On this machine everybody may do everything, as long as nobody is named.
    let is_of_this_machine = listen.ip().is_loopback();
    let begin = if is_of_this_machine { Access::open() } else { Access::default() };
    let is_anybody_let_in = is_of_this_machine || !callers.is_empty();
    let mut access = hosts.into_iter().fold(begin, Access::host);
    for Caller { name, role, proof } in callers {
        access = match proof {
            Proof::Token(token) => access.caller(name, role, &token),
            Proof::Hash(hash) => access.caller_by_hash(name, role, hash),
        };
    }
    // What is wrong with somebody who is named is told already.
    let is_told = is_anybody_named || section.has("access") && !section.holds_table("access");
    if !is_anybody_let_in && !is_told {
        section.wrong(
            "listen",
            "other machines could reach it, and nobody is asked who they are: add \
             [http.access.NAME] with role and token_file, or listen on 127.0.0.1:9464",
        );
    }
    Some(Http { listen, access })
}

struct Caller {
    name: String,
    role: Role,
    proof: Proof,
}

enum Proof {
    Token(Secret),
    Hash([u8; 32]),
}

fn read_caller(section: &mut Section<'_>) -> Option<Caller> {
    const ROLES: &[(&str, Role)] =
        &[("viewer", Role::Viewer), ("operator", Role::Operator), ("admin", Role::Admin)];
    let role = section.choice("role", ROLES);
    if !section.has("role") {
        section.wrong("role", "is needed: \"viewer\", \"operator\" or \"admin\"");
    }
    let hash = section.optional("token_sha256");
    let token = section.secret("token");
    let proof = match (token, hash) {
        (Some(_), Some(_)) => {
            section.wrong("token_sha256", "give it or a token, not both");
            None
        }
        (Some(token), None) if token.reveal().len() < SHORTEST => {
            let why =
                format!("needs {SHORTEST} characters or more; make one by openssl rand -hex 32");
            section.wrong("token", &why);
            None
        }
        (Some(token), None) => Some(Proof::Token(token)),
        (None, Some(hash)) => {
            let bytes = bytes_of(&hash);
            if bytes.is_none() {
                section.wrong("token_sha256", "must be the 64 digits that sha256sum prints");
            }
            bytes.map(Proof::Hash)
        }
        (None, None) => {
            if !section.has("token") && !section.has("token_file") {
                section.wrong("token", "is needed: token_file, token or token_sha256");
            }
            None
        }
    };
    Some(Caller { name: section.name().to_owned(), role: role?, proof: proof? })
}

fn bytes_of(digits: &str) -> Option<[u8; 32]> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| Some(digit(pair[0])? * 16 + digit(pair[1])?);
    let bytes: Option<Vec<u8>> = digits
        .trim()
        .as_bytes()
        .chunks(2)
        .map(|two| if two.len() == 2 { pair(two) } else { None })
        .collect();
    bytes?.try_into().ok()
}
