//! Looking into the inbox: who has applied what, and when.

use semel_core::inbox::Applied;
use semel_core::{EventId, Failure};

use super::error::failure;
use super::store::{SqliteStore, timestamp};

const NEXT: &str = "SELECT consumer FROM semel_inbox WHERE consumer > ?1 ORDER BY consumer LIMIT 1";

const APPLIED: &str = "SELECT message_id, processed_at FROM semel_inbox \
    WHERE consumer = ?1 AND message_id >= ?2 ORDER BY message_id LIMIT ?3";

impl SqliteStore {
    /// The consumers that have applied anything, in the order of their names.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    pub async fn consumers(&self) -> Result<Vec<String>, Failure> {
        let failed = || failure("look into the inbox");
        let mut names: Vec<String> = Vec::new();
        // From one to the next: an inbox has many messages of few consumers.
        loop {
            let last = names.last().map_or("", String::as_str);
            let next: Option<String> = sqlx::query_scalar(NEXT)
                .bind(last)
                .fetch_optional(&self.readers)
                .await
                .map_err(failed())?;
            match next {
                Some(name) => names.push(name),
                None => return Ok(names),
            }
        }
    }

    /// At most `limit` messages that a consumer has applied, by their ids, from one of them on.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    pub async fn applied(
        &self,
        consumer: &str,
        from: EventId,
        limit: usize,
    ) -> Result<Vec<Applied>, Failure> {
        let rows: Vec<(String, i64)> = sqlx::query_as(APPLIED)
            .bind(consumer)
            .bind(from.to_string())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&self.readers)
            .await
            .map_err(failure("look into the inbox"))?;
        // Ids that are none were not written by us, and belong to no event of ours.
        let ours = rows.into_iter().filter_map(|(id, at)| Some((id.parse().ok()?, at)));
        Ok(ours.map(|(id, at)| Applied { id, at: timestamp(at) }).collect())
    }
}
