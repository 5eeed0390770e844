//! One SQL statement and its parameters, and what came back, whatever the database.

use bytes::Bytes;

use super::dialect::{Dialect, Key};

/// A statement in the making.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) params: Vec<Param>,
    pub(crate) kind: Kind,
    /// How the transaction of a query begins, if it must not be planned like any other.
    pub(crate) begin: Option<&'static str>,
    /// How many bytes of rows are wanted: the first row that exceeds them is the last one.
    pub(crate) budget: Option<usize>,
    dialect: Dialect,
    /// The present by the clock of this process, for a database that has none.
    now: i64,
}

/// Where SQLite has whatever was written: what texts are, as they are, as numbers and as the digits of
/// bytes. The last one has no type that the others would be converted to.
const ANYTHING: (&str, &str) = (
    "WITH k AS (SELECT value FROM json_each(",
    ")) SELECT value FROM k \
     UNION ALL SELECT value + 0 FROM k WHERE CAST(value + 0 AS TEXT) = value \
     UNION ALL SELECT unhex(value) FROM k WHERE unhex(value) IS NOT NULL",
);

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its rows are fetched.
    Fetch,
    /// The same; when there are none, the whole transaction ends without effect.
    Guard,
    /// It changes rows.
    Change,
}

/// A parameter.
#[derive(Clone, Debug)]
pub(crate) enum Param {
    Text(Option<String>),
    Int(Option<i64>),
    /// Several texts: an array, a JSON array, or one parameter for each, as the database has it.
    List(Vec<String>),
}

/// A row, every value of which is a number, text or bytes.
#[derive(Clone, Debug)]
pub(crate) struct Row(pub(crate) Vec<Value>);

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Int(i64),
    /// Bytes, which may be text.
    Bytes(Bytes),
}

/// What a statement of a transaction gave.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) changed: u64,
}

impl Statement {
    pub(crate) fn new(dialect: Dialect, now: i64) -> Self {
        Self {
            sql: String::new(),
            params: Vec::new(),
            kind: Kind::Fetch,
            begin: None,
            budget: None,
            dialect,
            now,
        }
    }

    pub(crate) fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    pub(crate) fn within(mut self, bytes: usize) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Whether so many bytes of rows are all that is wanted.
    pub(crate) fn is_sated(&self, bytes: usize) -> bool {
        self.budget.is_some_and(|budget| bytes > budget)
    }

    pub(crate) fn push(&mut self, sql: &str) -> &mut Self {
        self.sql += sql;
        self
    }

    pub(crate) fn text<'v>(&mut self, value: impl Into<Option<&'v str>>) -> &mut Self {
        let value: Option<&str> = value.into();
        self.bind(Param::Text(value.map(str::to_owned)))
    }

    pub(crate) fn int(&mut self, value: impl Into<Option<i64>>) -> &mut Self {
        self.bind(Param::Int(value.into()))
    }

    /// A number of rows.
    pub(crate) fn count(&mut self, rows: usize) -> &mut Self {
        self.int(i64::try_from(rows).unwrap_or(i64::MAX))
    }

    /// The present in microseconds, by the clock of the database.
    pub(crate) fn now(&mut self) -> &mut Self {
        match self.dialect.now() {
            Some(now) => self.push(now),
            None => self.int(self.now),
        }
    }

    /// That `key` is one of `keys`.
    pub(crate) fn among(&mut self, key: &Key, keys: &[String]) -> &mut Self {
        let column = key.column.clone();
        self.push(&column);
        match self.dialect {
            Dialect::Postgres => {
                self.push(" = any(cast(").bind(Param::List(keys.to_vec()));
                self.push(&format!(" as {}[]))", key.type_name))
            }
            _ => self.push(" IN (").listed(key, keys).push(")"),
        }
    }

    /// That `key` is none of `keys`.
    pub(crate) fn not_among(&mut self, key: &Key, keys: &[String]) -> &mut Self {
        if keys.is_empty() {
            return self.push("1 = 1");
        }
        self.push("NOT (").among(key, keys).push(")")
    }

    fn listed(&mut self, key: &Key, keys: &[String]) -> &mut Self {
        if self.dialect == Dialect::Sqlite {
            let plain = ("SELECT value FROM json_each(", ")");
            let (before, after) = if key.takes_anything { ANYTHING } else { plain };
            return self.push(before).bind(Param::List(keys.to_vec())).push(after);
        }
        // The last one again and again, so that there are few different statements to prepare.
        let Some(last) = keys.last() else { return self.push("NULL") };
        let padding = keys.len().next_power_of_two() - keys.len();
        let all = keys.iter().chain(std::iter::repeat_n(last, padding)).cloned();
        let all: Vec<String> = all.collect();
        let (before, after) = key.parameter;
        let places = vec![format!("{before}?{after}"); all.len()].join(", ");
        self.params.push(Param::List(all));
        self.push(&places)
    }

    fn bind(&mut self, param: Param) -> &mut Self {
        self.params.push(param);
        let number = self.params.len();
        match (self.dialect, self.params.last()) {
            (Dialect::Postgres, Some(Param::Text(_))) => self.push(&format!("${number}::text")),
            (Dialect::Postgres, Some(Param::Int(_))) => self.push(&format!("${number}::bigint")),
            (Dialect::Postgres, _) => self.push(&format!("${number}::text[]")),
            _ => self.push("?"),
        }
    }
}

impl Row {
    /// Bytes it occupies, near enough to bound memory by.
    pub(crate) fn size(&self) -> usize {
        let size = |value: &Value| match value {
            Value::Null => 0,
            Value::Int(_) => size_of::<i64>(),
            Value::Bytes(bytes) => bytes.len(),
        };
        self.0.iter().map(size).sum()
    }

    pub(crate) fn int(&self, index: usize) -> Option<i64> {
        match self.0.get(index)? {
            Value::Int(number) => Some(*number),
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            Value::Null => None,
        }
    }

    pub(crate) fn number(&self, index: usize) -> u64 {
        self.int(index).and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
    }

    pub(crate) fn is_true(&self, index: usize) -> bool {
        self.int(index).is_some_and(|number| number != 0)
    }

    /// Whether it is bytes that are no text.
    pub(crate) fn is_no_text(&self, index: usize) -> bool {
        matches!(self.0.get(index), Some(Value::Bytes(bytes)) if std::str::from_utf8(bytes).is_err())
    }

    /// Text; what is not UTF-8 in it is replaced.
    pub(crate) fn text(&self, index: usize) -> Option<String> {
        match self.0.get(index)? {
            Value::Int(number) => Some(number.to_string()),
            Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::Null => None,
        }
    }

    pub(crate) fn bytes(&self, index: usize) -> Option<Bytes> {
        match self.0.get(index)? {
            Value::Int(number) => Some(number.to_string().into()),
            Value::Bytes(bytes) => Some(bytes.clone()),
            Value::Null => None,
        }
    }
}
