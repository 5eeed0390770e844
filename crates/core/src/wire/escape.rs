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
    escape(text, move |byte| is_visible(byte) || (byte == b' ' && spaces))
}

/// The value of an attribute of a CloudEvent: the bindings of HTTP and NATS (3.1.3.2) want spaces
/// escaped, too.
pub(super) fn attribute(text: &str) -> Cow<'_, str> {
    escape(text, is_visible)
}

fn is_visible(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"%\"".contains(&byte)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The first is the example of the specification.
    #[test]
    fn attributes_are_escaped_as_cloud_events_want_it() {
        let cases = [
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("50% \"off\"", "50%25%20%22off%22"),
            (" a\tb\r\n", "%20a%09b%0D%0A"),
            ("\u{7f}\u{a0}", "%7F%C2%A0"),
            ("!#$&'()*+,-./:;<=>?@[\\]^_`{|}~", "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"),
        ];
        for (text, escaped) in cases {
            assert_eq!(attribute(text), escaped);
            assert_eq!(unescape(escaped), text);
        }
    }

    #[test]
    fn spaces_are_read_in_both_forms_and_lower_case_is_too() {
        for text in ["a b", "a%20b"] {
            assert_eq!(unescape(text), "a b");
        }
        assert_eq!(unescape("%e2%82%ac"), "€");
        assert_eq!(unescape("50% off"), "50% off", "never escaped");
    }

    #[test]
    fn other_values_keep_the_spaces_inside() {
        assert_eq!(value("Order Placed"), "Order Placed");
        assert_eq!(value(" Order Placed"), "%20Order%20Placed");
    }
}
