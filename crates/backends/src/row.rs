//! What rows of all databases have in common, once they are read.

use std::collections::BTreeMap;

use semel_core::{Headers, Timestamp};
use serde_json::Value;

/// A time of the tables, in microseconds. Times out of range, which only a foreign writer makes,
/// become the nearest.
pub(crate) fn timestamp(micros: i64) -> Timestamp {
    let nearest = if micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(micros).unwrap_or(nearest)
}

/// A text as any database can store it, whatever its encoding.
pub(crate) fn plain(text: &str) -> String {
    text.replace(|character: char| !character.is_ascii(), "?")
}

/// Headers as a writer of any language may have put them: what is not a string is kept as JSON, and
/// what is no object is no headers.
pub(crate) fn parse_headers(json: &str) -> Headers {
    as_headers(serde_json::from_str(json).unwrap_or_default())
}

/// The same, of an object that is parsed.
pub(crate) fn as_headers(values: BTreeMap<String, Value>) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in values {
        match value {
            Value::String(text) => headers.set(name, text),
            other => headers.set(name, other.to_string()),
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_not_strings_are_kept_as_json() {
        let headers = parse_headers(r#"{"Tenant":"acme","retries":3,"tags":["a"],"none":null}"#);
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(
            all,
            [("tenant", "acme"), ("none", "null"), ("retries", "3"), ("tags", "[\"a\"]")]
        );
    }

    #[test]
    fn headers_that_are_no_object_are_none() {
        assert!(parse_headers("[1]").is_empty());
        assert!(parse_headers("{").is_empty());
    }

    #[test]
    fn fuzzed_any_headers_of_a_foreign_writer_are_taken() {
        let examples = [r#"{"Tenant":"acme","retries":3,"tags":["a"],"none":null}"#, "[]", "{"];
        semel_testkit::fuzz::fuzz_text(&examples, |json| drop(parse_headers(json)));
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        assert_eq!(timestamp(i64::MIN), Timestamp::MIN);
        assert_eq!(timestamp(i64::MAX), Timestamp::MAX);
        assert_eq!(timestamp(1), Timestamp::from_microsecond(1).unwrap());
    }
}
