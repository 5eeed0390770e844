//! Looking into the inbox: who has applied what, and when.

use semel_core::inbox::Applied;
use semel_core::{EventId, Failure, Timestamp};
use uuid::Uuid;

use super::error::failure;
use super::store::{PostgresStore, count};

const NEXT: &str = "select consumer from semel.inbox where consumer > $1 order by consumer limit 1";

const APPLIED: &str = "\
select message_id, (extract(epoch from processed_at) * 1000000)::bigint
from semel.inbox where consumer = $1 and message_id >= $2 order by message_id limit $3";

impl PostgresStore {
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
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(APPLIED)
            .bind(consumer)
            .bind(*from.as_uuid())
            .bind(count(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(failure("look into the inbox"))?;
        Ok(rows
            .into_iter()
            .map(|(id, at)| Applied { id: EventId::from_uuid(id), at: time(at) })
            .collect())
    }
}

fn time(micros: i64) -> Timestamp {
    let nearest = if micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(micros).unwrap_or(nearest)
}
