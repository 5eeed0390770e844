//! Which paths are meant.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use semel_core::Failure;

/// A path; `*` stands for one part of it, `**` at the end for all that follow.
///
/// ```
/// use semel_http::proxy::PathPattern;
///
/// let payments: PathPattern = "/accounts/*/payments".parse()?;
/// assert!(payments.matches("/accounts/7/payments"));
/// assert!(!payments.matches("/accounts/7/payments/1"));
/// let all: PathPattern = "/accounts/**".parse()?;
/// assert!(all.matches("/accounts/7/payments") && all.matches("/accounts"));
/// assert!("/a*b".parse::<PathPattern>().is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    parts: Vec<Option<String>>,
    is_open: bool,
}

impl PathPattern {
    /// Whether the path is meant, however it is spelled: `%61` is an `a`, and a slash at the end or
    /// one too many makes no difference, as many services have it. Otherwise a client could choose
    /// the rules of its request by the spelling.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let mut given = path.split('/').filter(|part| !part.is_empty()).map(percent_decode_str);
        let begins_alike = self.parts.iter().all(|part| match (part, given.next()) {
            (Some(part), Some(given)) => given.eq(part.bytes()),
            (None, Some(_)) => true,
            (_, None) => false,
        });
        begins_alike && (self.is_open || given.next().is_none())
    }

    /// The more, the more exactly it says what is meant.
    pub(super) fn weight(&self) -> (usize, bool) {
        (self.parts.iter().flatten().count(), !self.is_open)
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    path.split('/').filter(move |_| !path.is_empty())
}

impl FromStr for PathPattern {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let (path, is_open) = match text.strip_suffix("/**") {
            Some(path) => (path, true),
            None => (text, false),
        };
        let part = |part: &str| match part {
            "*" => Some(None),
            _ if part.contains('*') || part.is_empty() => None,
            _ => Some(Some(part.to_owned())),
        };
        let parts: Option<Vec<_>> = parts(path).map(part).collect();
        match parts {
            Some(parts) if text.starts_with('/') => Ok(Self { parts, is_open }),
            _ => {
                let what = format!("{text:?} is no pattern of paths");
                Err(Failure::misconfigured("E-PATH-PATTERN", what).with_fix(
                    "write a path such as /orders, with * for one part or /** at the end",
                ))
            }
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            write!(f, "/{}", part.as_deref().unwrap_or("*"))?;
        }
        match (self.is_open, self.parts.is_empty()) {
            (true, _) => f.write_str("/**"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_say() {
        let cases = [
            ("/", "/", true),
            ("/", "/orders", false),
            ("/**", "/", true),
            ("/**", "/a/b/c", true),
            ("/orders", "/orders/", true),
            ("/orders", "/orders/1", false),
            ("/orders/*", "/orders", false),
            ("/orders/*", "/orders//", false),
            ("/orders/*", "/orders/1", true),
            ("/orders/new", "/%6Frders//new", true),
            ("/orders/new", "/orders%2Fnew", false),
            ("/*/items/**", "/orders/items/1/2", true),
            ("/*/items/**", "/orders/other/1", false),
        ];
        for (pattern, path, expected) in cases {
            let parsed: PathPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(path), expected, "{pattern} {path}");
            assert_eq!(parsed.to_string(), pattern);
        }
        for wrong in ["", "orders", "/a//b", "/**/a", "/a*"] {
            assert!(wrong.parse::<PathPattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn more_literal_parts_weigh_more() {
        let weight = |text: &str| text.parse::<PathPattern>().unwrap().weight();
        assert!(weight("/orders/new") > weight("/orders/*"));
        assert!(weight("/orders/*") > weight("/orders/**"));
        assert!(weight("/orders/**") > weight("/**"));
    }
}
