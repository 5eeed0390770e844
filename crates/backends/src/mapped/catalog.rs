//! What the database itself says about a table: its columns and indexes.

use semel_core::Failure;

use super::Mapping;
use super::database::Database;
use super::dialect::Dialect;
use super::statement::{Row, Statement};
use super::table::{Access, Column, ColumnType, Table};
use super::unknown::Unknown;

const WHAT: &str = "look at the mapped table";

/// The columns of the table; none when there is no such table.
pub(super) async fn columns(
    database: &dyn Database,
    mapping: &Mapping,
) -> Result<Vec<Column>, Failure> {
    let mut sql = database.statement();
    match database.dialect() {
        Dialect::Postgres => {
            sql.push(
                "select a.attname::text, format_type(coalesce(nullif(y.typbasetype, 0), y.oid), \
                 null)::text, (not a.attnotnull)::int::bigint, (y.typtype = 'e')::int::bigint \
                 from pg_attribute a join pg_type y on y.oid = a.atttypid \
                 where a.attnum > 0 and not a.attisdropped and a.attrelid = ",
            );
            regclass(&mut sql, mapping);
            sql.push(" order by a.attnum");
        }
        Dialect::Mysql => {
            sql.push(
                "SELECT column_name, column_type, is_nullable = 'YES', 0 \
                 FROM information_schema.columns WHERE ",
            );
            in_schema(&mut sql, mapping);
            sql.push(" ORDER BY ordinal_position");
        }
        Dialect::Sqlite => {
            sql.push("SELECT name, type, \"notnull\" = 0 AND pk = 0, 0 FROM pragma_table_info(");
            pragma_arguments(&mut sql, mapping);
            sql.push(") ORDER BY cid");
        }
    }
    let rows = database.read(WHAT, sql).await?;
    Ok(rows.iter().map(|row| column(database.dialect(), row)).collect())
}

/// The names of tables that could have been meant.
pub(super) async fn tables(
    database: &dyn Database,
    mapping: &Mapping,
) -> Result<Vec<String>, Failure> {
    let mut sql = database.statement();
    match database.dialect() {
        Dialect::Postgres => {
            sql.push(
                "select table_name::text from information_schema.tables \
                 where table_schema = coalesce(",
            );
            sql.text(mapping.schema.as_deref()).push(", current_schema())");
        }
        Dialect::Mysql => {
            sql.push("SELECT table_name FROM information_schema.tables WHERE table_schema = ");
            sql.push("coalesce(").text(mapping.schema.as_deref()).push(", database())");
        }
        Dialect::Sqlite => {
            sql.push("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')");
        }
    }
    let rows = database.read(WHAT, sql).await?;
    Ok(rows.iter().filter_map(|row| row.text(0)).collect())
}

/// The indexes of the table.
pub(super) async fn indexes(
    database: &dyn Database,
    mapping: &Mapping,
) -> Result<Vec<Index>, Failure> {
    let mut sql = database.statement();
    match database.dialect() {
        Dialect::Postgres => {
            sql.push(
                "select c.relname::text, (i.indpred is not null)::int::bigint, a.attname::text, \
                 i.indisunique::int::bigint from pg_index i join pg_class c on c.oid = i.indexrelid \
                 cross join lateral unnest(i.indkey::int2[]) with ordinality k(attnum, place) \
                 left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum \
                 where i.indisvalid and i.indrelid = ",
            );
            regclass(&mut sql, mapping);
            sql.push(" order by c.relname, k.place");
        }
        Dialect::Mysql => {
            sql.push(
                "SELECT index_name, 0, column_name, 1 - non_unique \
                 FROM information_schema.statistics WHERE ",
            );
            in_schema(&mut sql, mapping);
            sql.push(" ORDER BY index_name, seq_in_index");
        }
        Dialect::Sqlite => {
            // A row number is its own index.
            sql.push("SELECT 'rowid', 0, name, 1 FROM pragma_table_info(");
            pragma_arguments(&mut sql, mapping);
            sql.push(") WHERE pk > 0 UNION ALL SELECT * FROM (");
            sql.push("SELECT l.name, l.partial, i.name, l.\"unique\" FROM pragma_index_list(");
            pragma_arguments(&mut sql, mapping);
            sql.push(") l JOIN pragma_index_info(l.name) i ORDER BY l.name, i.seqno)");
        }
    }
    Ok(grouped(&database.read(WHAT, sql).await?))
}

/// An index and its columns, in order.
#[derive(Debug)]
pub(super) struct Index {
    name: String,
    /// It has some of the rows only: those that wait, one hopes.
    partial: bool,
    pub(super) unique: bool,
    pub(super) columns: Vec<String>,
}

fn grouped(rows: &[Row]) -> Vec<Index> {
    let mut indexes: Vec<Index> = Vec::new();
    for row in rows {
        let (name, column) = (row.text(0).unwrap_or_default(), row.text(2).unwrap_or_default());
        match indexes.last_mut().filter(|last| last.name == name) {
            Some(last) => last.columns.push(column),
            None => {
                let (partial, unique) = (row.is_true(1), row.is_true(3));
                indexes.push(Index { name, partial, unique, columns: vec![column] });
            }
        }
    }
    indexes
}

/// How the rows that wait are best read.
pub(super) fn access(table: &Table, indexes: &[Index]) -> Access {
    let order = table.order();
    let (Some(mark), Some(first)) = (table.mark(), order.first()) else {
        return Access::default();
    };
    let has_order = |index: &&Index| match &index.columns[..] {
        [one, ..] if index.partial && one == first => true,
        [one, two, ..] => one == mark && two == first,
        // Every index of these two ends with the primary key.
        [one] => one == mark && order.len() == 1 && table.dialect != Dialect::Postgres,
        [] => false,
    };
    let has_mark =
        |index: &&Index| index.partial || index.columns.first().is_some_and(|c| c == mark);
    let ordered = indexes.iter().find(has_order);
    let chosen = ordered.or_else(|| indexes.iter().find(has_mark));
    let hint = match (table.dialect, chosen) {
        (Dialect::Mysql, Some(index)) => {
            format!(" FORCE INDEX ({})", table.dialect.quote(&index.name))
        }
        _ => String::new(),
    };
    let begin = match (table.dialect, ordered, chosen) {
        (Dialect::Postgres, Some(_), _) => Some(IN_ORDER),
        (Dialect::Postgres, None, Some(_)) => Some(BY_INDEX),
        _ => None,
    };
    let sorts = ordered.is_none() && chosen.is_some();
    Access { hint, sorts, begin, unknown: unknown(table, indexes) }
}

/// How the rows are found whose mark is null, where it should be a flag.
fn unknown(table: &Table, indexes: &[Index]) -> Unknown {
    let Some(flag) = table.mapping.flag_mark.as_ref().filter(|flag| table.is_nullable(flag)) else {
        return Unknown::None;
    };
    let has_all = |index: &Index| !index.partial && index.columns.first() == Some(flag);
    if indexes.iter().any(has_all) {
        Unknown::Indexed
    } else if indexes.iter().any(|index| index.partial) {
        Unknown::Hidden
    } else {
        Unknown::Scanned
    }
}

/// By an index, whatever the statistics say; and not by a bitmap, which steps over every row that was
/// ever marked again and again until a vacuum, where an index scan does so once.
const BY_INDEX: &str =
    "begin read only; set local enable_seqscan = off; set local enable_bitmapscan = off";

/// The same, and the index has the order already.
const IN_ORDER: &str = "begin read only; set local enable_seqscan = off; \
    set local enable_bitmapscan = off; set local enable_sort = off";

/// The table as PostgreSQL knows it.
fn regclass(sql: &mut Statement, mapping: &Mapping) {
    let schema = mapping.schema.as_ref().map(|schema| Dialect::Postgres.quote(schema) + ".");
    let name = schema.unwrap_or_default() + &Dialect::Postgres.quote(&mapping.table);
    sql.push("to_regclass(").text(name.as_str()).push(")");
}

fn in_schema(sql: &mut Statement, mapping: &Mapping) {
    sql.push("table_schema = coalesce(").text(mapping.schema.as_deref());
    sql.push(", database()) AND table_name = ").text(mapping.table.as_str());
}

fn pragma_arguments(sql: &mut Statement, mapping: &Mapping) {
    sql.text(mapping.table.as_str());
    if let Some(schema) = &mapping.schema {
        sql.push(", ").text(schema.as_str());
    }
}

fn column(dialect: Dialect, row: &Row) -> Column {
    let type_name = row.text(1).unwrap_or_default();
    let kind = match dialect {
        Dialect::Postgres if row.is_true(3) => ColumnType::Text,
        Dialect::Postgres => of_postgres(&type_name),
        Dialect::Mysql => of_mysql(&type_name),
        Dialect::Sqlite => of_sqlite(&type_name),
    };
    Column { name: row.text(0).unwrap_or_default(), kind, type_name, nullable: row.is_true(2) }
}

fn of_postgres(name: &str) -> ColumnType {
    match name {
        "smallint" | "integer" | "bigint" => ColumnType::Integer,
        "text" | "character varying" | "character" | "citext" | "name" => ColumnType::Text,
        "uuid" => ColumnType::Uuid,
        "bytea" => ColumnType::Bytes,
        "json" | "jsonb" => ColumnType::Json,
        "timestamp with time zone" => ColumnType::Time,
        "timestamp without time zone" => ColumnType::LocalTime,
        "boolean" => ColumnType::Boolean,
        _ => ColumnType::Other,
    }
}

fn of_mysql(name: &str) -> ColumnType {
    let name = name.to_ascii_lowercase();
    let word = name.split(['(', ' ']).next().unwrap_or_default();
    match word {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => ColumnType::Integer,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" | "enum" => {
            ColumnType::Text
        }
        "uuid" => ColumnType::Uuid,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => {
            ColumnType::Bytes
        }
        "json" => ColumnType::Json,
        "datetime" | "timestamp" => ColumnType::Time,
        "bit" if name == "bit(1)" => ColumnType::Bit,
        _ => ColumnType::Other,
    }
}

/// SQLite takes anything anywhere: the type is a hint.
fn of_sqlite(name: &str) -> ColumnType {
    let name = name.to_ascii_uppercase();
    let has = |word: &str| name.contains(word);
    if has("INT") {
        ColumnType::Integer
    } else if has("BLOB") {
        ColumnType::Bytes
    } else if has("TIME") || has("DATE") {
        ColumnType::Time
    } else if has("BOOL") {
        ColumnType::Boolean
    } else if has("JSON") {
        ColumnType::Json
    } else if has("CHAR") || has("CLOB") || has("TEXT") || has("UUID") {
        ColumnType::Text
    } else {
        ColumnType::Any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(name: &str, partial: bool, columns: &[&str]) -> Index {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Index { name: name.into(), partial, unique: false, columns }
    }

    fn numbered(dialect: Dialect) -> Table {
        let kind = ColumnType::Integer;
        let id = Column { name: "id".into(), kind, type_name: "bigint".into(), nullable: false };
        Table::new(dialect, &Mapping::polling_publisher("outbox"), vec![id])
    }

    #[test]
    fn an_index_on_the_mark_is_used_and_one_in_order_is_best() {
        let table = numbered(Dialect::Mysql);
        let primary = index("PRIMARY", false, &["id"]);
        let by_time = index("by_time", false, &["published", "created_at"]);
        let by_id = index("by_id", false, &["published", "id"]);
        let classic = access(&table, &[index("PRIMARY", false, &["id"]), by_time]);
        assert_eq!((classic.hint.as_str(), classic.sorts), (" FORCE INDEX (`by_time`)", true));
        let best = access(&table, &[index("a", false, &["published", "created_at"]), by_id]);
        assert_eq!((best.hint.as_str(), best.sorts), (" FORCE INDEX (`by_id`)", false));
        let none = access(&table, &[primary]);
        assert_eq!((none.hint.as_str(), none.sorts), ("", false));
        let partial = index("waiting", true, &["id"]);
        assert!(!access(&numbered(Dialect::Postgres), &[partial]).sorts);
    }

    #[test]
    fn rows_without_a_flag_are_found_as_the_indexes_let_them() {
        let kind = ColumnType::Boolean;
        let flag = |nullable| Column {
            name: "published".into(),
            kind,
            type_name: "boolean".into(),
            nullable,
        };
        let mapping = Mapping::polling_publisher("outbox");
        let sure = Table::new(Dialect::Postgres, &mapping, vec![flag(false)]);
        let unsure = Table::new(Dialect::Postgres, &mapping, vec![flag(true)]);
        let partial = || index("waiting", true, &["id"]);
        let whole = || index("by_time", false, &["published", "created_at"]);
        assert_eq!(unknown(&sure, &[whole(), partial()]), Unknown::None);
        assert_eq!(unknown(&unsure, &[whole(), partial()]), Unknown::Indexed);
        assert_eq!(unknown(&unsure, &[partial()]), Unknown::Hidden);
        assert_eq!(unknown(&unsure, &[index("key", false, &["id"])]), Unknown::Scanned);
    }

    #[test]
    fn types_are_told_apart() {
        assert_eq!(of_mysql("bigint(20) unsigned"), ColumnType::Integer);
        assert_eq!(of_mysql("varchar(255)"), ColumnType::Text);
        assert_eq!(of_mysql("bit(1)"), ColumnType::Bit);
        assert_eq!(of_mysql("decimal(10,2)"), ColumnType::Other);
        assert_eq!(of_sqlite("varchar(255)"), ColumnType::Text);
        assert_eq!(of_sqlite("timestamp"), ColumnType::Time);
        assert_eq!(of_sqlite(""), ColumnType::Any);
        assert_eq!(of_postgres("numeric"), ColumnType::Other);
    }
}
