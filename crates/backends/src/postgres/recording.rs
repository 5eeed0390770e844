//! Recording ids in the message to the server that opens a transaction.
//!
//! What a transaction begins with says nothing but whether it failed. So ids are taken for new, and
//! a duplicate is an error. An INSERT that comes before `begin` belongs to the transaction, and one
//! that fails leaves none.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_core::EventId;

/// Prepares the INSERT of one id, on a connection that leads to the server itself and where there is
/// an inbox. To plan it anew with every message would cost more than to execute it.
pub(super) const PREPARE: &str = "\
do $$ begin
    if current_setting('semel.connection', true) <> '' and to_regclass('semel.inbox') is not null then
        execute 'prepare semel_record (text, uuid) as
            insert into semel.inbox (consumer, message_id) values ($1, $2)';
    end if;
exception when others then null;
end $$";

/// What the server says when it was opened before there was an inbox: it is prepared then.
pub(super) const NOT_PREPARED: &str = "26000";

/// What records these ids and opens a transaction. None when there is nothing to record, or no way to
/// say it.
pub(super) fn recording(consumer: &str, ids: &[EventId], is_prepared: bool) -> Option<String> {
    const INTO: &str = "insert into semel.inbox (consumer, message_id)";
    let consumer = literal(consumer)?;
    match ids {
        [] => None,
        [id] if is_prepared => Some(format!("execute semel_record ({consumer}, '{id}'); begin")),
        [id] => Some(format!("{INTO} values ({consumer}, '{id}'); begin")),
        [first, rest @ ..] => {
            let mut sql = format!("{INTO} select {consumer}, unnest('{{{first}");
            for id in rest {
                write!(sql, ",{id}").ok()?;
            }
            sql.push_str("}'::uuid[]); begin");
            Some(sql)
        }
    }
}

/// A text as part of a statement, however the server reads backslashes; none if it cannot be one.
fn literal(text: &str) -> Option<String> {
    let escaped = || format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    (!text.contains('\0')).then(escaped)
}

/// Duplicates are rare and come together: after one, more are expected for a while.
#[derive(Debug, Default)]
pub(super) struct Doubt(AtomicUsize);

/// How long a doubt lasts: so many questions.
const LASTS: usize = 1000;

impl Doubt {
    /// Whether to doubt this time.
    pub(super) fn is_left(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// There was a duplicate.
    pub(super) fn raise(&self) {
        self.0.store(LASTS, Ordering::Relaxed);
    }

    /// There was a connection without the statement; there may be more, and they are prepared one by
    /// one.
    pub(super) fn raise_briefly(&self) {
        self.0.fetch_max(LASTS / 100, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_lasts_for_a_while() {
        let doubt = Doubt::default();
        assert!(!doubt.is_left());
        doubt.raise();
        assert_eq!((0..2 * LASTS).filter(|_| doubt.is_left()).count(), LASTS);
    }

    #[test]
    fn a_name_stays_inside_its_quotes() {
        let id = EventId::now();
        let sql = recording("it's \\ '; drop", &[id], false).unwrap();
        assert!(sql.contains(r"values (E'it''s \\ ''; drop', '"), "{sql}");
        assert_eq!(recording("nul \0", &[id], false), None);
        assert_eq!(recording("payments", &[], true), None);
    }
}
