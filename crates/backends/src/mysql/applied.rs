//! Looking into the inbox: who has applied what, and when.

use semel_core::inbox::Applied;
use semel_core::{EventId, Failure};
use uuid::Uuid;

use super::error::failure;
use super::store::{MysqlStore, count, timestamp};

const NEXT: &str = "SELECT consumer FROM semel_inbox WHERE consumer > ? ORDER BY consumer LIMIT 1";

const APPLIED: &str = "SELECT message_id, timestampdiff(MICROSECOND, '1970-01-01', processed_at) \
    FROM semel_inbox WHERE consumer = ? AND message_id >= ? ORDER BY message_id LIMIT ?";

impl MysqlStore {
    /// The consumers that have applied anything, in the order of their names.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    pub async fn consumers(&self) -> Result<Vec<String>, Failure> {
        let failed = || failure("look into the inbox");
        let mut tx = self.begin().await?;
        let mut names: Vec<String> = Vec::new();
        // From one to the next: an inbox has many messages of few consumers.
        loop {
            let last = names.last().map_or("", String::as_str);
            let next: Option<String> = sqlx::query_scalar(NEXT)
                .bind(last)
                .fetch_optional(&mut *tx)
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
        let mut tx = self.begin().await?;
        let rows: Vec<(Vec<u8>, i64)> = sqlx::query_as(APPLIED)
            .bind(consumer)
            .bind(from.as_uuid().as_bytes().as_slice())
            .bind(count(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(failure("look into the inbox"))?;
        let ours = rows.into_iter().filter_map(|(id, at)| Some((Uuid::from_slice(&id).ok()?, at)));
        Ok(ours.map(|(id, at)| Applied { id: EventId::from_uuid(id), at: timestamp(at) }).collect())
    }
}
