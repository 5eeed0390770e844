//! Flags that are null: rows that were written without saying whether they are published, as some
//! libraries do where the column has a default. They wait like all others, and are found as fast.

use semel_core::{Failure, Timestamp};

use super::database::Database;
use super::dialect::Dialect;
use super::pipeline::{CHUNK, Pipeline};
use super::source::MappedSource;
use super::statement::{Kind, Statement};
use super::table::Table;

/// How rows whose flag is null are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// There can be none.
    #[default]
    None,
    /// By an index that has them as it has all others.
    Indexed,
    /// There is no index, so that it makes no difference to look for them, too.
    Scanned,
    /// The index has only rows whose flag is false. The others are looked for now and then, and get one.
    Hidden,
}

impl Table {
    /// That the flag of a row is null, if it can be; `prefix` is what the table is called.
    pub(super) fn unknown_mark(&self, prefix: &str) -> Option<String> {
        let flag = self.mapping.flag_mark.as_ref().filter(|flag| self.is_nullable(flag))?;
        Some(format!("{prefix}{} IS NULL", self.dialect.quote(flag)))
    }

    /// Whether there is a row whose flag is null, as a number. On PostgreSQL in the order of the index: a
    /// planner that believes in many such rows would rather look for the first one everywhere.
    pub(super) fn count_unknown(&self) -> Option<String> {
        let flag = self.mapping.flag_mark.as_ref()?;
        let (name, flag) = (&self.name, self.dialect.quote(flag));
        let order = match self.dialect {
            Dialect::Postgres => format!(" ORDER BY n.{flag}"),
            Dialect::Mysql | Dialect::Sqlite => String::new(),
        };
        let any = format!("SELECT 1 FROM {name} n WHERE n.{flag} IS NULL{order} LIMIT 1");
        (self.access.unknown == Unknown::Indexed)
            .then(|| format!("(SELECT count(*) FROM ({any}) u)"))
    }

    /// That a row of `t` waits, in a look that must not miss an earlier one of its lane: where there are
    /// rows with another kind of mark, it finds none.
    pub(super) fn waits(&self) -> String {
        match self.count_unknown() {
            Some(unknown) => format!("{} AND {unknown} = 0", self.surely_unmarked("t.")),
            None => self.unmarked("t."),
        }
    }
}

impl Pipeline {
    /// Rows that wait, those with a flag and those without, in one order.
    pub(super) fn waiting_of_both_kinds(
        &self,
        database: &dyn Database,
        parked: bool,
        out: &[String],
        limit: usize,
    ) -> Statement {
        let table = &self.table;
        let (columns, keys) = (table.named_columns(), table.named_order());
        let names = |begin: &str, all: &[String]| {
            (0..all.len()).map(|place| format!("{begin}{place}")).collect::<Vec<_>>().join(", ")
        };
        let mut sql = database.statement();
        sql.begin = table.access.begin;
        sql.push(&format!("SELECT {} FROM (", names("c", &columns)));
        let selected = format!("{}, {}", columns.join(", "), keys.join(", "));
        let kinds = [Some(table.surely_unmarked("t.")), table.unknown_mark("t.")];
        for (place, kind) in kinds.iter().flatten().enumerate() {
            sql.push(if place == 0 { "SELECT * FROM (" } else { " UNION ALL SELECT * FROM (" });
            self.push_waiting(&mut sql, &selected, kind, parked, out, limit);
            sql.push(&format!(") k{place}"));
        }
        sql.push(&format!(") w ORDER BY {} LIMIT ", names("o", &keys))).count(limit);
        sql
    }

    /// Lets rows without a flag wait; says how many there were.
    async fn set_unknown(&self, database: &dyn Database, epoch: i64) -> Result<u64, Failure> {
        let (table, mut found) = (&self.table, 0);
        let (Some(unknown), Some(flag)) = (table.unknown_mark("t."), &table.mapping.flag_mark)
        else {
            return Ok(0);
        };
        loop {
            let mut sql = database.statement();
            sql.push(&format!("SELECT {} FROM {} t WHERE {unknown}", table.key().text, table.name));
            sql.push(" LIMIT ").count(CHUNK);
            let rows = database.read("look for rows without a mark", sql).await?;
            let ids: Vec<String> = rows.iter().filter_map(|row| row.text(0)).collect();
            if ids.is_empty() {
                return Ok(found);
            }
            let mut set = database.statement().of_kind(Kind::Change);
            let (column, value) = (table.dialect.quote(flag), table.flag(flag, false));
            set.push(&format!(
                "UPDATE {} SET {column} = {value} WHERE {column} IS NULL AND ",
                table.name
            ));
            set.among(&table.bare_key(), &ids);
            let statements = vec![self.guard(database, Some(epoch)), set];
            let answers = database.write("mark rows without a mark", statements).await?;
            let set = answers.iter().flatten().map(|answer| answer.changed).sum::<u64>();
            found += set;
            // Somebody else is the owner, or has set them.
            if set == 0 {
                return Ok(found);
            }
        }
    }
}

/// When rows that no index has are looked for, and whether somebody was told of them.
#[derive(Debug)]
pub(super) struct Search {
    next: Timestamp,
    told: bool,
}

impl Search {
    /// How many seconds apart they are looked for, at least; and that this takes one part in so many of
    /// the time, at most.
    const EVERY_SECONDS: i64 = 60;
    const LEISURE: i64 = 100;

    pub(super) fn now() -> Self {
        Self { next: Timestamp::MIN, told: false }
    }
}

impl MappedSource {
    /// Finds rows without a flag that no index has, now and then.
    pub(super) async fn look_for_unknown(&mut self) -> Result<(), Failure> {
        let began = self.database.clock().now();
        if self.pipeline.table.access.unknown != Unknown::Hidden || began < self.search.next {
            return Ok(());
        }
        let rows = self.pipeline.set_unknown(&*self.database, self.epoch).await?;
        let ended = self.database.clock().now();
        let took = ended.as_second().saturating_sub(began.as_second()).max(0);
        let pause = took.saturating_mul(Search::LEISURE).max(Search::EVERY_SECONDS);
        let next = ended.as_second().saturating_add(pause);
        self.search.next = Timestamp::from_second(next).unwrap_or(Timestamp::MAX);
        if rows > 0 && !self.search.told {
            self.search.told = true;
            let (pipeline, table) = (&self.pipeline.name, self.pipeline.table.mapping.shown());
            tracing::warn!(
                pipeline,
                table,
                rows,
                fix = "make the column NOT NULL, or index it as a whole instead of only where it is false",
                "rows were written with null in the column of the flag, where the index does not have \
                 them: they are published, but later than others and out of order with them"
            );
        }
        Ok(())
    }
}
