//! The settings of a `.properties` file, and which of them were used. Any value may be a secret, and
//! what is made of them is likely to be committed: so a value is copied only if it can hold none.

use std::collections::{BTreeMap, BTreeSet};

/// `key=value` lines.
pub(super) struct Properties {
    all: BTreeMap<String, String>,
    used: BTreeSet<String>,
    /// What was not copied: the variable that stands for it, and the setting it has to be set to.
    withheld: BTreeMap<String, String>,
}

impl Properties {
    pub(super) fn read(text: &str) -> Self {
        let mut all = BTreeMap::new();
        let joined = text.replace("\\\r\n", "").replace("\\\n", "");
        for line in joined.lines().map(str::trim) {
            if line.starts_with(['#', '!']) {
                continue;
            }
            // A blank may stand for the sign: nothing of a value must be taken for its key.
            let end = line.find(['=', ':', ' ', '\t']).unwrap_or(line.len());
            let (key, rest) = line.split_at(end);
            let rest = rest.trim_start();
            let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim();
            if !key.is_empty() {
                all.insert(key.to_owned(), value.to_owned());
            }
        }
        Self { all, used: BTreeSet::new(), withheld: BTreeMap::new() }
    }

    /// A name, or what else is no secret.
    pub(super) fn take(&mut self, key: &str) -> Option<String> {
        self.used.insert(key.to_owned());
        self.all.get(key).filter(|value| !value.is_empty()).cloned()
    }

    /// The value, for a look at it: that is no use.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.all.get(key).map(String::as_str)
    }

    /// The value, or the variable for it if it is more than a name or a number.
    pub(super) fn name(&mut self, key: &str, default: &str, variable: &str) -> String {
        self.copy(key, default, variable, is_name)
    }

    /// Hosts with or without their ports; the variable for them if there is more.
    pub(super) fn hosts(&mut self, key: &str, default: &str, variable: &str) -> String {
        self.copy(key, default, variable, |value| value.split(',').all(is_host))
    }

    /// URLs that end with their hosts; the variable for them if there is more.
    pub(super) fn urls(&mut self, key: &str, default: &str, variable: &str) -> String {
        self.copy(key, default, variable, |value| value.split(',').all(is_bare))
    }

    fn copy(
        &mut self,
        key: &str,
        default: &str,
        variable: &str,
        can_hold_no_secret: impl Fn(&str) -> bool,
    ) -> String {
        match self.take(key) {
            None => default.to_owned(),
            Some(value) if can_hold_no_secret(&value) => value,
            Some(value) => self.withhold(key, &value, variable),
        }
    }

    /// The variable for a secret.
    pub(super) fn secret(&mut self, key: &str, variable: &str) -> String {
        let value = self.take(key).unwrap_or_default();
        self.withhold(key, &value, variable)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.all.get(key).is_some_and(|value| !value.is_empty())
    }

    /// A value that is a variable already keeps its name.
    fn withhold(&mut self, key: &str, value: &str, variable: &str) -> String {
        let variable = variable_in(value).unwrap_or_else(|| variable.to_owned());
        let placeholder = format!("${{{variable}}}");
        self.withheld.insert(variable, key.to_owned());
        placeholder
    }

    pub(super) fn ignore(&mut self, prefixes: &[&str]) {
        let is_meant = |key: &&String| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let keys: Vec<_> = self.all.keys().filter(is_meant).cloned().collect();
        self.used.extend(keys);
    }

    /// The names of what nobody asked for. A line that is no setting may be a piece of a value.
    pub(super) fn left(&self) -> Vec<String> {
        let is_left = |key: &&String| key.starts_with("debezium.") && !self.used.contains(*key);
        self.all.keys().filter(is_left).cloned().collect()
    }

    /// The variables that have to be set, each with the setting whose value it stands for.
    pub(super) fn withheld(self) -> Vec<(String, String)> {
        self.withheld.into_iter().collect()
    }
}

fn is_name(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_host(value: &str) -> bool {
    let is_port = |port: &str| port.chars().all(|c| c.is_ascii_digit());
    let host = match value.rsplit_once(':') {
        Some((host, port)) if is_port(port) => host,
        _ => value,
    };
    let numbers = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match numbers {
        Some(numbers) => numbers.chars().all(|c| c.is_ascii_hexdigit() || c == ':'),
        None => is_name(host),
    }
}

/// Whether a URL begins and ends with its host. A password or a token may be in front of it or behind.
fn is_bare(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, rest)| {
        is_name(scheme) && is_host(rest.strip_suffix('/').unwrap_or(rest))
    })
}

/// The name in `${name}` and `${name:default}`, as a shell can set it.
fn variable_in(value: &str) -> Option<String> {
    let inside = value.strip_prefix("${")?.strip_suffix('}')?;
    // Others, such as ${file:/path:key}, name no variable.
    let (name, default) = inside.split_once(':').unwrap_or((inside, ""));
    let name = name.to_uppercase().replace(['.', '-'], "_");
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let begins = name.starts_with(|c: char| !c.is_ascii_digit());
    (is_name && begins && !default.contains(':')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_where_values_begin() {
        let text = "a=1\nb : 2\n c 3=x\ndebezium.d e\nhunter2==\n# e=5\n!f=6\ng=7\\\n8\nh==9\n";
        let mut properties = Properties::read(text);
        let cases = [("a", "1"), ("b", "2"), ("c", "3=x"), ("g", "78"), ("h", "=9")];
        for (key, value) in cases {
            assert_eq!(properties.take(key).as_deref(), Some(value), "{key}");
        }
        assert_eq!(properties.left(), ["debezium.d"]);
    }

    #[test]
    fn only_what_can_hold_no_secret_is_copied() {
        let hosts = ["db1", "10.0.0.1", "k1:9092", "[::1]:6379", "[::1]", "my_db"];
        let more = ["me:x@db1", "me:x", "db1/shop?password=x", "a b", "${X}", "p%40ss", "[x]:1"];
        assert!(hosts.iter().all(|value| is_host(value)));
        assert!(!more.iter().any(|value| is_host(value) || is_name(value)));
        let bare = ["nats://n1:4222", "https://example.com/", "nats://[::1]:4222"];
        let more = ["nats://x@n1", "nats://n1:x", "https://h/T0/x", "https://h?key=x", "h:1"];
        assert!(bare.iter().all(|url| is_bare(url)));
        assert!(!more.iter().any(|url| is_bare(url)));
    }

    #[test]
    fn a_variable_keeps_its_name_and_loses_its_default() {
        let cases = [
            ("${DB_PASSWORD}", Some("DB_PASSWORD")),
            ("${db.pass-word:hunter2}", Some("DB_PASS_WORD")),
            ("${file:/run/secrets:password}", None),
            ("${/run/secrets/x}", None),
            ("x${DB}", None),
            ("hunter2", None),
        ];
        for (value, name) in cases {
            assert_eq!(variable_in(value).as_deref(), name, "{value}");
        }
    }
}
