//! What commands print: text for people, JSON for programs.

use std::io::{self, Write};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Prints to standard output. Whoever closed it does not want to know.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// Prints as JSON.
pub(crate) fn print_json(value: &impl Serialize) {
    // Our own types always make JSON: their keys are strings.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    print(&format!("{}\n", plain_json(&text)));
}

/// Prints as JSON, in one line.
pub(crate) fn print_json_line(value: &Value) {
    print(&format!("{}\n", plain_json(&value.to_string())));
}

/// Text that somebody else wrote, in one line, and without what would command a terminal.
pub(crate) fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_control() { c.escape_unicode().to_string() } else { c.into() };
    text.chars().map(plain).collect()
}

/// JSON may hold control characters above those of ASCII as they are; terminals obey them as well.
fn plain_json(text: &str) -> String {
    let is_left = |c: char| c.is_control() && c != '\n';
    let plain = |c: char| match is_left(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.into(),
    };
    text.chars().map(plain).collect()
}

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Columns of text.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(columns: [(&str, Align); N]) -> Self {
        Self {
            align: columns.map(|(_, align)| align),
            rows: vec![columns.map(|(name, _)| name.into())],
        }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| plain(&cell)));
    }

    pub(crate) fn print(&self) {
        print(&self.text());
    }

    pub(crate) fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..N).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(self.align).zip(&widths) {
                line += &match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// A span of time in the unit that suits it.
pub(crate) fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", span.as_secs_f64()),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_one_plain_line() {
        assert_eq!(plain("a\u{1b}[2J\nb\r\t\u{9b}ü"), r"a\u{1b}[2J\u{a}b\u{d}\u{9}\u{9b}ü");
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right)]);
        table.row(["a\nb".into(), "1".into()]);
        assert_eq!(table.text(), "NAME     N\na\\u{a}b  1\n");
        assert_eq!(plain_json("\"\u{9b}\u{7f}\"\n"), "\"\\u009b\\u007f\"\n");
    }

    #[test]
    fn ages_have_a_suitable_unit() {
        let ages = [3, 61, 7200, 259_200].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["3.0 s", "1 min", "2 h", "3 d"]);
    }
}
