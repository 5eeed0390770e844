//! The key as clients write it: syntax, and derivation for calls further down.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::Failure;
use semel_core::idempotency::ScopedKey;
use uuid::Uuid;

/// The name of one logical operation, chosen by the client and repeated with every retry.
///
/// ```
/// use semel_http::IdempotencyKey;
///
/// let key = IdempotencyKey::new();
/// let bank: IdempotencyKey = key.child("bank");
/// assert_eq!(bank, key.child("bank"));
/// assert_eq!(bank.as_str().len(), 36);
/// assert!("".parse::<IdempotencyKey>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The longest key.
    pub const MAX_BYTES: usize = 255;

    /// A key nobody has used before.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two defaults would not be equal")]
    pub fn new() -> Self {
        Self(Uuid::now_v7().to_string())
    }

    /// A key for a call that this operation makes to another service: the same whenever it is
    /// asked for, different for every `name`. It has the shape of a UUID, which every API takes.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self::derived(&self.0, name)
    }

    /// The key as it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn derived(parent: &str, name: &str) -> Self {
        let hash = ScopedKey::new(&["child", parent, name]);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_bytes()[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string())
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IdempotencyKey {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        KeySyntax::default()
            .check(text)
            .map(|()| Self(text.to_owned()))
            .map_err(|reason| Failure::refused("E-KEY-INVALID", reason))
    }
}

/// Which keys are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeySyntax {
    /// Only the quoted form of the draft standard.
    pub(crate) quoted_only: bool,
    /// Only keys shaped like a UUID, of any version.
    pub(crate) uuid_shaped: bool,
    pub(crate) min_bytes: usize,
}

impl Default for KeySyntax {
    fn default() -> Self {
        Self { quoted_only: false, uuid_shaped: false, min_bytes: 1 }
    }
}

impl KeySyntax {
    /// The key of a request, if it has one.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence for the client.
    pub(crate) fn read<'h>(
        &self,
        headers: &'h HeaderMap,
        names: &[HeaderName],
    ) -> Result<Option<Cow<'h, str>>, String> {
        let mut lines = names.iter().flat_map(|name| headers.get_all(name));
        let Some(line) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err("the request has more than one key".to_owned());
        }
        let key = self.unquote(line)?;
        self.check(&key)?;
        Ok(Some(key))
    }

    fn unquote<'h>(&self, line: &'h HeaderValue) -> Result<Cow<'h, str>, String> {
        let text = line.to_str().map_err(|_| "the key has a character outside visible ASCII")?;
        let text = text.trim_matches([' ', '\t']);
        match text.strip_prefix('"') {
            Some(quoted) => structured_string(quoted),
            None if self.quoted_only => Err("the key must be a Structured Field String: \
                                             put it between double quotes"
                .to_owned()),
            None => Ok(Cow::Borrowed(text)),
        }
    }

    fn check(&self, key: &str) -> Result<(), String> {
        if key.is_empty() {
            return Err("the key is empty".to_owned());
        }
        if key.len() > IdempotencyKey::MAX_BYTES {
            let limit = IdempotencyKey::MAX_BYTES;
            return Err(format!("the key has {} bytes, the limit is {limit}", key.len()));
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the key has a character outside visible ASCII".to_owned());
        }
        if key.len() < self.min_bytes {
            let least = self.min_bytes;
            return Err(format!("the key has {} bytes, at least {least} are needed", key.len()));
        }
        if self.uuid_shaped && !is_uuid_shaped(key) {
            return Err(
                "the key must be a UUID, such as 0190b6e8-7a3c-7def-8000-0123456789ab".to_owned()
            );
        }
        Ok(())
    }
}

/// The string of a Structured Field String whose opening quote was read; parameters are ignored.
fn structured_string(text: &str) -> Result<Cow<'_, str>, String> {
    const UNFINISHED: &str = "the key is not a Structured Field String: its quotes do not match";
    let end = closing_quote(text).ok_or(UNFINISHED)?;
    let after = text[end + 1..].trim_start_matches(' ');
    if !(after.is_empty() || after.starts_with(';')) {
        return Err("the key is followed by something that is not a parameter".to_owned());
    }
    let quoted = &text[..end];
    if !quoted.contains('\\') {
        return Ok(Cow::Borrowed(quoted));
    }
    let mut unescaped = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => unescaped.push(escaped),
                _ => return Err("the key has a backslash that escapes nothing".to_owned()),
            },
            plain => unescaped.push(plain),
        }
    }
    Ok(Cow::Owned(unescaped))
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

fn is_uuid_shaped(key: &str) -> bool {
    key.len() == 36
        && key.bytes().enumerate().all(|(position, byte)| match position {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENIENT: KeySyntax = KeySyntax { quoted_only: false, uuid_shaped: false, min_bytes: 1 };

    fn read(syntax: KeySyntax, lines: &[&[u8]]) -> Result<Option<String>, String> {
        let name = HeaderName::from_static("idempotency-key");
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_bytes(line).unwrap());
        }
        syntax.read(&headers, &[name]).map(|key| key.map(Cow::into_owned))
    }

    #[test]
    fn bare_and_quoted_keys_are_the_same() {
        let long = "k".repeat(255);
        let cases: &[(&str, &str)] = &[
            ("abc", "abc"),
            ("\"abc\"", "abc"),
            ("  abc\t", "abc"),
            ("\"abc\";p=1", "abc"),
            ("\"abc\" ;p", "abc"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#"a"b\c"#, r#"a"b\c"#),
            (&long, &long),
        ];
        for (line, key) in cases {
            assert_eq!(read(LENIENT, &[line.as_bytes()]), Ok(Some((*key).to_owned())), "{line}");
        }
        assert_eq!(read(LENIENT, &[]), Ok(None));
    }

    #[test]
    fn wrong_keys_are_named() {
        let long = "k".repeat(256);
        let quoted = format!("\"{long}\"");
        let cases: &[(&[u8], &str)] = &[
            (b"", "empty"),
            (b"   ", "empty"),
            (b"\"\"", "empty"),
            (b"\"  \"", "visible ASCII"),
            (b"a b", "visible ASCII"),
            (b"a\tb", "visible ASCII"),
            ("schl\u{fc}ssel".as_bytes(), "visible ASCII"),
            (b"\xff", "visible ASCII"),
            (b"\"abc", "quotes do not match"),
            (b"\"abc\\\"", "quotes do not match"),
            (b"\"abc\"def", "not a parameter"),
            (b"\"abc\", \"abc\"", "not a parameter"),
            (br#""a\bc""#, "escapes nothing"),
            (long.as_bytes(), "256 bytes, the limit is 255"),
            (quoted.as_bytes(), "256 bytes, the limit is 255"),
        ];
        for (line, expected) in cases {
            let reason = read(LENIENT, &[line]).unwrap_err();
            assert!(reason.contains(expected), "{}: {reason}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn two_lines_are_one_too_many_even_if_equal() {
        assert!(read(LENIENT, &[b"a", b"a"]).unwrap_err().contains("more than one"));
    }

    #[test]
    fn two_configured_headers_are_one_too_many() {
        let names = ["paypal-request-id", "idempotency-key"].map(HeaderName::from_static);
        let mut headers = HeaderMap::new();
        headers.insert(&names[1], HeaderValue::from_static("a"));
        assert_eq!(LENIENT.read(&headers, &names), Ok(Some("a".into())));
        headers.insert(&names[0], HeaderValue::from_static("a"));
        assert!(LENIENT.read(&headers, &names).is_err());
    }

    #[test]
    fn strict_syntax_takes_only_quoted_strings() {
        let strict = KeySyntax { quoted_only: true, ..LENIENT };
        assert_eq!(read(strict, &[b"\"abc\""]), Ok(Some("abc".to_owned())));
        for line in ["abc", "42", ":YWJj:", "(\"a\" \"b\")"] {
            let reason = read(strict, &[line.as_bytes()]).unwrap_err();
            assert!(reason.contains("Structured Field String"), "{line}: {reason}");
        }
    }

    #[test]
    fn uuids_of_any_version_are_uuid_shaped() {
        let uuid = KeySyntax { uuid_shaped: true, ..LENIENT };
        for key in ["0190b6e8-7a3c-7def-8000-0123456789ab", "FFFFFFFF-ffff-ffff-ffff-ffffffffffff"]
        {
            assert_eq!(read(uuid, &[key.as_bytes()]), Ok(Some(key.to_owned())));
        }
        for key in ["0190b6e87a3c7def80000123456789ab", "0190b6e8-7a3c-7def-8000-0123456789ag"] {
            assert!(read(uuid, &[key.as_bytes()]).unwrap_err().contains("must be a UUID"));
        }
    }

    #[test]
    fn short_keys_are_refused_if_a_length_is_asked_for() {
        let long = KeySyntax { min_bytes: 16, ..LENIENT };
        assert!(read(long, &[b"123456789012345"]).unwrap_err().contains("at least 16"));
        assert!(read(long, &[b"1234567890123456"]).is_ok());
    }

    #[test]
    fn made_keys_are_valid_and_children_do_not_collide() {
        let uuid = KeySyntax { uuid_shaped: true, ..LENIENT };
        let key = IdempotencyKey::new();
        assert_ne!(key, IdempotencyKey::new());
        for made in [&key, &key.child("a"), &key.child("a").child("b")] {
            assert_eq!(uuid.check(made.as_str()), Ok(()));
        }
        let glued: IdempotencyKey = "ab".parse().unwrap();
        let parts: IdempotencyKey = "a".parse().unwrap();
        assert_ne!(glued.child("c"), parts.child("bc"));
    }

    /// A key is what a client sent, and nothing else is let through.
    #[test]
    fn fuzzed_any_line_is_a_key_or_refused() {
        let examples =
            ["abc", "\"abc\";p=1", r#""a\"b\\c""#, "0190b6e8-7a3c-7def-8000-0123456789ab"];
        semel_testkit::fuzz::fuzz(&examples, |line| {
            let Ok(value) = HeaderValue::from_bytes(line) else { return };
            for quoted_only in [false, true] {
                let syntax = KeySyntax { quoted_only, ..LENIENT };
                if let Ok(Some(key)) = read(syntax, &[value.as_bytes()]) {
                    assert!((1..=IdempotencyKey::MAX_BYTES).contains(&key.len()));
                    assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key:?}");
                }
            }
        });
    }
}
