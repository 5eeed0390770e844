//! A mapping that was held against the real table: the SQL of its columns, and events from its rows.

use std::borrow::Cow;
use std::collections::BTreeMap;

use semel_core::{Event, Failure, Payload, Timestamp};

use super::dialect::{Dialect, Key};
use super::identity;
use super::mapping::Origin;
use super::statement::{Row, Statement};
use super::unknown::Unknown;
use super::{LaneOrder, Mapping};
use crate::row::{parse_headers, timestamp};

/// A table whose columns are known. In queries it is called `t`.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) dialect: Dialect,
    pub(crate) mapping: Mapping,
    /// Schema and name, quoted.
    pub(crate) name: String,
    columns: BTreeMap<String, Column>,
    pub(crate) access: Access,
    /// What [`Table::event`] reads.
    pub(crate) event_columns: String,
    /// The same with an empty payload, unless it is null.
    pub(crate) listed_columns: String,
    extra: Vec<String>,
}

/// A column of the real table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: ColumnType,
    pub(crate) type_name: String,
    pub(crate) nullable: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Integer,
    Text,
    Uuid,
    Bytes,
    Json,
    /// A moment.
    Time,
    /// A time without a zone.
    LocalTime,
    Boolean,
    /// A single bit of MySQL.
    Bit,
    /// SQLite: whatever was written.
    Any,
    Other,
}

/// How waiting rows are best read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// Which index to use, for a database that must be told.
    pub(crate) hint: String,
    /// There is an index on the mark, but none that has the rows in order: they are sorted, so that
    /// nobody is tempted to walk through all that was ever published.
    pub(crate) sorts: bool,
    /// How the transaction begins, for a planner that would rather believe its statistics: they are
    /// made while little waits, and are wrong when much does.
    pub(crate) begin: Option<&'static str>,
    pub(crate) unknown: Unknown,
}

/// Where [`Table::event_columns`] has the lane.
const LANE: [usize; 2] = [2, 3];

/// Where it has what is not part of the event.
pub(crate) const PUBLISHED_AT: usize = 11;
pub(crate) const UNMARKED: usize = 12;
const EXTRA: usize = 13;

impl Table {
    pub(crate) fn new(dialect: Dialect, mapping: &Mapping, columns: Vec<Column>) -> Self {
        let known: Vec<_> = mapping.roles().into_iter().map(|(_, column)| column).collect();
        let mut extra = mapping.header_columns.clone();
        if mapping.all_other_columns {
            let others = columns.iter().map(|column| &column.name);
            extra.extend(others.filter(|name| !known.contains(&name.as_str())).cloned());
        }
        let schema = mapping.schema.as_ref().map(|schema| format!("{}.", dialect.quote(schema)));
        let mut table = Self {
            dialect,
            name: schema.unwrap_or_default() + &dialect.quote(&mapping.table),
            mapping: mapping.clone(),
            columns: columns.into_iter().map(|column| (column.name.clone(), column)).collect(),
            access: Access::default(),
            event_columns: String::new(),
            listed_columns: String::new(),
            extra,
        };
        let payload = table.payload();
        table.event_columns = table.select_event(&payload).join(", ");
        let nothing = format!("CASE WHEN {payload} IS NOT NULL THEN '' END");
        table.listed_columns = table.select_event(&nothing).join(", ");
        table
    }

    /// Refers to a column of `t`.
    fn column(&self, name: &str) -> String {
        format!("t.{}", self.dialect.quote(name))
    }

    pub(crate) fn kind(&self, name: &str) -> ColumnType {
        self.columns.get(name).map_or(ColumnType::Other, |column| column.kind)
    }

    pub(crate) fn is_nullable(&self, name: &str) -> bool {
        self.columns.get(name).is_some_and(|column| column.nullable)
    }

    fn key_of(&self, column: String, name: &str) -> Key {
        let type_name = self.columns.get(name).map_or("text", |column| &column.type_name);
        Key::of(self.dialect, column, &self.kind(name), type_name)
    }

    /// What rows of `t` are told apart by.
    pub(crate) fn key(&self) -> Key {
        self.key_of(self.column(&self.mapping.id), &self.mapping.id)
    }

    /// The same where the table has no other name.
    pub(crate) fn bare_key(&self) -> Key {
        self.key_of(self.dialect.quote(&self.mapping.id), &self.mapping.id)
    }

    /// What rows of `t` have their event's id from.
    pub(crate) fn identity(&self) -> (Key, ColumnType) {
        let name = self.mapping.event_id.as_ref().unwrap_or(&self.mapping.id);
        (self.key_of(self.column(name), name), self.kind(name))
    }

    /// The lane of a row of `t`, comparable with semel's own columns.
    pub(crate) fn lane(&self) -> (String, String) {
        let aggregate_type = match &self.mapping.aggregate_type {
            Origin::Column(name) => self.dialect.as_name(&self.column(name)),
            Origin::Constant(value) => self.dialect.literal(value),
        };
        (aggregate_type, self.dialect.as_name(&self.column(&self.mapping.aggregate_id)))
    }

    /// The columns that order the rows, the most important first.
    pub(crate) fn order(&self) -> Vec<&str> {
        let Mapping { id, order, created_at, .. } = &self.mapping;
        let first = match (order, created_at) {
            (Some(order), _) => Some(order),
            (None, Some(created_at)) if self.kind(id) != ColumnType::Integer => Some(created_at),
            _ => None,
        };
        first.filter(|first| *first != id).into_iter().chain([id]).map(String::as_str).collect()
    }

    /// Whether that is the order of their making.
    pub(crate) fn lane_order(&self) -> LaneOrder {
        let Mapping { id, order, created_at, .. } = &self.mapping;
        match created_at {
            _ if order.is_some() || self.kind(id) == ColumnType::Integer => LaneOrder::ByColumn,
            Some(_) => LaneOrder::ByTime,
            None => LaneOrder::None,
        }
    }

    /// Whether rows are ordered by a number that no two of them share.
    pub(crate) fn is_numbered(&self) -> bool {
        self.kind(&self.mapping.id) == ColumnType::Integer && self.order().len() == 1
    }

    pub(crate) fn order_by(&self) -> String {
        let ordered: Vec<_> = self.order().into_iter().map(|name| self.column(name)).collect();
        format!(" ORDER BY {}", ordered.join(", "))
    }

    /// The same, for rows that wait: so that they are found by their mark.
    pub(crate) fn order_waiting_by(&self) -> String {
        let (Some(first), true) = (self.order().first().copied(), self.access.sorts) else {
            return self.order_by();
        };
        let column = self.column(first);
        let hidden = match (self.dialect, self.kind(first)) {
            (Dialect::Sqlite, _) => format!("+{column}"),
            (Dialect::Postgres, ColumnType::Integer) => format!("{column} + 0"),
            (Dialect::Postgres, ColumnType::Time | ColumnType::LocalTime) => {
                format!("{column} + interval '0'")
            }
            _ => return self.order_by(),
        };
        self.order_by().replacen(&column, &hidden, 1)
    }

    /// The column by which waiting rows are told from published ones.
    pub(crate) fn mark(&self) -> Option<&str> {
        let Mapping { flag_mark, status_mark, time_mark, .. } = &self.mapping;
        let status = status_mark.as_ref().map(|mark| mark.column.as_str());
        flag_mark.as_deref().or(status).or(time_mark.as_deref())
    }

    /// That a row is not published; `prefix` is what the table is called.
    pub(crate) fn unmarked(&self, prefix: &str) -> String {
        match self.access.unknown {
            Unknown::Indexed | Unknown::Scanned => self.unmarked_or_unknown(prefix),
            Unknown::None | Unknown::Hidden => self.surely_unmarked(prefix),
        }
    }

    /// The same, and its mark says so.
    pub(crate) fn surely_unmarked(&self, prefix: &str) -> String {
        self.state(prefix, false)
    }

    fn unmarked_or_unknown(&self, prefix: &str) -> String {
        let unmarked = self.surely_unmarked(prefix);
        match self.unknown_mark(prefix) {
            Some(unknown) => format!("({unmarked} OR {unknown})"),
            None => unmarked,
        }
    }

    /// That a row is published.
    pub(crate) fn marked(&self, prefix: &str) -> String {
        self.state(prefix, true)
    }

    fn state(&self, prefix: &str, published: bool) -> String {
        let column = |name: &str| format!("{prefix}{}", self.dialect.quote(name));
        let Mapping { flag_mark, status_mark, time_mark, .. } = &self.mapping;
        if let Some(flag) = flag_mark {
            format!("{} = {}", column(flag), self.flag(flag, published))
        } else if let Some(mark) = status_mark {
            let value = if published { &mark.published } else { &mark.pending };
            format!("{} = {}", column(&mark.column), self.dialect.literal(value))
        } else if let Some(time) = time_mark {
            let is = if published { "IS NOT NULL" } else { "IS NULL" };
            format!("{} {is}", column(time))
        } else {
            // A row is there until it is published.
            (if published { "1 = 0" } else { "1 = 1" }).into()
        }
    }

    pub(crate) fn flag(&self, name: &str, value: bool) -> &'static str {
        match (self.kind(name), value) {
            (ColumnType::Boolean, true) if self.dialect == Dialect::Postgres => "true",
            (ColumnType::Boolean, false) if self.dialect == Dialect::Postgres => "false",
            (ColumnType::Bit, true) => "b'1'",
            (ColumnType::Bit, false) => "b'0'",
            (_, true) => "1",
            (_, false) => "0",
        }
    }

    /// Adds that the time of a row of `t` has come.
    pub(crate) fn available(&self, sql: &mut Statement) {
        if let Some(name) = &self.mapping.available_at {
            let column = self.column(name);
            sql.push(&format!(" AND ({column} IS NULL OR "));
            match (self.dialect, self.kind(name)) {
                (Dialect::Postgres, ColumnType::LocalTime) => {
                    sql.push(&format!("{column} <= clock_timestamp() at time zone 'UTC'"))
                }
                (Dialect::Postgres, _) => sql.push(&format!("{column} <= clock_timestamp()")),
                (Dialect::Mysql, _) => sql.push(&format!("{column} <= utc_timestamp(6)")),
                (Dialect::Sqlite, kind) => {
                    sql.push(&self.dialect.as_micros(&column, &kind)).push(" <= ").now()
                }
            };
            sql.push(")");
        }
    }

    /// Writes the statement that makes rows published or, if there is a mark, waiting again.
    /// `time` is the present as this table's database cannot tell it.
    pub(crate) fn mark_rows(&self, sql: &mut Statement, published: bool, time: Timestamp) {
        if self.mapping.delete {
            sql.push("DELETE FROM ").push(&self.name);
            return;
        }
        sql.push("UPDATE ").push(&self.name).push(" SET ");
        let Mapping { flag_mark, status_mark, time_mark, .. } = &self.mapping;
        let mut next = "";
        if let Some(flag) = flag_mark {
            let value = self.flag(flag, published);
            sql.push(&format!("{} = {value}", self.dialect.quote(flag)));
            next = ", ";
        }
        if let Some(mark) = status_mark {
            let value = if published { &mark.published } else { &mark.pending };
            let (column, value) = (self.dialect.quote(&mark.column), self.dialect.literal(value));
            sql.push(&format!("{next}{column} = {value}"));
            next = ", ";
        }
        if let Some(name) = time_mark {
            sql.push(&format!("{next}{} = ", self.dialect.quote(name)));
            self.present(sql, name, published.then_some(time));
        }
        if let (Some(name), false) = (&self.mapping.retry_count, published) {
            sql.push(&format!(", {} = 0", self.dialect.quote(name)));
        }
    }

    /// The present as a column of this type takes it.
    fn present(&self, sql: &mut Statement, name: &str, time: Option<Timestamp>) {
        let Some(time) = time else {
            sql.push("NULL");
            return;
        };
        match (self.dialect, self.kind(name)) {
            (Dialect::Postgres, ColumnType::LocalTime) => {
                sql.push("clock_timestamp() at time zone 'UTC'")
            }
            (Dialect::Postgres, _) => sql.push("clock_timestamp()"),
            (Dialect::Mysql, _) => sql.push("utc_timestamp(6)"),
            (Dialect::Sqlite, ColumnType::Integer) => sql.int(time.as_second()),
            (Dialect::Sqlite, _) => sql.text(as_text(time).as_str()),
        };
    }

    /// A time column of `t` in microseconds.
    pub(crate) fn micros(&self, name: Option<&String>) -> String {
        let Some(name) = name else { return self.dialect.null().into() };
        self.dialect.as_micros(&self.column(name), &self.kind(name))
    }

    /// What an origin of `t` gives, as text.
    pub(crate) fn text_of(&self, origin: &Origin) -> String {
        match origin {
            Origin::Column(name) => self.dialect.as_text(&self.column(name)),
            Origin::Constant(value) => self.dialect.as_text(&self.dialect.literal(value)),
        }
    }

    /// The payload of a row of `t`.
    fn payload(&self) -> String {
        let payload = self.column(&self.mapping.payload);
        match self.kind(&self.mapping.payload) {
            ColumnType::Bytes | ColumnType::Any => payload,
            _ if self.dialect == Dialect::Sqlite => payload,
            _ => self.dialect.as_text(&payload),
        }
    }

    /// How many bytes it has.
    pub(crate) fn payload_bytes(&self) -> String {
        let bytes = format!("octet_length({})", self.payload());
        match self.dialect {
            Dialect::Postgres => format!("{bytes}::bigint"),
            Dialect::Mysql | Dialect::Sqlite => bytes,
        }
    }

    fn select_event(&self, payload: &str) -> Vec<String> {
        let Mapping { event_id, headers, idempotency_key, content_type, .. } = &self.mapping;
        let optional = |name: Option<&String>| {
            name.map_or(self.dialect.null().to_owned(), |name| {
                self.dialect.as_text(&self.column(name))
            })
        };
        let mut columns = vec![
            self.key().text,
            event_id.as_ref().map_or(self.dialect.null().into(), |_| self.identity().0.text),
            self.text_of(&self.mapping.aggregate_type),
            self.dialect.as_text(&self.column(&self.mapping.aggregate_id)),
            self.text_of(&self.mapping.event_type),
            payload.to_owned(),
            content_type.as_ref().map_or(self.dialect.null().into(), |from| self.text_of(from)),
            optional(headers.as_ref()),
            optional(idempotency_key.as_ref()),
            self.micros(self.mapping.created_at.as_ref()),
            self.micros(self.mapping.available_at.as_ref()),
            self.micros(self.mapping.time_mark.as_ref()),
            self.dialect.as_number(&self.unmarked_or_unknown("t.")),
        ];
        columns.extend(self.extra.iter().map(|name| optional(Some(name))));
        columns
    }

    /// The same columns with the names `c0`, `c1` and so on.
    pub(crate) fn named_columns(&self) -> Vec<String> {
        let columns = self.select_event(&self.payload()).into_iter().enumerate();
        columns.map(|(place, column)| format!("{column} AS c{place}")).collect()
    }

    /// What orders the rows, with the names `o0`, `o1` and so on.
    pub(crate) fn named_order(&self) -> Vec<String> {
        let order = self.order().into_iter().enumerate();
        order.map(|(place, name)| format!("{} AS o{place}", self.column(name))).collect()
    }

    /// How many columns that are.
    pub(crate) fn width(&self) -> usize {
        EXTRA + self.extra.len()
    }

    /// The id of the row that begins with [`event_columns`](Self::event_columns).
    pub(crate) fn row_id(&self, row: &Row) -> Result<String, Failure> {
        row.text(0).ok_or_else(|| {
            let what = format!("{}: a row has no id", self.mapping.shown());
            Failure::misconfigured("E-MAPPED-ID", what)
                .with_fix("map a column that is never null, best the primary key")
        })
    }

    /// A lane whose name is not compared as it was read would not wait behind what failed in it.
    fn check_lane(&self, row_id: &str, row: &Row) -> Result<(), Failure> {
        if self.dialect != Dialect::Sqlite || !LANE.into_iter().any(|index| row.is_no_text(index)) {
            return Ok(());
        }
        let table = self.mapping.shown();
        let what =
            format!("{table}: the aggregate of the row {row_id:?} is neither a text nor a UUID");
        Err(Failure::misconfigured("E-MAPPED-TYPE", what)
            .with_fix("write text into the columns for aggregate_type and aggregate_id"))
    }

    /// The event of such a row.
    pub(crate) fn event(&self, row: &Row) -> Result<Event, Failure> {
        let row_id = self.row_id(row)?;
        self.check_lane(&row_id, row)?;
        let id = identity::event_id(&self.mapping, &row.text(1).unwrap_or(row_id));
        let text = |index| row.text(index).unwrap_or_default();
        let mut event = Event::with_id(id, text(2), text(3), text(4));
        if let Some(bytes) = row.bytes(5) {
            let usual = match self.kind(&self.mapping.payload) {
                ColumnType::Bytes => "application/octet-stream",
                _ => Payload::JSON,
            };
            let content_type = row.text(6).map_or(Cow::Borrowed(usual), Cow::Owned);
            event.payload = Payload::new(content_type, bytes);
        }
        event.headers = row.text(7).map(|json| parse_headers(&json)).unwrap_or_default();
        for (index, name) in (EXTRA..).zip(&self.extra) {
            if let Some(value) = row.text(index) {
                event.headers.set(name.as_str(), value);
            }
        }
        event.custom_key = row.text(8);
        if self.mapping.created_at.is_some() {
            event.created_at = row.int(9).map_or(Timestamp::UNIX_EPOCH, timestamp);
        }
        event.available_at = row.int(10).map(timestamp);
        Ok(event)
    }
}

/// A time as SQLite itself writes it, with milliseconds.
fn as_text(time: Timestamp) -> String {
    let time = Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time);
    format!("{time:.3}").replace('T', " ").replace('Z', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_sqlite_writes_them() {
        let time = Timestamp::from_microsecond(1_767_225_600_123_456).unwrap();
        assert_eq!(as_text(time), "2026-01-01 00:00:00.123");
        assert_eq!(as_text(Timestamp::UNIX_EPOCH), "1970-01-01 00:00:00.000");
    }
}
