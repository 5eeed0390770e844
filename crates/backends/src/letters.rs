//! What the stores of letters and marks have in common: all but their SQL.
//!
//! The statements of a database are constants of one name, whose parameters come in one order; which of
//! many events are concerned each finds out in its own way: `concerned`.

use std::error::Error;

use semel_core::inbox::unclassified;
use semel_core::letters::{Letter, Numbered};
use semel_core::{Event, Failure, Fault};

/// A row of a table of letters.
pub(crate) type Row = (i64, String, Option<i64>, i64, Option<String>, String);

/// The letter of a row.
pub(crate) fn letter(row: Row) -> Result<Numbered, Failure> {
    let (seq, state, until, attempts, error, message) = row;
    let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    let letter = Letter::from_row(&state, until, attempts, error, &message)?;
    Ok((seq.unsigned_abs(), letter))
}

/// The lane of an event, as it is stored.
pub(crate) fn lane(event: &Event) -> i64 {
    event.lane_key().0.cast_signed()
}

/// The place of an event in its lane.
pub(crate) fn place(event: &Event) -> i64 {
    stored(event.sequence().unwrap_or(0))
}

pub(crate) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What an error means that ends the transaction of an effect: what the server holds against the handler, such
/// as a pause before the commit, is tried again, as in [`of_effect`].
pub(crate) fn of_its_end(
    error: sqlx::Error,
    is_of_statement: impl FnOnce(&sqlx::Error) -> bool,
    classify: impl FnOnce(sqlx::Error) -> Failure,
) -> Failure {
    let may_be_outage = !is_of_statement(&error);
    let failure = classify(error);
    match failure.fault() {
        Fault::Unavailable if !may_be_outage => unclassified(&failure),
        _ => failure,
    }
}

/// There was nothing to commit any more: a statement of the handler ended the transaction, and the handler took no
/// notice of its error.
pub(crate) fn undone(error: &sqlx::Error) -> Failure {
    let what = format!("nothing of the effect is left to commit: {error}");
    Failure::transient("E-HANDLER-UNDONE", what).with_fix(
        "a statement of the handler failed and the handler went on: let it return the error, or run the \
         statement in a savepoint",
    )
}

/// What an error means that an effect had: an outage of the database is one, and whatever else the
/// database says is tried again, because it knows nothing of what the handler wanted. What only one
/// statement had, such as a limit of its time, is no outage: with this message it would never end.
pub(crate) fn of_effect(
    error: Box<dyn Error + Send + Sync>,
    is_of_statement: impl FnOnce(&sqlx::Error) -> bool,
    classify: impl FnOnce(sqlx::Error) -> Failure,
) -> Failure {
    let error = match error.downcast::<sqlx::Error>() {
        Ok(error) => *error,
        Err(error) => return unclassified(error.as_ref()),
    };
    let may_be_outage = !is_of_statement(&error);
    let failure = classify(error);
    match failure.fault() {
        Fault::Unavailable if may_be_outage => failure,
        _ => unclassified(&failure),
    }
}

/// Implements [`DeadLetters`](semel_core::DeadLetters) for a type with a `store`.
macro_rules! implement_letters {
    ($letters:ty, $database:ty, $stored_id:path) => {
        impl $letters {
            /// The first of a lane becomes due if it is only waiting.
            async fn promote(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                lane: i64,
            ) -> Result<(), Failure> {
                sqlx::query(PROMOTE)
                    .bind(consumer)
                    .bind(lane)
                    .execute(&mut **tx)
                    .await
                    .map_err(failure("let the next letter go"))
                    .map(drop)
            }

            /// The lane of a letter that is about to change.
            async fn lane_of(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                id: EventId,
            ) -> Result<Option<i64>, Failure> {
                sqlx::query_scalar(LANE_OF)
                    .bind(consumer)
                    .bind($stored_id(id))
                    .fetch_optional(&mut **tx)
                    .await
                    .map_err(failure("look for a letter"))
            }

            /// The first of a lane, which stays until the transaction ends: whoever is put behind it
            /// is seen when it leaves.
            async fn lock_head(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                lane: i64,
            ) -> Result<Option<i64>, Failure> {
                sqlx::query_scalar(HEAD)
                    .bind(consumer)
                    .bind(lane)
                    .fetch_optional(&mut **tx)
                    .await
                    .map_err(failure("look for letters of a lane"))
            }

            /// The same as `lane_of`, with the first of the lane locked before the letter, as by those
            /// who take letters up.
            async fn lock_lane_of(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                id: EventId,
            ) -> Result<Option<i64>, Failure> {
                let lane = sqlx::query_scalar(LANE).bind(consumer).bind($stored_id(id));
                let lane: Option<i64> =
                    lane.fetch_optional(&mut **tx).await.map_err(failure("look for a letter"))?;
                let Some(lane) = lane else { return Ok(None) };
                self.lock_head(tx, consumer, lane).await?;
                self.lane_of(tx, consumer, id).await
            }

            /// What was held back for too long in these lanes waits for its turn. A lane whose first
            /// letter is just being taken up has its turn later: nobody waits for a handler here.
            async fn give_up_holding(
                &self,
                consumer: &str,
                lanes: &[i64],
                now: i64,
            ) -> Result<(), Failure> {
                let failed = || failure("give up holding letters back");
                let mut tx = self.store.begin().await?;
                for lane in lanes {
                    let first = sqlx::query_scalar(FIRST).bind(consumer).bind(lane);
                    let first: Option<i64> =
                        first.fetch_optional(&mut *tx).await.map_err(failed())?;
                    if let Some(first) = first {
                        let free = sqlx::query_scalar(LOCK_IF_FREE).bind(first);
                        let free: Option<i64> =
                            free.fetch_optional(&mut *tx).await.map_err(failed())?;
                        if free.is_none() {
                            continue;
                        }
                    }
                    // Of this lane alone: what others commit meanwhile is released with its own.
                    let released = sqlx::query(RELEASE_OVERDUE).bind(consumer).bind(lane).bind(now);
                    released.execute(&mut *tx).await.map_err(failed())?;
                    self.promote(&mut tx, consumer, *lane).await?;
                }
                tx.commit().await.map_err(failed())
            }
        }

        #[async_trait]
        impl DeadLetters<Transaction<'static, $database>> for $letters {
            async fn any(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
            ) -> Result<bool, Failure> {
                let found: Option<i64> = sqlx::query_scalar(ANY)
                    .bind(consumer)
                    .fetch_optional(&mut **tx)
                    .await
                    .map_err(failure("look for letters"))?;
                Ok(found.is_some())
            }

            async fn standing(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                event: &Event,
            ) -> Result<Standing, Failure> {
                if self.lane_of(tx, consumer, event.id).await?.is_some() {
                    return Ok(Standing::Own);
                }
                let head = self.lock_head(tx, consumer, letters::lane(event)).await?;
                Ok(if head.is_some() { Standing::Behind } else { Standing::Free })
            }

            async fn concerned(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                events: &[&Event],
            ) -> Result<Vec<bool>, Failure> {
                concerned(tx, consumer, events).await
            }

            async fn put(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                letter: &Letter,
            ) -> Result<(), Failure> {
                let event = &letter.message.event;
                sqlx::query(PUT)
                    .bind(consumer)
                    .bind($stored_id(event.id))
                    .bind(letters::lane(event))
                    .bind(letters::place(event))
                    .bind(letter.state.as_str())
                    .bind(letter.state.until().map(semel_core::Timestamp::as_microsecond))
                    .bind(i64::from(letter.attempts))
                    .bind(letter.error.as_deref())
                    .bind(to_stored(&letter.message)?)
                    .execute(&mut **tx)
                    .await
                    .map_err(failure("put a letter"))
                    .map(drop)
            }

            async fn remove(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                event: &Event,
            ) -> Result<(), Failure> {
                let removed = sqlx::query(REMOVE).bind(consumer).bind($stored_id(event.id));
                removed.execute(&mut **tx).await.map_err(failure("remove a letter"))?;
                self.promote(tx, consumer, letters::lane(event)).await
            }

            async fn release(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                event: &Event,
            ) -> Result<(), Failure> {
                let released = sqlx::query(RELEASE)
                    .bind(consumer)
                    .bind(letters::lane(event))
                    .bind(letters::place(event).saturating_add(1))
                    .execute(&mut **tx)
                    .await
                    .map_err(failure("release a letter"))?;
                if released.rows_affected() > 0 {
                    self.promote(tx, consumer, letters::lane(event)).await?;
                }
                Ok(())
            }

            fn is_beside_inbox(&self) -> bool {
                true
            }
        }

        #[async_trait]
        impl LetterBook for $letters {
            async fn due(&self, consumer: &str, limit: usize) -> Result<Vec<Message>, Failure> {
                let now = self.store.clock.now().as_microsecond();
                let failed = || failure("look for letters that are due");
                let mut tx = self.store.begin().await?;
                let late: Vec<i64> = sqlx::query_scalar(OVERDUE)
                    .bind(consumer)
                    .bind(now)
                    .fetch_all(&mut *tx)
                    .await
                    .map_err(failed())?;
                if !late.is_empty() {
                    tx.rollback().await.map_err(failed())?;
                    self.give_up_holding(consumer, &late, now).await?;
                    tx = self.store.begin().await?;
                }
                let messages: Vec<String> = sqlx::query_scalar(DUE)
                    .bind(consumer)
                    .bind(letters::stored(limit as u64))
                    .fetch_all(&mut *tx)
                    .await
                    .map_err(failed())?;
                tx.rollback().await.map_err(failed())?;
                messages.iter().map(|message| from_stored(message)).collect()
            }

            async fn page(
                &self,
                consumer: &str,
                after: u64,
                limit: usize,
            ) -> Result<Vec<Numbered>, Failure> {
                let mut tx = self.store.begin().await?;
                let rows: Vec<letters::Row> = sqlx::query_as(PAGE)
                    .bind(consumer)
                    .bind(letters::stored(after))
                    .bind(letters::stored(limit as u64))
                    .fetch_all(&mut *tx)
                    .await
                    .map_err(failure("list letters"))?;
                rows.into_iter().map(letters::letter).collect()
            }

            async fn find(&self, consumer: &str, id: EventId) -> Result<Option<Letter>, Failure> {
                let mut tx = self.store.begin().await?;
                let row: Option<letters::Row> = sqlx::query_as(FIND)
                    .bind(consumer)
                    .bind($stored_id(id))
                    .fetch_optional(&mut *tx)
                    .await
                    .map_err(failure("look for a letter"))?;
                Ok(row.map(letters::letter).transpose()?.map(|(_, letter)| letter))
            }

            async fn retry(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
                let failed = || failure("retry letters");
                let (mut tx, mut retried) = (self.store.begin().await?, 0);
                let mut lanes = std::collections::BTreeSet::new();
                for id in ids {
                    let Some(lane) = self.lock_lane_of(&mut tx, consumer, *id).await? else {
                        continue;
                    };
                    let offered = sqlx::query(RETRY).bind(consumer).bind($stored_id(*id));
                    let offered = offered.execute(&mut *tx).await.map_err(failed())?;
                    if offered.rows_affected() > 0 {
                        retried += 1;
                        lanes.insert(lane);
                    }
                }
                for lane in lanes {
                    self.promote(&mut tx, consumer, lane).await?;
                }
                tx.commit().await.map_err(failed())?;
                Ok(retried)
            }

            async fn discard(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure> {
                let failed = || failure("discard letters");
                let (mut tx, mut discarded) = (self.store.begin().await?, 0);
                let inbox = self.store.inbox();
                for id in ids {
                    let Some(lane) = self.lock_lane_of(&mut tx, consumer, *id).await? else {
                        continue;
                    };
                    inbox.record(&mut tx, consumer, *id).await?;
                    let removed = sqlx::query(REMOVE).bind(consumer).bind($stored_id(*id));
                    removed.execute(&mut *tx).await.map_err(failed())?;
                    self.promote(&mut tx, consumer, lane).await?;
                    discarded += 1;
                }
                tx.commit().await.map_err(failed())?;
                Ok(discarded)
            }
        }
    };
}

pub(crate) use implement_letters;

/// Implements [`Marks`](semel_core::Marks) where one statement raises a mark or begins it. How
/// several of them step is a function beside it: `step_all`.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
macro_rules! implement_marks {
    ($marks:ty, $database:ty, beside_inbox: $beside_inbox:literal) => {
        #[async_trait]
        impl Marks<Transaction<'static, $database>> for $marks {
            async fn mark(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                scope: &str,
            ) -> Result<Option<u64>, Failure> {
                let mark: Option<i64> = sqlx::query_scalar(MARK)
                    .bind(consumer)
                    .bind(scope)
                    .fetch_optional(&mut **tx)
                    .await
                    .map_err(failure("read a mark"))?;
                Ok(mark.map(i64::unsigned_abs))
            }

            async fn advance(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                scope: &str,
                to: u64,
            ) -> Result<bool, Failure> {
                let raised = sqlx::query(ADVANCE).bind(consumer).bind(scope).bind(stored(to));
                let raised = raised.execute(&mut **tx).await.map_err(failure("raise a mark"))?;
                Ok(raised.rows_affected() > 0)
            }

            async fn step_all(
                &self,
                tx: &mut Transaction<'static, $database>,
                consumer: &str,
                steps: &[Step<'_>],
            ) -> Result<Vec<bool>, Failure> {
                step_all(tx, consumer, steps).await
            }

            fn is_beside_inbox(&self) -> bool {
                $beside_inbox
            }
        }
    };
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use implement_marks;
