//! One spelling for every JSON document: members in order of their names, no white space.
//!
//! Numbers keep the digits they were written with: two amounts that differ anywhere stay different.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deeper documents are compared byte by byte.
const MAX_DEPTH: usize = 64;

/// An object has two members of one name: what it means depends on who reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ambiguous;

/// The canonical spelling; `None` if it is not JSON that can be spelled anew.
pub(crate) fn canonical_json(text: &[u8]) -> Result<Option<Vec<u8>>, Ambiguous> {
    let Ok(document) = serde_json::from_slice::<&RawValue>(text) else { return Ok(None) };
    let mut out = Vec::with_capacity(text.len());
    match write(document.get(), 0, &mut out) {
        Ok(()) => Ok(Some(out)),
        Err(Trouble::Unreadable) => Ok(None),
        Err(Trouble::Ambiguous) => Err(Ambiguous),
    }
}

enum Trouble {
    Unreadable,
    Ambiguous,
}

impl From<serde_json::Error> for Trouble {
    fn from(_: serde_json::Error) -> Self {
        Self::Unreadable
    }
}

fn write(value: &str, depth: usize, out: &mut Vec<u8>) -> Result<(), Trouble> {
    if depth > MAX_DEPTH {
        return Err(Trouble::Unreadable);
    }
    match value.as_bytes().first() {
        Some(b'{') => {
            let Members(mut members) = serde_json::from_str(value)?;
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(Trouble::Ambiguous);
            }
            write_each(b"{}", members, out, |(name, value), out| {
                serde_json::to_writer(&mut *out, &name)?;
                out.push(b':');
                write(value.get(), depth + 1, out)
            })
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(value)?;
            write_each(b"[]", items, out, |item, out| write(item.get(), depth + 1, out))
        }
        Some(b'"') => {
            let text: String = serde_json::from_str(value)?;
            Ok(serde_json::to_writer(out, &text)?)
        }
        _ => {
            out.extend_from_slice(value.as_bytes());
            Ok(())
        }
    }
}

fn write_each<T>(
    brackets: &[u8; 2],
    items: Vec<T>,
    out: &mut Vec<u8>,
    mut write_one: impl FnMut(T, &mut Vec<u8>) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    out.push(brackets[0]);
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write_one(item, out)?;
    }
    out.push(brackets[1]);
    Ok(())
}

/// The members of an object as they were written, repeated names included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members<'de>, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(text: &str) -> Option<String> {
        let spelling = canonical_json(text.as_bytes()).unwrap();
        spelling.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn order_white_space_and_escapes_do_not_matter() {
        let tidy = r#"{"a":[1,{"x":null,"y":true}],"b":"ü"}"#;
        let untidy = "{ \"b\" : \"\\u00fc\",\n \"a\": [1, {\"y\":true,\"x\":null} ] }";
        assert_eq!(spelled(untidy).as_deref(), Some(tidy));
        assert_eq!(spelled(tidy).as_deref(), Some(tidy));
    }

    #[test]
    fn values_that_differ_stay_different() {
        let different = [
            ("18446744073709551617", "18446744073709551618"),
            ("0.1", "0.10000000000000000001"),
            ("[1,2]", "[2,1]"),
            (r#"{"a":"1"}"#, r#"{"a":1}"#),
            (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#),
        ];
        for (one, other) in different {
            assert_ne!(spelled(one), spelled(other));
        }
    }

    #[test]
    fn a_name_twice_is_ambiguous_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            assert_eq!(canonical_json(text.as_bytes()), Err(Ambiguous), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_or_too_deep_is_left_alone() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        for text in ["", "{", "{'a':1}", "nul", &deep] {
            assert_eq!(spelled(text), None);
        }
    }
}
