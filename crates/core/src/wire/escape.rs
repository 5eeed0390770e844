//! Any text as visible ASCII: what a header cannot hold becomes `%XX`, as in a URL.

use std::borrow::Cow;
use std::fmt::Write;

/// A name: letters, digits and a few marks.
pub(super) fn name(text: &str) -> Cow<'_, str> {
    escape(text, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// A value: what can be seen, and spaces inside.
pub(super) fn value(text: &str) -> Cow<'_, str> {
    let ends = |text: &str| text.starts_with(' ') || text.ends_with(' ');
    let spaces = !ends(text);
    escape(text, move |byte| {
        (byte.is_ascii_graphic() && !b"%\"".contains(&byte)) || (byte == b' ' && spaces)
    })
}

fn escape(text: &str, keeps: impl Fn(u8) -> bool) -> Cow<'_, str> {
    if text.bytes().all(&keeps) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if keeps(byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Cow::Owned(escaped)
}

/// The text again. What was never escaped stays as it is.
pub(super) fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let escaped = digit(0).zip(digit(1)).filter(|_| *first == b'%');
        let byte = escaped.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = &after[if byte.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}
