//! The log of changes, for changes that are made on the command line: who, from where, what.

use std::sync::Arc;

use semel_core::{Failure, Insight};

use crate::wiring::Database;

/// An entry in the log, while the change is made.
pub(super) struct Noted {
    insight: Arc<dyn Insight>,
    entry: u64,
}

impl Noted {
    /// Writes down what is going to be done. When that fails it must not be done.
    pub(super) async fn begin(
        database: &dyn Database,
        what: &str,
        owner: &str,
        filter: &str,
    ) -> Result<Self, Failure> {
        let insight = database.insight();
        let entry = insight.note(&operator(), what, owner, filter).await?;
        Ok(Self { insight, entry })
    }

    /// Writes down how many events it was. The change is made: nothing takes it back.
    pub(super) async fn end(self, events: usize) {
        // An entry without an end says that nobody knows; that is all there is to tell.
        self.insight.conclude(self.entry, events as u64).await.ok();
    }
}

/// Who runs this program, as the operating system has it; a variable could say anything.
pub(super) fn operator() -> String {
    let user = whoami::username().unwrap_or_else(|_| "somebody".into());
    let host = whoami::hostname().unwrap_or_else(|_| "somewhere".into());
    format!("{user}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_has_a_name_and_a_machine() {
        let operator = operator();
        let (user, host) = operator.split_once('@').unwrap();
        assert!(!user.is_empty() && !host.is_empty(), "{operator}");
    }
}
