//! Effects that are idempotent by themselves: what the database refuses a second time was there.

use semel_core::HandlerError;

/// Tells a handler that its effect was there already, by a unique constraint.
pub trait OrAlreadyApplied<T> {
    /// A violation of this unique constraint becomes
    /// [`AlreadyApplied`](HandlerError::AlreadyApplied); that of another one stays an error.
    ///
    /// The name is the one that the database says: that of the constraint on PostgreSQL, of the key
    /// on MySQL and MariaDB, of table and columns (`payments.order_id`) on SQLite.
    ///
    /// # Errors
    /// Whatever the statement returned.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # mod example {
    /// use semel_backends::once::OrAlreadyApplied;
    /// use semel_backends::sqlite::{Sqlite, Transaction};
    /// use semel_core::{HandlerError, Message};
    ///
    /// async fn charge(
    ///     tx: &mut Transaction<'_, Sqlite>,
    ///     order: i64,
    ///     _: &Message,
    /// ) -> Result<(), HandlerError> {
    ///     let insert = sqlx::query("INSERT INTO payments (order_id) VALUES (?)").bind(order);
    ///     insert.execute(&mut **tx).await.or_already_applied("payments.order_id")?;
    ///     Ok(())
    /// }
    /// # }
    /// ```
    fn or_already_applied(self, unique: &str) -> Result<T, HandlerError>;
}

impl<T> OrAlreadyApplied<T> for Result<T, sqlx::Error> {
    fn or_already_applied(self, unique: &str) -> Result<T, HandlerError> {
        match self {
            Err(sqlx::Error::Database(error))
                if error.is_unique_violation() && names(error.message(), unique) =>
            {
                Err(HandlerError::AlreadyApplied)
            }
            other => Ok(other?),
        }
    }
}

/// Whether a message has this name in it, and not as a part of another.
fn names(message: &str, name: &str) -> bool {
    let is_part = |c: char| c == '_' || c.is_alphanumeric();
    message.match_indices(name).any(|(at, _)| {
        let before = message[..at].chars().next_back();
        let after = message[at + name.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_database_says_it_in_its_own_words() {
        let postgres = "duplicate key value violates unique constraint \"payments_order\"";
        let mysql = "Duplicate entry '7' for key 'payments_order'";
        let mysql_8 = "Duplicate entry '7' for key 'payments.payments_order'";
        for message in [postgres, mysql, mysql_8] {
            assert!(names(message, "payments_order"), "{message}");
            assert!(!names(message, "payments_ord") && !names(message, "order"), "{message}");
        }
        assert!(names("UNIQUE constraint failed: payments.order_id", "payments.order_id"));
    }
}
