//! The content of an event.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;

/// The content of an event and what kind of content it is.
///
/// ```
/// # use semel_core::Payload;
/// let payload = Payload::json(&[1, 2])?;
/// assert_eq!(payload.bytes().as_ref(), b"[1,2]");
/// assert!(payload.is_json());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    content_type: Cow<'static, str>,
    bytes: Bytes,
}

impl Payload {
    /// The content type of JSON payloads.
    pub const JSON: &'static str = "application/json";

    /// Raw bytes of a content type.
    #[must_use]
    pub fn new(content_type: impl Into<Cow<'static, str>>, bytes: impl Into<Bytes>) -> Self {
        Self { content_type: content_type.into(), bytes: bytes.into() }
    }

    /// `value` written as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self::new(Self::JSON, serde_json::to_vec(value)?))
    }

    /// What kind of content the bytes are.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The content.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Only its type stays.
    pub(crate) fn clear(&mut self) {
        self.bytes = Bytes::new();
    }

    /// Whether the content is JSON, by its type.
    #[must_use]
    pub fn is_json(&self) -> bool {
        let essence = self.content_type.split(';').next().unwrap_or_default().trim();
        essence == Self::JSON || essence.ends_with("+json")
    }
}

impl Default for Payload {
    /// The JSON value `null`.
    fn default() -> Self {
        Self::new(Self::JSON, Bytes::from_static(b"null"))
    }
}
