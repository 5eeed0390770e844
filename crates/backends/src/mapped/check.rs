//! Holds a mapping against the real table, and says everything that is wrong at once.

use std::fmt::Write as _;

use semel_core::{Failure, Fault};

use super::Mapping;
use super::catalog;
use super::database::Database;
use super::dialect::Dialect;
use super::index::{self, Index};
use super::statement::{Kind, Statement};
use super::table::{Column, ColumnType, Table};

/// The table that a mapping describes.
///
/// # Errors
/// `Misconfigured`, with every fault that was found, when the mapping does not fit.
pub(crate) async fn check(database: &dyn Database, mapping: &Mapping) -> Result<Table, Failure> {
    let columns = catalog::columns(database, mapping).await?;
    if columns.is_empty() {
        return Err(missing_table(database, mapping).await?);
    }
    let mut faults = Faults::default();
    faults.look_at_marks(mapping);
    for (role, name) in mapping.roles() {
        faults.look_at_column(database.dialect(), (role, name), &columns);
    }
    faults.or_none(database.dialect(), mapping)?;

    let mut table = Table::new(database.dialect(), mapping, columns);
    let mut faults = Faults::default();
    faults.try_privileges(database, &table).await?;
    faults.look_for_unknown_marks(database, &table).await?;
    let indexes = index::indexes(database, mapping).await?;
    faults.look_for_a_unique_id(database, &table, &indexes).await?;
    faults.or_none(database.dialect(), mapping)?;
    table.access = index::access(&table, &indexes);
    Ok(table)
}

async fn missing_table(database: &dyn Database, mapping: &Mapping) -> Result<Failure, Failure> {
    let (name, shown) = (database.dialect().name(), mapping.shown());
    let tables = catalog::tables(database, mapping).await?;
    let fix = match (nearest(&mapping.table, tables.iter().map(String::as_str)), &mapping.schema) {
        (Some(near), _) => format!("there is a table {near:?}: map that one"),
        (None, None) if mapping.table.contains('.') => {
            "give the schema apart from the name of the table".into()
        }
        _ => "create it, or check schema, upper and lower case, and that this user may read it"
            .to_owned(),
    };
    let what = format!("{name}: the mapped table {shown:?} does not exist");
    Ok(Failure::misconfigured("E-MAPPED-TABLE", what).with_fix(fix))
}

/// What is wrong, and what to do about it.
#[derive(Default)]
struct Faults(Vec<(&'static str, String, String)>);

impl Faults {
    fn add(&mut self, code: &'static str, what: impl Into<String>, fix: impl Into<String>) {
        self.0.push((code, what.into(), fix.into()));
    }

    fn or_none(self, dialect: Dialect, mapping: &Mapping) -> Result<(), Failure> {
        let Some((code, ..)) = self.0.first() else { return Ok(()) };
        let mut text = format!("{}: the mapping of {:?} is wrong", dialect.name(), mapping.shown());
        for (place, (_, what, _)) in self.0.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{} {what}", if place == 0 { ":" } else { ";" });
        }
        let fixes: Vec<&str> = self.0.iter().map(|(_, _, fix)| fix.as_str()).collect();
        Err(Failure::misconfigured(code, text).with_fix(fixes.join("; ")))
    }

    fn look_at_marks(&mut self, mapping: &Mapping) {
        let marks = mapping.time_mark.is_some()
            || mapping.flag_mark.is_some()
            || mapping.status_mark.is_some();
        if !marks && !mapping.delete {
            self.add(
                "E-MAPPED-MARK",
                "nothing says how a published row is marked",
                "map a column for a time, a flag or a status, or let rows be deleted on publish",
            );
        }
        if marks && mapping.delete {
            self.add(
                "E-MAPPED-MARK",
                "a row cannot be marked and deleted",
                "choose one of the two",
            );
        }
        if let Some(mark) = &mapping.status_mark
            && mark.pending == mark.published
        {
            self.add(
                "E-MAPPED-MARK",
                format!("{:?} means both waiting and published", mark.pending),
                "give two different values",
            );
        }
    }

    fn look_at_column(&mut self, dialect: Dialect, (role, name): (&str, &str), all: &[Column]) {
        let Some(column) = all.iter().find(|column| column.name == name) else {
            let near = nearest(name, all.iter().map(|column| column.name.as_str()));
            let fix = near.map_or_else(
                || format!("add the column {name:?}, or map another one as {role}"),
                |near| format!("did you mean {near:?}?"),
            );
            return self.add(
                "E-MAPPED-COLUMN",
                format!("there is no column {name:?} for {role}"),
                fix,
            );
        };
        if let Some(wanted) = misfit(dialect, role, column.kind) {
            let found = &column.type_name;
            self.add(
                "E-MAPPED-TYPE",
                format!("the column {name:?} for {role} is {found}, and must be {wanted}"),
                format!("map a column of such a type as {role}"),
            );
        }
    }

    /// Tries what will be done, on no rows: nobody knows better than the database what is allowed.
    async fn try_privileges(
        &mut self,
        database: &dyn Database,
        table: &Table,
    ) -> Result<(), Failure> {
        let mut select = database.statement();
        select.push(&format!("SELECT {} FROM {} t WHERE 1 = 0", table.event_columns, table.name));
        let selected = database.read("read the mapped table", select).await.map(drop);
        self.note_privilege(table, "SELECT", selected)?;
        for (verb, mut change) in changes(database, table) {
            change.push(" WHERE 1 = 0");
            let changed = database.write("change the mapped table", vec![change]).await;
            self.note_privilege(table, verb, changed.map(drop))?;
        }
        Ok(())
    }

    fn note_privilege(
        &mut self,
        table: &Table,
        verb: &str,
        tried: Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Err(failure) = tried else { return Ok(()) };
        if failure.fault() != Fault::Misconfigured {
            return Err(failure);
        }
        let fix = match table.dialect {
            Dialect::Sqlite => "check that the file and its folder may be written".to_owned(),
            _ => format!("run `GRANT {verb} ON {} TO …` as its owner", table.name),
        };
        self.add("E-MAPPED-PRIVILEGE", format!("this user may not {verb}: {failure}"), fix);
        Ok(())
    }

    /// Two rows of one id would be marked as one, and one of them never published. A table that is
    /// partitioned by ranges can only say so together with their columns.
    async fn look_for_a_unique_id(
        &mut self,
        database: &dyn Database,
        table: &Table,
        indexes: &[Index],
    ) -> Result<(), Failure> {
        let (id, mapping, dialect) = (&table.mapping.id, &table.mapping, table.dialect);
        let is_unique = |ranges: &[String]| indexes.iter().any(|i| i.makes_unique(id, ranges));
        if is_unique(&[]) || is_unique(&index::range_columns(database, mapping).await?) {
            return Ok(());
        }
        let nearly = indexes.iter().find(|index| index.unique && index.columns.contains(id));
        let why = nearly.map(|index| format!(" (the index {})", index.shortfall()));
        let why = why.unwrap_or_default();
        let name = dialect.quote(&format!("{}_{id}", mapping.table));
        let column = dialect.quote(id);
        self.add(
            "E-MAPPED-ID",
            format!("nothing says that no two rows have the same {id:?}{why}"),
            format!(
                "make {id:?} alone the primary key or unique, as by `CREATE UNIQUE INDEX {name} \
                 ON {} ({column})`, or map another column as id",
                table.name
            ),
        );
        Ok(())
    }

    /// Of a flag that is neither true nor false nobody knows what it means, until a pipeline reads the
    /// table: what is written with it from then on waits.
    async fn look_for_unknown_marks(
        &mut self,
        database: &dyn Database,
        table: &Table,
    ) -> Result<(), Failure> {
        let Some(flag) = table.mapping.flag_mark.as_ref().filter(|flag| table.is_nullable(flag))
        else {
            return Ok(());
        };
        let (name, column) = (&table.name, table.dialect.quote(flag));
        let mut sql = database.statement();
        sql.push(&format!("SELECT 1 FROM {name} WHERE {column} IS NULL LIMIT 1"));
        let found = !database.read("look for rows without a mark", sql).await?.is_empty();
        if found && !is_read_already(database, table).await? {
            let value = if table.dialect == Dialect::Postgres { "false" } else { "0" };
            self.add(
                "E-MAPPED-MARK",
                format!("{flag:?} is null in some rows: nobody knows whether they are published"),
                format!(
                    "run `UPDATE {name} SET {column} = {value} WHERE {column} IS NULL`, and make \
                     the column NOT NULL"
                ),
            );
        }
        Ok(())
    }
}

async fn is_read_already(database: &dyn Database, table: &Table) -> Result<bool, Failure> {
    let (relation, spellings) = catalog::spellings(database, &table.mapping).await?;
    let mut sql = database.statement();
    sql.push(&format!("SELECT 1 FROM {} WHERE ", database.dialect().owners()));
    sql.among(&relation, &spellings);
    Ok(!database.read("look who owns the table", sql).await?.is_empty())
}

/// What will be done to rows.
fn changes(database: &dyn Database, table: &Table) -> Vec<(&'static str, Statement)> {
    let delete = table.mapping.delete;
    let mut mark = database.statement().of_kind(Kind::Change);
    table.mark_rows(&mut mark, false, database.clock().now());
    let mut changes = vec![(if delete { "DELETE" } else { "UPDATE" }, mark)];
    if let Some(count) = table.mapping.retry_count.as_ref().filter(|_| delete) {
        let mut change = database.statement().of_kind(Kind::Change);
        change.push(&format!("UPDATE {} SET {} = 0", table.name, table.dialect.quote(count)));
        changes.push(("UPDATE", change));
    }
    changes
}

/// What a column of this role must be, unless it is.
fn misfit(dialect: Dialect, role: &str, kind: ColumnType) -> Option<&'static str> {
    use ColumnType::{Any, Bit, Boolean, Bytes, Integer, Json, LocalTime, Other, Text, Time, Uuid};
    let (fits, wanted) = match (role, dialect) {
        (_, _) if kind == Any => (true, ""),
        ("id" | "event_id", Dialect::Mysql | Dialect::Sqlite) => {
            (matches!(kind, Integer | Text | Uuid | Bytes), "a whole number, text, a UUID or bytes")
        }
        ("id" | "event_id", Dialect::Postgres) => {
            (matches!(kind, Integer | Text | Uuid), "a whole number, text or a UUID")
        }
        ("payload", _) => (matches!(kind, Json | Text | Bytes), "JSON, text or bytes"),
        ("headers", _) => (matches!(kind, Json | Text), "JSON or text"),
        ("created_at" | "available_at" | "mark_time", Dialect::Sqlite) => {
            (matches!(kind, Time | Text | Integer), "a time, text or a whole number")
        }
        ("created_at" | "available_at" | "mark_time", _) => {
            (matches!(kind, Time | LocalTime), "a time")
        }
        ("mark_flag", _) => {
            (matches!(kind, Boolean | Integer | Bit), "a boolean or a whole number")
        }
        ("mark_status", _) => (kind == Text, "text"),
        ("retry_count", _) => (kind == Integer, "a whole number"),
        ("order_by", _) => (!matches!(kind, Json | Bytes), "something that has an order"),
        _ => (!matches!(kind, Bytes | Json | Bit) || kind == Other, "a text, a number or a UUID"),
    };
    (!fits).then_some(wanted)
}

/// The name that was probably meant.
fn nearest<'n>(wanted: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let slips = |name: &'n str| {
        let (wanted, name) = (wanted.to_lowercase(), name.to_lowercase());
        let plain = |text: &str| text.replace('_', "");
        strsim::damerau_levenshtein(&wanted, &name)
            .min(strsim::damerau_levenshtein(&plain(&wanted), &plain(&name)))
    };
    let (slips, best) = names.map(|name| (slips(name), name)).min()?;
    (slips <= 1 + best.len() / 4).then_some(best)
}
