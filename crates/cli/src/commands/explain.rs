//! `semel explain`: what an error code means, what becomes of the events, and what to do.
//!
//! The page `docs/errors.md` is what is printed, so that both always say the same.

use serde::Serialize;

use super::Failure;
use crate::args::ExplainOptions;
use crate::config::nearest;
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, print, print_json};

const PAGE: &str = include_str!("../../../../docs/errors.md");

/// A line of the page.
#[derive(Clone, Serialize)]
struct Explanation {
    code: String,
    kind: String,
    means: String,
    events: String,
    fix: String,
}

pub(crate) fn run(options: &ExplainOptions) -> Result<Exit, Problem> {
    let all = explanations();
    match &options.code {
        None => list(&all, options.output.format),
        Some(code) => show(&find(&all, code)?, options.output.format),
    }
    Ok(Exit::Done)
}

fn find(all: &[Explanation], code: &str) -> Result<Explanation, Problem> {
    let upper = code.trim().trim_matches(['[', ']']).to_uppercase();
    let wanted = if upper.starts_with("E-") { upper } else { format!("E-{upper}") };
    all.iter().find(|known| known.code == wanted).cloned().ok_or_else(|| {
        let codes: Vec<&str> = all.iter().map(|known| known.code.as_str()).collect();
        let fix = match nearest(&wanted, &codes) {
            Some(near) => format!("semel explain {near}, if that is what was meant"),
            None => "semel explain, which lists them all".into(),
        };
        let what = format!("there is no error code {wanted}");
        let failure = Failure::refused("E-CODE-UNKNOWN", what).with_fix(fix);
        Problem::new(failure, "the command line", "nothing was touched").of_usage()
    })
}

fn show(explanation: &Explanation, format: Format) {
    let Explanation { code, kind, means, events, fix } = explanation;
    match format {
        Format::Json => print_json(explanation),
        Format::Text => print(&format!(
            "{code}  {kind}\n  means   {means}\n  events  {events}\n  do      {fix}\n"
        )),
    }
}

fn list(all: &[Explanation], format: Format) {
    if format == Format::Json {
        return print_json(&all);
    }
    let mut table =
        Table::new([("CODE", Align::Left), ("KIND", Align::Left), ("MEANS", Align::Left)]);
    for Explanation { code, kind, means, .. } in all {
        table.row([code.clone(), kind.clone(), means.clone()]);
    }
    table.print();
}

fn explanations() -> Vec<Explanation> {
    let rows: Vec<Vec<String>> = PAGE.lines().filter_map(cells).collect();
    let effect = |kind: &str| {
        let row = rows.iter().find(|row| matches!(&row[..], [name, _] if name == kind));
        row.map_or_else(String::new, |row| row[1].clone())
    };
    let mut all = Vec::new();
    for row in &rows {
        if let [code, kind, means, fix] = &row[..]
            && code.starts_with("E-")
        {
            let effects: Vec<String> = match kind.split_once(" or ") {
                None => vec![effect(kind)],
                Some((one, other)) => {
                    [one, other].map(|kind| format!("{kind}: {}", effect(kind))).into()
                }
            };
            all.push(Explanation {
                code: code.clone(),
                kind: kind.clone(),
                means: means.clone(),
                events: effects.join("; "),
                fix: fix.clone(),
            });
        }
    }
    all
}

/// The cells of a row of a table. A bar within a cell is written `\|`.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let plain = |cell: &str| cell.replace("\\|", "|").replace('`', "");
    Some(inner.split(" | ").map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_says_what_becomes_of_the_events_and_what_to_do() {
        let all = explanations();
        assert!(all.len() > 200, "only {} codes were found", all.len());
        for Explanation { code, means, events, fix, .. } in all {
            assert!(
                [&means, &events, &fix].iter().all(|text| text.len() > 2),
                "{code} lacks a part"
            );
        }
    }

    #[test]
    fn codes_are_found_as_people_type_them() {
        let all = explanations();
        for typed in ["E-KAFKA-DOWN", "kafka-down", "[E-KAFKA-DOWN]"] {
            assert_eq!(find(&all, typed).unwrap().code, "E-KAFKA-DOWN");
        }
        let template = find(&all, "E-ROUTE-HEADER").unwrap();
        assert!(template.fix.contains("|default:TEXT"), "{}", template.fix);
        assert!(find(&all, "E-KAFKA-DWON").is_err());
    }
}
