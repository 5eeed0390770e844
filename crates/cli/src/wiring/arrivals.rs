//! What arrived: in a broker, or in lines that somebody wrote down.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use semel_backends::Arrival;
use semel_core::{EventId, Failure, Topic};
use serde_json::Value;

use super::Connecting;

/// Reads what is in these topics of a sink, and takes nothing out.
pub(crate) type ReadSink = Arc<dyn Fn(BTreeSet<Topic>) -> Connecting<Vec<Arrival>> + Send + Sync>;

/// Reads one JSON object per line, with the id of the event in it; `-` is standard input.
///
/// # Errors
/// `Misconfigured` when the file cannot be read, `Refused` when a line has no id.
pub(crate) fn arrivals_in(path: &Path) -> Result<Vec<Arrival>, Failure> {
    let lines: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).map_err(|error| unreadable(error, path))?))
    };
    let mut arrivals = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line.map_err(|error| unreadable(error, path))?;
        if line.trim().is_empty() {
            continue;
        }
        let id = id_of(&line).ok_or_else(|| {
            let what = format!("line {number} of {} has no id of an event", path.display());
            Failure::refused("E-VERIFY-LINE", what).with_fix(
                "give JSON objects with \"id\", \"semel-event-id\" or \"ce_id\", at the top or in \
                 \"headers\", or ids alone, one per line",
            )
        })?;
        arrivals.push(Arrival { id, queue: 0, place: number });
    }
    Ok(arrivals)
}

fn unreadable(error: io::Error, path: &Path) -> Failure {
    let what = format!("cannot read what arrived from {}", path.display());
    Failure::misconfigured("E-VERIFY-READ", what)
        .with_source(error)
        .with_fix("give --received a file that this user may read, or - for standard input")
}

/// The id in a line, wherever a broker's client puts it.
fn id_of(line: &str) -> Option<EventId> {
    const NAMES: [&str; 5] = ["semel-event-id", "ce_id", "ce-id", "cloudEvents_id", "id"];
    if let Ok(id) = line.trim().parse() {
        return Some(id);
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let inside = |table: &Value| {
        NAMES.iter().find_map(|name| table.get(name)?.as_str()?.parse::<EventId>().ok())
    };
    inside(&value).or_else(|| inside(value.get("headers")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_where_clients_put_them() {
        let id = EventId::now();
        let lines = [
            format!("{id}"),
            format!("{{\"id\": \"{id}\"}}"),
            format!("{{\"topic\": \"x\", \"headers\": {{\"ce_id\": \"{id}\"}}}}"),
        ];
        for line in lines {
            assert_eq!(id_of(&line), Some(id), "{line}");
        }
        assert_eq!(id_of("{\"id\": 7}"), None);
    }
}
