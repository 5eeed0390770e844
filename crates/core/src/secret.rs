//! Strings that cannot be printed by accident.

use std::fmt;

use serde::Deserialize;

/// A password, token or key. `Debug` and `Display` show stars, and it cannot be serialised.
///
/// ```
/// # use semel_core::Secret;
/// let secret = Secret::new("hunter2");
/// assert_eq!(format!("{secret} {secret:?}"), "*** Secret(***)");
/// assert_eq!(secret.reveal(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a string.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The string itself. Call it where it is used, never where it is logged.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
