//! What the database itself says about a table: its columns.

use semel_core::Failure;

use super::Mapping;
use super::database::Database;
use super::dialect::{Dialect, Key};
use super::statement::{Row, Statement};
use super::table::{Column, ColumnType};

pub(super) const WHAT: &str = "look at the mapped table";

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

/// How the table may be written in SQL, and the column of semel's own that has it as one of them: with its
/// schema, and without where it is found without.
pub(super) async fn spellings(
    database: &dyn Database,
    mapping: &Mapping,
) -> Result<(Key, Vec<String>), Failure> {
    let (dialect, schema) = (database.dialect(), mapping.schema.as_deref());
    let mut sql = database.statement();
    match dialect {
        Dialect::Postgres => {
            sql.push(
                "select n.nspname::text, case when pg_table_is_visible(c.oid) then n.nspname::text end \
                 from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = ",
            );
            regclass(&mut sql, mapping)
        }
        Dialect::Mysql => {
            sql.push("SELECT coalesce(").text(schema).push(", database()), database()")
        }
        Dialect::Sqlite => {
            sql.push("SELECT lower(coalesce(").text(schema).push(", 'main')), 'main'")
        }
    };
    let table = dialect.quote(&mapping.table);
    let mut all = Vec::new();
    for row in database.read(WHAT, sql).await? {
        let (schema, usual) = (row.text(0).unwrap_or_default(), row.text(1));
        all.push(format!("{}.{table}", dialect.quote(&schema)));
        all.extend((Some(schema) == usual).then(|| table.clone()));
    }
    // SQLite does not tell upper and lower case apart.
    let column = if dialect == Dialect::Sqlite { "relation COLLATE NOCASE" } else { "relation" };
    Ok((Key::own(column), all))
}

/// The table as PostgreSQL knows it.
pub(super) fn regclass<'s>(sql: &'s mut Statement, mapping: &Mapping) -> &'s mut Statement {
    let schema = mapping.schema.as_ref().map(|schema| Dialect::Postgres.quote(schema) + ".");
    let name = schema.unwrap_or_default() + &Dialect::Postgres.quote(&mapping.table);
    sql.push("to_regclass(").text(name.as_str()).push(")")
}

pub(super) fn in_schema(sql: &mut Statement, mapping: &Mapping) {
    sql.push("table_schema = coalesce(").text(mapping.schema.as_deref());
    sql.push(", database()) AND table_name = ").text(mapping.table.as_str());
}

pub(super) fn pragma_arguments(sql: &mut Statement, mapping: &Mapping) {
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
