//! The line that a mistake is in, with a mark under its key. Values are left out: any of them may be
//! a secret, and messages end up in logs.

use super::files::File;
use super::tree::{Origin, Place};

/// The line of a key, and a second one that points to it; nothing for what is no key of a file.
pub(super) fn excerpt(origin: &Origin, files: &[File]) -> Option<String> {
    let Origin::File(place) = origin else { return None };
    let Place { file, line, column, width } = *place;
    let text = files.get(file)?.text.lines().nth(line.checked_sub(1)?)?;
    let (before, rest) = (text.get(..column)?, text.get(column..)?);
    let key = rest.get(..width).filter(|key| !key.is_empty())?;
    let is_header = before.trim_start().starts_with('[') && !before.contains('=');
    let (before, after) = match () {
        () if is_header => (before, &rest[width..rest.rfind(']').map_or(width, |end| end + 1)]),
        () if only_opens_tables(before) => (before, " = …"),
        () => ("… ", " = …"),
    };
    let gutter = line.to_string();
    let margin = " ".repeat(gutter.len());
    let indent = " ".repeat(before.chars().count());
    let carets = "^".repeat(key.chars().count());
    Some(format!("{gutter} | {before}{key}{after}\n{margin} | {indent}{carets}"))
}

/// Whether a text holds no value, such as `sasl = { `.
fn only_opens_tables(text: &str) -> bool {
    let is_name = |text: &str| {
        text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.\"' ".contains(c) || c == '\t')
    };
    match text.rsplit_once('{') {
        None => is_name(text) || text.ends_with('.') && is_name(&text[..text.len() - 1]),
        Some((opening, name)) => {
            let keys: Vec<_> = opening.split('{').collect();
            is_name(name)
                && keys.iter().all(|key| key.trim_end().strip_suffix('=').is_some_and(is_name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointed(text: &str, column: usize, width: usize) -> String {
        let files = [File { name: "f".into(), text: text.to_owned() }];
        let place = Place { file: 0, line: 1, column, width };
        excerpt(&Origin::File(place), &files).unwrap_or_default()
    }

    #[test]
    fn the_key_is_shown_and_no_value() {
        let cases = [
            ("url = \"postgres://me:hunter2@db\"", 0, 3, "1 | url = …\n  | ^^^"),
            ("  batch = 7", 2, 5, "1 |   batch = …\n  |   ^^^^^"),
            ("[sink.out]", 6, 3, "1 | [sink.out]\n  |       ^^^"),
            (
                "sasl = { mechansim = \"plain\" }",
                9,
                9,
                "1 | sasl = { mechansim = …\n  |          ^^^^^^^^^",
            ),
            ("sasl = { password = \"hunter2\", usr = 1 }", 31, 3, "1 | … usr = …\n  |   ^^^"),
            ("password = hunter2", 11, 0, ""),
        ];
        for (text, column, width, expected) in cases {
            assert_eq!(pointed(text, column, width), expected, "{text}");
        }
    }
}
