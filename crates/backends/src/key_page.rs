//! What a row of a table of keys says to operators.

use std::time::Duration;

use semel_core::idempotency::{KeyPage, KeyView, ScopedKey};

/// A key as it is in a table.
pub(crate) struct KeyRow {
    pub(crate) key: Vec<u8>,
    pub(crate) attempt: u32,
    /// Of a result only.
    pub(crate) version: Option<u8>,
    /// The last byte of the result.
    pub(crate) last: Option<Vec<u8>>,
    pub(crate) bytes: Option<i64>,
    /// How long it lasts, in microseconds.
    pub(crate) remaining: i64,
}

impl KeyRow {
    pub(crate) fn view(self) -> Option<KeyView> {
        let key = ScopedKey::from_bytes(self.key.try_into().ok()?);
        let remaining = Duration::from_micros(u64::try_from(self.remaining).unwrap_or(0));
        Some(match self.version {
            None => KeyView::claimed(key, self.attempt, remaining),
            Some(version) => {
                let last = self.last.and_then(|last| last.last().copied());
                let bytes = self.bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0);
                KeyView::done(key, version, last, bytes, remaining)
            }
        })
    }
}

/// A page in the order of the keys. If it is full there may be more.
pub(crate) fn page(keys: Vec<KeyView>, limit: usize) -> KeyPage {
    let next = keys.last().filter(|_| keys.len() == limit).map(|view| view.key.to_string());
    KeyPage { keys, next }
}

/// The bytes of the key after which a page begins; nothing sorts before all.
pub(crate) fn after(place: Option<&str>) -> Result<Vec<u8>, semel_core::Failure> {
    let key: Option<ScopedKey> = place.map(str::parse).transpose()?;
    Ok(key.map_or(Vec::new(), |key| key.as_bytes().to_vec()))
}
