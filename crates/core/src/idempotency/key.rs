//! What identifies an operation and what it was asked to do.

use std::fmt;
use std::str::FromStr;

use crate::failure::Failure;

/// An idempotency key together with everything that makes it somebody's: tenant, method, path.
///
/// Parts are length-prefixed before they are hashed, so that no two different lists of parts give
/// the same key by being glued together.
///
/// ```
/// # use semel_core::idempotency::ScopedKey;
/// let a = ScopedKey::new(&["acme", "POST", "/orders", "k1"]);
/// let b = ScopedKey::new(&["acmeP", "OST", "/orders", "k1"]);
/// assert_ne!(a, b);
/// assert_eq!(a.to_string().parse::<ScopedKey>()?, a);
/// assert!("k1".parse::<ScopedKey>().is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopedKey([u8; 32]);

impl ScopedKey {
    /// The key of these parts, in this order.
    #[must_use]
    pub fn new(parts: &[&str]) -> Self {
        Self(hash(parts.iter().map(|part| part.as_bytes())))
    }

    /// The key that has these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for ScopedKey {
    type Err = Failure;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::refused("E-KEY-HASH", format!("{text:?} is not the hash of a key")).with_fix(
                "take the 64 digits from a log line, a problem document or a list of keys",
            )
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(wrong)?;
            *byte = u8::try_from(high << 4 | low).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ScopedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What an operation was asked to do, as a hash: another request under the same key is told apart
/// by it.
///
/// ```
/// # use semel_core::idempotency::Fingerprint;
/// let order = Fingerprint::new(&[b"POST", b"/orders", b"{\"total\":1}"]);
/// assert_eq!(order, Fingerprint::new(&[b"POST", b"/orders", b"{\"total\":1}"]));
/// assert_ne!(order, Fingerprint::new(&[b"POST", b"/orders", b"{\"total\":2}"]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of these parts, in this order.
    #[must_use]
    pub fn new(parts: &[&[u8]]) -> Self {
        Self(hash(parts.iter().copied()))
    }

    /// The fingerprint as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

fn hash<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> [u8; 32] {
    let mut short = [0; SHORT];
    if let Some(text) = join(parts.clone(), &mut short) {
        return blake3::hash(text).into();
    }
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&prefix(part));
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// Most keys and requests fit; hashing them in one go takes half the time.
const SHORT: usize = 512;

fn join<'a, 'b>(
    parts: impl Iterator<Item = &'a [u8]>,
    buffer: &'b mut [u8; SHORT],
) -> Option<&'b [u8]> {
    let mut used = 0;
    for part in parts {
        for bytes in [&prefix(part)[..], part] {
            buffer.get_mut(used..used + bytes.len())?.copy_from_slice(bytes);
            used += bytes.len();
        }
    }
    Some(&buffer[..used])
}

fn prefix(part: &[u8]) -> [u8; 8] {
    (part.len() as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_parts_are_hashed_alike() {
        for size in [0, 1, 63, 495, 496, 497, 600, 5000] {
            let body = vec![7; size];
            let mut text = [prefix(b"k").to_vec(), b"k".to_vec()].concat();
            text.extend([prefix(&body).to_vec(), body.clone()].concat());
            let expected = *blake3::hash(&text).as_bytes();
            assert_eq!(Fingerprint::new(&[b"k", &body]).as_bytes(), &expected, "{size} bytes");
        }
    }
}
