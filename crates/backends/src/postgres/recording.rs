//! What a consumer does first, in the message to the server that opens its transaction.
//!
//! What a transaction begins with says nothing but whether it failed. So ids are taken for new, marks
//! for being where they were left, and letters for absent, and whatever is not so is an error. A
//! statement that comes before `begin` belongs to the transaction, and one that fails leaves none.

use std::fmt::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_core::inbox::Opening;

use crate::letters::stored;

/// A statement that connections of semel's own have prepared: to plan it anew with every transaction
/// would cost more than to execute it.
struct Statement {
    name: &'static str,
    types: &'static str,
    sql: &'static str,
}

const RECORD: Statement = Statement {
    name: "semel_record",
    types: "text, uuid",
    sql: "insert into semel.inbox (consumer, message_id) values ($1, $2)",
};

const RECORD_ALL: Statement = Statement {
    name: "semel_record_all",
    types: "text, uuid[]",
    sql: "insert into semel.inbox (consumer, message_id) select $1, unnest($2::uuid[])",
};

/// A text that is no number is what the log of the server shows. It depends on a row, or it would be
/// taken for a number when the statement is planned.
const STEP: Statement = Statement {
    name: "semel_step",
    types: "text, text, bigint, bigint",
    sql: "insert into semel.marks as m (consumer, scope, position) values ($1, $2, \
            coalesce((select 'there are letters' from semel.letters \
                where consumer = $1 limit 1)::bigint, $4)) \
        on conflict (consumer, scope) do update set position = case m.position \
            when $3 then excluded.position \
            else ('the mark is elsewhere' || left(m.scope, 0))::bigint end",
};

const NO_LETTERS: Statement = Statement {
    name: "semel_no_letters",
    types: "text",
    sql: "select ('there are letters' || left(consumer, 0))::bigint from semel.letters \
        where consumer = $1 limit 1",
};

/// Prepares those statements that are not, on a connection that leads to the server itself and where
/// there are tables.
pub(super) static PREPARE: LazyLock<String> = LazyLock::new(|| {
    let mut missing = String::new();
    for Statement { name, types, sql } in [RECORD, RECORD_ALL, STEP, NO_LETTERS] {
        let sql = sql.replace('\'', "''");
        missing += &format!(
            "if not exists (select from pg_prepared_statements where name = '{name}') then
                execute 'prepare {name} ({types}) as {sql}';
            end if;\n"
        );
    }
    format!(
        "do $$ begin
            if current_setting('semel.connection', true) <> '' and to_regclass('semel.letters') is not null then
                {missing}
            end if;
        exception when others then null;
        end $$"
    )
});

/// What the server says when a connection was opened before there were tables: it is prepared then.
pub(super) const NOT_PREPARED: &str = "26000";

/// What opens a transaction that begins like this. None when there is nothing to begin with, or no way
/// to say it.
pub(super) fn opening(consumer: &str, opening: Opening<'_>, is_prepared: bool) -> Option<String> {
    if opening.is_empty() {
        return None;
    }
    let consumer = literal(consumer)?;
    let mut sql = String::new();
    for step in opening.steps {
        let (from, to) = (stored(step.from).to_string(), stored(step.to).to_string());
        STEP.call(&mut sql, &[&consumer, &literal(step.scope)?, &from, &to], is_prepared);
    }
    // A step looks for letters too: one statement costs less than two.
    if opening.no_letters && opening.steps.is_empty() {
        NO_LETTERS.call(&mut sql, &[&consumer], is_prepared);
    }
    match opening.ids {
        [] => {}
        [id] => RECORD.call(&mut sql, &[&consumer, &format!("'{id}'")], is_prepared),
        [first, rest @ ..] => {
            let mut ids = format!("'{{{first}");
            for id in rest {
                write!(ids, ",{id}").ok()?;
            }
            ids.push_str("}'");
            RECORD_ALL.call(&mut sql, &[&consumer, &ids], is_prepared);
        }
    }
    sql.push_str("begin");
    Some(sql)
}

impl Statement {
    /// Adds its call with these arguments, in full where it is not prepared.
    fn call(&self, text: &mut String, arguments: &[&str], is_prepared: bool) {
        if is_prepared {
            text.push_str("execute ");
            text.push_str(self.name);
            text.push_str(" (");
            text.push_str(&arguments.join(", "));
            text.push(')');
        } else {
            let mut pieces = self.sql.split('$');
            text.push_str(pieces.next().unwrap_or_default());
            for piece in pieces {
                let (number, rest) = piece.split_at(1);
                let place = number.parse::<usize>().unwrap_or_default();
                text.push_str(
                    place.checked_sub(1).and_then(|p| arguments.get(p)).unwrap_or(&"null"),
                );
                text.push_str(rest);
            }
        }
        text.push_str("; ");
    }
}

/// A text as part of a statement, however the server reads backslashes; none if it cannot be one.
fn literal(text: &str) -> Option<String> {
    let escaped = || format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    (!text.contains('\0')).then(escaped)
}

/// What was not as expected is so for a while: duplicates are rare and come together.
#[derive(Debug, Default)]
pub(super) struct Doubt(AtomicUsize);

impl Doubt {
    /// How long a doubt lasts whether all is as expected: so many questions.
    pub(super) const LONG: usize = 1000;

    /// How long a doubt lasts whether connections are prepared: each of a pool has its turn.
    pub(super) const BRIEF: usize = 100;

    /// Whether to doubt this time.
    pub(super) fn is_left(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// There was reason to.
    pub(super) fn raise(&self, lasts: usize) {
        self.0.store(lasts, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::EventId;
    use semel_core::marks::Step;

    use super::*;

    #[test]
    fn a_doubt_lasts_for_a_while() {
        let doubt = Doubt::default();
        assert!(!doubt.is_left());
        doubt.raise(Doubt::LONG);
        assert_eq!((0..2 * Doubt::LONG).filter(|_| doubt.is_left()).count(), Doubt::LONG);
    }

    #[test]
    fn names_stay_inside_their_quotes() {
        let id = EventId::now();
        fn of_ids(consumer: &str, ids: &[EventId]) -> Option<String> {
            opening(consumer, Opening { ids, ..Opening::default() }, false)
        }
        let sql = of_ids("it's \\ '; drop $2", &[id]).unwrap();
        assert!(sql.contains(r"values (E'it''s \\ ''; drop $2', '"), "{sql}");
        assert_eq!(of_ids("nul \0", &[id]), None);
        assert_eq!(of_ids("payments", &[]), None);
    }

    #[test]
    fn what_is_prepared_is_called_by_its_name() {
        let step = Step { scope: "log:a/0", from: 7, to: 9 };
        let begins = Opening { steps: &[step], ids: &[], no_letters: true };
        let expected = "execute semel_step (E'payments', E'log:a/0', 7, 9); begin";
        assert_eq!(opening("payments", begins, true).unwrap(), expected);
        let in_full = opening("payments", begins, false).unwrap();
        assert!(in_full.contains("when 7 then excluded.position"), "{in_full}");
        assert!(!in_full.contains('$'), "{in_full}");
        let by_id = Opening { steps: &[], ids: &[EventId::now()], ..begins };
        let opened = opening("payments", by_id, true).unwrap();
        let expected =
            "execute semel_no_letters (E'payments'); execute semel_record (E'payments', ";
        assert!(opened.starts_with(expected), "{opened}");
    }
}
