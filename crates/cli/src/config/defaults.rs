//! The defaults that the documentation names, as a file would say them.

use super::record::Kind;
use super::values;

/// What could be written instead of leaving the key out; none where the default is told in words.
pub(super) fn as_value(kind: &Kind, documented: &str) -> Option<String> {
    let code = documented.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    let code = code.filter(|code| !code.contains('`'));
    let text = code.unwrap_or(documented).trim_matches('"');
    let together = text.replace(' ', "");
    match kind {
        Kind::Boolean => match text {
            "true" | "yes" => Some("true".into()),
            "false" | "no" => Some("false".into()),
            _ => None,
        },
        Kind::Integer(..) => {
            text.replace(',', "").parse().ok().map(|number: i64| number.to_string())
        }
        Kind::Duration(..) => values::duration(&together).ok().map(|_| format!("{together:?}")),
        Kind::Size(..) => values::size(&together).ok().map(|_| format!("{together:?}")),
        Kind::Choice(words) => words.iter().any(|word| word == text).then(|| format!("{text:?}")),
        Kind::Text => code.map(|_| format!("{text:?}")),
        Kind::List => code.filter(|code| code.starts_with('[')).map(str::to_owned),
        Kind::Secret | Kind::Table | Kind::Tables => None,
    }
}

/// Every key whose default is a value: its section, the type of sink, the key, the value.
#[cfg(all(test, feature = "full"))]
pub(crate) fn documented() -> Vec<(String, Option<&'static str>, String, String)> {
    let value = |asked: &super::record::Asked| {
        let default = super::manual::look_up(asked)?.default;
        let value = as_value(&asked.kind, &default)?;
        Some((asked.path.clone(), asked.variant, asked.key.clone(), value))
    };
    super::schema::Explored::new().keys().filter_map(value).collect()
}
