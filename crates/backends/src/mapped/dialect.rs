//! How the three databases write the same thing.

use super::table::ColumnType;

/// The SQL of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    Mysql,
    Sqlite,
}

/// A column that rows are found by.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// The column itself.
    pub(crate) column: String,
    /// The same as text.
    pub(crate) text: String,
    /// PostgreSQL's name of its type, of any length.
    pub(crate) type_name: String,
    /// What stands before and after a parameter that is given as text.
    pub(crate) parameter: (&'static str, &'static str),
    /// It has whatever was written, also bytes and numbers, whatever its type.
    pub(crate) takes_anything: bool,
}

impl Dialect {
    /// The name as people write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Mysql => "MySQL",
            Self::Sqlite => "SQLite",
        }
    }

    /// A name, whatever characters it has. The one place where names get into SQL.
    pub(crate) fn quote(self, name: &str) -> String {
        let mark = if self == Self::Mysql { '`' } else { '"' };
        let doubled = name.replace(mark, &format!("{mark}{mark}"));
        format!("{mark}{doubled}{mark}")
    }

    /// A text as a literal: where a parameter would hide a value from the planner.
    pub(crate) fn literal(self, text: &str) -> String {
        let text = text.replace('\'', "''");
        let text = if self == Self::Mysql { text.replace('\\', "\\\\") } else { text };
        format!("'{text}'")
    }

    /// The table of semel's own that knows which pipeline reads which table, and its owner.
    pub(crate) const fn owners(self) -> &'static str {
        match self {
            Self::Postgres => "semel.mapped",
            Self::Mysql | Self::Sqlite => "semel_mapped",
        }
    }

    /// The table of semel's own that knows what failed.
    pub(crate) const fn parked(self) -> &'static str {
        match self {
            Self::Postgres => "semel.mapped_parked",
            Self::Mysql | Self::Sqlite => "semel_mapped_parked",
        }
    }

    /// How many rows may be in flight. MySQL takes 65,535 parameters in a statement, and one that counts
    /// has all of them five times.
    pub(crate) const fn most_in_flight(self) -> usize {
        match self {
            Self::Mysql => 8_192,
            Self::Postgres | Self::Sqlite => usize::MAX,
        }
    }

    /// Locks the rows that a query found until the transaction ends.
    pub(crate) const fn for_update(self) -> &'static str {
        match self {
            Self::Postgres | Self::Mysql => " FOR UPDATE",
            // Its transactions lock everything.
            Self::Sqlite => "",
        }
    }

    /// The present in microseconds since 1970, if the database has a clock.
    pub(crate) const fn now(self) -> Option<&'static str> {
        match self {
            Self::Postgres => Some("(extract(epoch from clock_timestamp()) * 1000000)::bigint"),
            Self::Mysql => Some("timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))"),
            Self::Sqlite => None,
        }
    }

    /// What stands before a query to hear how it would be run.
    pub(crate) const fn explain(self) -> &'static str {
        match self {
            Self::Postgres | Self::Mysql => "EXPLAIN",
            Self::Sqlite => "EXPLAIN QUERY PLAN",
        }
    }

    /// No value, of a type that is known.
    pub(crate) const fn null(self) -> &'static str {
        match self {
            Self::Postgres => "null::text",
            Self::Mysql | Self::Sqlite => "NULL",
        }
    }

    /// Whether a condition holds, as a number.
    pub(crate) fn as_number(self, condition: &str) -> String {
        match self {
            Self::Postgres => format!("(({condition}) is true)::int::bigint"),
            Self::Mysql | Self::Sqlite => format!("CASE WHEN {condition} THEN 1 ELSE 0 END"),
        }
    }

    /// A value as text. In SQLite a UUID may be 16 bytes in a column of any type: so do libraries write
    /// it. No ASCII text has the bits of its variant.
    pub(crate) fn as_text(self, value: &str) -> String {
        match self {
            Self::Postgres => format!("({value})::text"),
            Self::Mysql => format!("CAST({value} AS CHAR CHARACTER SET utf8mb4)"),
            Self::Sqlite => format!(
                "CASE WHEN typeof({value}) = 'blob' AND length({value}) = 16 \
                 AND hex(substr({value}, 9, 1)) BETWEEN '80' AND 'BF' \
                 THEN lower({}) ELSE CAST({value} AS TEXT) END",
                [(1, 4), (5, 2), (7, 2), (9, 2), (11, 6)]
                    .map(|(from, bytes)| format!("hex(substr({value}, {from}, {bytes}))"))
                    .join(" || '-' || ")
            ),
        }
    }

    /// A text that names a lane, comparable with semel's own columns: byte by byte, and on PostgreSQL cut
    /// off where an index has no room for it.
    pub(crate) fn as_name(self, value: &str) -> String {
        let text = format!("coalesce({}, '')", self.as_text(value));
        match self {
            Self::Postgres => format!("(semel.lane_name({text}) collate \"C\")"),
            Self::Mysql => format!("CAST({text} AS BINARY)"),
            Self::Sqlite => format!("({text} COLLATE BINARY)"),
        }
    }

    /// A text that is compared exactly, whatever the collation of its column.
    pub(crate) fn exact(self, text: &str) -> String {
        match self {
            Self::Postgres => format!("({text} collate \"C\")"),
            Self::Mysql => format!("{text} COLLATE utf8mb4_bin"),
            Self::Sqlite => format!("({text} COLLATE BINARY)"),
        }
    }

    /// A time in microseconds since 1970.
    pub(crate) fn as_micros(self, time: &str, kind: &ColumnType) -> String {
        match self {
            Self::Postgres => {
                let zoned = self.zoned(time, kind);
                format!(
                    "case when isfinite({time}) \
                     then (extract(epoch from {zoned}) * 1000000)::bigint end"
                )
            }
            Self::Mysql => format!("timestampdiff(MICROSECOND, '1970-01-01', {time})"),
            Self::Sqlite => format!(
                "CASE typeof({time}) \
                 WHEN 'integer' THEN CASE WHEN abs({time}) < 100000000000 THEN {time} * 1000000 \
                     WHEN abs({time}) < 100000000000000 THEN {time} * 1000 ELSE {time} END \
                 WHEN 'real' THEN CAST({time} * 1000000 AS INTEGER) \
                 WHEN 'text' THEN \
                     CAST(round((julianday({time}) - 2440587.5) * 86400000.0) AS INTEGER) * 1000 \
                 END"
            ),
        }
    }

    /// A time of PostgreSQL as a moment: without a zone it is taken as UTC.
    fn zoned(self, time: &str, kind: &ColumnType) -> String {
        if *kind == ColumnType::LocalTime {
            format!("({time} at time zone 'UTC')")
        } else {
            time.to_owned()
        }
    }
}

impl Key {
    /// A column of semel's own that holds texts.
    pub(crate) fn own(column: &str) -> Self {
        let (column, text) = (column.to_owned(), column.to_owned());
        let type_name = "text".into();
        Self { column, text, type_name, parameter: ("", ""), takes_anything: false }
    }

    /// A column of a mapped table.
    pub(crate) fn of(dialect: Dialect, column: String, kind: &ColumnType, type_name: &str) -> Self {
        let (text, parameter) = match (dialect, kind) {
            (Dialect::Mysql, ColumnType::Bytes) => (format!("hex({column})"), ("unhex(", ")")),
            (Dialect::Mysql, ColumnType::Integer) if type_name.contains("unsigned") => {
                (dialect.as_text(&column), ("CAST(", " AS UNSIGNED)"))
            }
            (Dialect::Mysql, ColumnType::Integer) => {
                (dialect.as_text(&column), ("CAST(", " AS SIGNED)"))
            }
            (Dialect::Sqlite, _) => (
                format!(
                    "CASE typeof({column}) WHEN 'blob' THEN lower(hex({column})) \
                     ELSE CAST({column} AS TEXT) END"
                ),
                ("", ""),
            ),
            _ => (dialect.as_text(&column), ("", "")),
        };
        // Without a length, `character` has room for one letter: everything else would be cut off.
        let type_name = if type_name == "character" { "bpchar" } else { type_name };
        let takes_anything = dialect == Dialect::Sqlite && *kind != ColumnType::Integer;
        Self { column, text, type_name: type_name.to_owned(), parameter, takes_anything }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_in_names_are_doubled() {
        assert_eq!(Dialect::Postgres.quote(r#"o"; drop"#), r#""o""; drop""#);
        assert_eq!(Dialect::Sqlite.quote(r#"o"x"#), r#""o""x""#);
        assert_eq!(Dialect::Mysql.quote("o`; drop"), "`o``; drop`");
        assert_eq!(Dialect::Mysql.literal(r"a\'b"), r"'a\\''b'");
        assert_eq!(Dialect::Postgres.literal(r"a\'b"), r"'a\''b'");
    }
}
