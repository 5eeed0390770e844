//! What commands print: text for people, JSON for programs.

use std::io::{self, Write};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

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
    print(&format!("{text}\n"));
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
        self.rows.push(cells);
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
    fn ages_have_a_suitable_unit() {
        let ages = [3, 61, 7200, 259_200].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["3.0 s", "1 min", "2 h", "3 d"]);
    }
}
