//! The indexes of a table: what they make unique, and how rows that wait are found by them.

use semel_core::Failure;

use super::Mapping;
use super::catalog::{WHAT, in_schema, pragma_arguments, regclass};
use super::database::Database;
use super::dialect::Dialect;
use super::statement::Row;
use super::table::{Access, Table};
use super::unknown::Unknown;

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
                 i.indisunique::int::bigint, 0::bigint \
                 from pg_index i join pg_class c on c.oid = i.indexrelid \
                 cross join lateral unnest(i.indkey::int2[]) with ordinality k(attnum, place) \
                 left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum \
                 where i.indisvalid and k.place <= i.indnkeyatts and i.indrelid = ",
            );
            regclass(&mut sql, mapping);
            sql.push(" order by c.relname, k.place");
        }
        Dialect::Mysql => {
            sql.push(
                "SELECT index_name, 0, column_name, 1 - non_unique, sub_part IS NOT NULL \
                 FROM information_schema.statistics WHERE ",
            );
            in_schema(&mut sql, mapping);
            sql.push(" ORDER BY index_name, seq_in_index");
        }
        Dialect::Sqlite => {
            // A row number is its own index; a key of several columns is among the others.
            sql.push("SELECT 'rowid', 0, min(name), 1, 0 FROM pragma_table_info(");
            pragma_arguments(&mut sql, mapping);
            sql.push(") WHERE pk > 0 HAVING count(*) = 1 UNION ALL SELECT * FROM (");
            sql.push("SELECT l.name, l.partial, i.name, l.\"unique\", 0 FROM pragma_index_list(");
            pragma_arguments(&mut sql, mapping);
            sql.push(") l JOIN pragma_index_info(l.name) i ORDER BY l.name, i.seqno)");
        }
    }
    Ok(grouped(&database.read(WHAT, sql).await?))
}

/// The columns whose ranges a table is partitioned by: no unique index of it can be without them.
pub(super) async fn range_columns(
    database: &dyn Database,
    mapping: &Mapping,
) -> Result<Vec<String>, Failure> {
    let mut sql = database.statement();
    match database.dialect() {
        Dialect::Postgres => {
            sql.push(
                "select a.attname::text, null::text from pg_partitioned_table p \
                 join pg_attribute a on a.attrelid = p.partrelid \
                 and a.attnum = any(p.partattrs::int2[]) \
                 where p.partstrat = 'r' and p.partrelid = ",
            );
            regclass(&mut sql, mapping);
        }
        Dialect::Mysql => {
            sql.push(
                "SELECT column_name, (SELECT min(partition_expression) \
                 FROM information_schema.partitions WHERE partition_method LIKE 'RANGE%' AND ",
            );
            in_schema(&mut sql, mapping);
            sql.push(") FROM information_schema.columns WHERE ");
            in_schema(&mut sql, mapping);
        }
        Dialect::Sqlite => return Ok(Vec::new()),
    }
    let rows = database.read(WHAT, sql).await?;
    let is_used = |row: &&Row| match database.dialect() {
        Dialect::Mysql => {
            row.text(1).zip(row.text(0)).is_some_and(|(by, name)| mentions(&by, &name))
        }
        Dialect::Postgres | Dialect::Sqlite => true,
    };
    Ok(rows.iter().filter(is_used).filter_map(|row| row.text(0)).collect())
}

/// Whether an expression of MySQL has this column in it. Not every version quotes them.
fn mentions(expression: &str, column: &str) -> bool {
    let is_outside = |letter: char| !letter.is_alphanumeric() && !['_', '$'].contains(&letter);
    expression.contains(&Dialect::Mysql.quote(column))
        || expression.split(is_outside).any(|word| word.eq_ignore_ascii_case(column))
}

/// An index and its columns, in order.
#[derive(Debug)]
pub(super) struct Index {
    name: String,
    /// It has some of the rows only: those that wait, one hopes.
    partial: bool,
    pub(super) unique: bool,
    /// Of some column it has the beginning only.
    prefix: bool,
    pub(super) columns: Vec<String>,
}

impl Index {
    /// Whether it says that no two rows have the same `id`. It may have `tolerated` columns besides.
    pub(super) fn makes_unique(&self, id: &str, tolerated: &[String]) -> bool {
        let is_known = |column: &String| column == id || tolerated.contains(column);
        self.unique
            && !self.partial
            && !self.prefix
            && self.columns.iter().any(|column| column == id)
            && self.columns.iter().all(is_known)
    }

    /// Why it does not.
    pub(super) fn shortfall(&self) -> String {
        let (name, columns) = (&self.name, &self.columns);
        if self.partial {
            format!("{name:?} has some of the rows only")
        } else if columns.len() > 1 {
            let columns: Vec<_> = columns.iter().map(|column| format!("{column:?}")).collect();
            format!("{name:?} is on {} together", columns.join(", "))
        } else {
            format!("{name:?} is on the beginning of it only")
        }
    }
}

fn grouped(rows: &[Row]) -> Vec<Index> {
    let mut indexes: Vec<Index> = Vec::new();
    for row in rows {
        let (name, column) = (row.text(0).unwrap_or_default(), row.text(2).unwrap_or_default());
        match indexes.last_mut().filter(|last| last.name == name) {
            Some(last) => {
                last.prefix |= row.is_true(4);
                last.columns.push(column);
            }
            None => indexes.push(Index {
                name,
                partial: row.is_true(1),
                unique: row.is_true(3),
                prefix: row.is_true(4),
                columns: vec![column],
            }),
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

#[cfg(test)]
mod tests {
    use super::super::table::{Column, ColumnType};
    use super::*;

    fn index(name: &str, partial: bool, columns: &[&str]) -> Index {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Index { name: name.into(), partial, unique: false, prefix: false, columns }
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
    fn only_an_index_on_the_id_alone_makes_it_unique() {
        let unique = |columns: &[&str]| Index { unique: true, ..index("key", false, columns) };
        let ranges = ["created_at".to_owned()];
        assert!(unique(&["id"]).makes_unique("id", &[]));
        assert!(!index("key", false, &["id"]).makes_unique("id", &[]));
        assert!(!Index { partial: true, ..unique(&["id"]) }.makes_unique("id", &[]));
        assert!(!Index { prefix: true, ..unique(&["id"]) }.makes_unique("id", &[]));
        assert!(!unique(&["id", "created_at"]).makes_unique("id", &[]));
        assert!(unique(&["id", "created_at"]).makes_unique("id", &ranges));
        assert!(!unique(&["created_at"]).makes_unique("id", &ranges));
        assert!(!unique(&["id", "created_at", "tenant_id"]).makes_unique("id", &ranges));
    }

    #[test]
    fn the_columns_of_an_expression_are_found() {
        for expression in ["`at`", "to_days(`at`)", "TO_DAYS(AT)", "`other`,`at`", "at"] {
            assert!(mentions(expression, "at"), "{expression}");
        }
        assert!(mentions("`a ``b```", "a `b`"));
        assert!(!mentions("to_days(`created_at`)", "at") && !mentions("floor(atom / 2)", "at"));
    }
}
