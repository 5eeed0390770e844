//! Which names are meant.

use std::fmt;
use std::str::FromStr;

use crate::failure::Failure;

/// A name, or the beginning of names and a `*`.
///
/// ```
/// use semel_core::route::Pattern;
///
/// let pattern: Pattern = "Order*".parse()?;
/// assert!(pattern.matches("OrderPlaced") && !pattern.matches("PaymentTaken"));
/// assert!("Order".parse::<Pattern>().is_ok_and(|exact| !exact.matches("OrderPlaced")));
/// assert!("*Placed".parse::<Pattern>().is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    begin: String,
    is_open: bool,
}

impl Pattern {
    /// Whether the name is meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        if self.is_open { name.starts_with(&self.begin) } else { name == self.begin }
    }
}

impl FromStr for Pattern {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let (begin, is_open) = match text.strip_suffix('*') {
            Some(begin) => (begin, true),
            None => (text, false),
        };
        if text.is_empty() || begin.contains('*') {
            let what = format!("pattern {text:?}: a * may only stand at the end of a name");
            return Err(Failure::misconfigured("E-PATTERN", what).with_fix(
                "write a name such as \"OrderPlaced\", or its beginning as in \"Order*\"",
            ));
        }
        Ok(Self { begin: begin.into(), is_open })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.begin, if self.is_open { "*" } else { "" })
    }
}
