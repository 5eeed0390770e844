//! Defaults and meanings of keys. The pages of the documentation are what is read here, so that the
//! program and its documentation always say the same.

use super::record::Asked;

const CONFIGURATION: &str = include_str!("../../../../docs/configuration.md");
const PROXY: &str = include_str!("../../../../docs/proxy.md");

/// The pages of sinks, by their types.
const SINK_PAGES: &[(&[&str], &str)] = &[
    (&["stdout", "file"], include_str!("../../../../docs/backends/ndjson.md")),
    (&["kafka"], include_str!("../../../../docs/backends/kafka.md")),
    (&["rabbitmq"], include_str!("../../../../docs/backends/rabbitmq.md")),
    (&["nats"], include_str!("../../../../docs/backends/nats.md")),
    (&["mqtt"], include_str!("../../../../docs/backends/mqtt.md")),
    (&["redis"], include_str!("../../../../docs/backends/redis.md")),
    (&["sqs", "sns", "eventbridge"], include_str!("../../../../docs/backends/aws.md")),
    (&["webhook"], include_str!("../../../../docs/backends/webhook.md")),
];

/// What the documentation says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// As it is written there, perhaps in words; empty if there is none.
    pub(super) default: String,
    pub(super) meaning: String,
}

/// What the documentation says of a key that was asked for.
pub(super) fn look_up(asked: &Asked) -> Option<Entry> {
    let page = Page::read(text_about(asked)?);
    let names = names_of(asked);
    names
        .iter()
        .find_map(|name| page.rows.iter().find(|row| row.names.contains(name)))
        .map(|row| Entry { default: row.default.clone(), meaning: row.meaning.clone() })
}

/// Every key that the documentation names, and for which no reader asks.
#[cfg(all(test, feature = "full"))]
pub(super) fn unasked<'a>(all: impl Iterator<Item = &'a Asked>) -> Vec<String> {
    use super::record::Kind;

    let all: Vec<_> = all.filter_map(|asked| Some((text_about(asked)?, asked))).collect();
    let sinks = SINK_PAGES.iter().map(|(_, text)| *text);
    let mut unasked = Vec::new();
    for text in CONFIGURATION.split("\n## ").chain(sinks).chain([PROXY]) {
        let of_text = all.iter().filter(|(about, _)| *about == text);
        let names: Vec<_> = of_text
            .flat_map(|(_, asked)| {
                let file = (asked.kind == Kind::Secret).then(|| format!("{}_file", asked.key));
                names_of(asked).into_iter().chain(file)
            })
            .collect();
        let documented = Page::read(text).rows.into_iter().flat_map(|row| row.names);
        let title = text.lines().next().unwrap_or_default();
        unasked.extend(
            documented.filter(|name| !names.contains(name)).map(|name| format!("{title}: {name}")),
        );
    }
    unasked
}

/// How the key may be called there: in full, as one of many, or as a part of its table.
fn names_of(asked: &Asked) -> Vec<String> {
    let mut path: Vec<&str> = asked.path.split('.').collect();
    let named = ["source", "sink", "pipeline"].contains(&path[0]);
    path.drain(..(1 + usize::from(named)).min(path.len()));
    // Tables with names of the user's own: their keys stand in a table of the documentation.
    if matches!(path.first(), Some(&("route" | "access"))) {
        path.clear();
    }
    let full = [&path[..], &[asked.key.as_str()]].concat().join(".");
    let mut names = vec![full];
    if !path.is_empty() {
        names.push(format!("{}.KEY", path.join(".")));
    }
    for length in (1..=path.len()).rev() {
        names.push(path[..length].join("."));
    }
    names
}

/// The page on which the key stands, or the part of it.
fn text_about(asked: &Asked) -> Option<&'static str> {
    let section = asked.path.split('.').next().unwrap_or_default();
    let is_type = asked.key == "type" && asked.path.matches('.').count() == 1;
    if let (Some(variant), false) = (asked.variant, is_type) {
        let (_, text) = SINK_PAGES.iter().find(|(types, _)| types.contains(&variant))?;
        return Some(text);
    }
    if section == "proxy" {
        return Some(PROXY);
    }
    let is_there = |part: &&str| {
        let heading = part.lines().next().unwrap_or_default();
        [format!("`[{section}]`"), format!("`[{section}.NAME]`"), format!("`[[{section}]]`")]
            .iter()
            .any(|name| heading.contains(name))
    };
    CONFIGURATION.split("\n## ").find(is_there)
}

/// The tables of a page, or of a part of it.
struct Page {
    rows: Vec<Row>,
}

struct Row {
    names: Vec<String>,
    default: String,
    meaning: String,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut rows = Vec::new();
        let mut head: Option<Head> = None;
        for line in text.lines() {
            let Some(cells) = cells(line) else {
                head = None;
                continue;
            };
            match &head {
                None => head = Some(Head::read(&cells)),
                Some(head) => rows.extend(head.row(&cells)),
            }
        }
        Self { rows }
    }
}

/// Which column of a table is which.
struct Head {
    key: Option<usize>,
    default: Option<usize>,
    meaning: usize,
    /// What the keys of this table belong to.
    prefix: String,
}

impl Head {
    fn read(cells: &[String]) -> Self {
        let find = |is: &dyn Fn(&str) -> bool| cells.iter().position(|cell| is(cell));
        let key =
            find(&|cell| cell == "key" || cell.starts_with("key of") || cell == "in `[proxy]`");
        let of = key.and_then(|key| cells[key].strip_prefix("key of `")?.strip_suffix('`'));
        Self {
            key,
            default: find(&|cell| cell == "default"),
            meaning: find(&|cell| cell == "meaning" || cell == "what").unwrap_or(cells.len() - 1),
            prefix: of.map(|of| format!("{of}.")).unwrap_or_default(),
        }
    }

    fn row(&self, cells: &[String]) -> Option<Row> {
        let named = cells.get(self.key?)?;
        let names =
            named.split('`').skip(1).step_by(2).map(|name| format!("{}{name}", self.prefix));
        let cell = |column: Option<usize>| column.and_then(|column| cells.get(column)).cloned();
        Some(Row {
            names: names.collect(),
            default: cell(self.default).unwrap_or_default(),
            meaning: plain(&cell(Some(self.meaning)).unwrap_or_default()),
        })
    }
}

/// Without the marks of links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, after)) = link.split_once("](") else { break };
        let Some((_, after)) = after.split_once(')') else { break };
        plain += before;
        plain += name;
        rest = after;
    }
    plain + rest
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    let marked = inner.replace("\\|", "\u{0}");
    Some(marked.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect())
}
