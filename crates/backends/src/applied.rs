//! What an inbox says of its consumers, and what may be left out of it.

use semel_core::EventId;
use semel_core::inbox::Applied;
use semel_core::insight::EffectView;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use semel_core::{Failure, Fault};

/// That a consumer took effect for an event, if it is among what was found.
pub(crate) fn effect(consumer: String, found: &[Applied], id: EventId) -> Option<EffectView> {
    let ours = found.iter().find(|one| one.id == id)?;
    Some(EffectView { consumer, at: ours.at })
}

/// Nothing, where this user may not look: the tables of consumers are not the relay's.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn if_allowed<T: Default>(found: Result<T, Failure>) -> Result<T, Failure> {
    match found {
        Err(failure) if failure.fault() == Fault::Misconfigured => Ok(T::default()),
        found => found,
    }
}

/// Implements looking into the inbox of a store.
///
/// What each database does in its own way stands beside it: the statement `NEXT`, and the functions
/// `look`, which takes a connection, `applied`, which reads rows, and `failure`.
macro_rules! implement_applied {
    ($store:ty) => {
        impl $store {
            /// The consumers that have applied anything, in the order of their names.
            ///
            /// # Errors
            /// `Unavailable` when the store cannot be reached.
            pub async fn consumers(&self) -> Result<Vec<String>, Failure> {
                let mut looking = look(self).await?;
                let mut names: Vec<String> = Vec::new();
                // From one to the next: an inbox has many messages of few consumers.
                loop {
                    let last = names.last().map_or("", String::as_str);
                    let next: Option<String> = sqlx::query_scalar(NEXT)
                        .bind(last)
                        .fetch_optional(&mut *looking)
                        .await
                        .map_err(failure("look into the inbox"))?;
                    match next {
                        Some(name) => names.push(name),
                        None => return Ok(names),
                    }
                }
            }

            /// At most `limit` messages that a consumer has applied, by their ids, from one of them
            /// on.
            ///
            /// # Errors
            /// `Unavailable` when the store cannot be reached.
            pub async fn applied(
                &self,
                consumer: &str,
                from: EventId,
                limit: usize,
            ) -> Result<Vec<Applied>, Failure> {
                let mut looking = look(self).await?;
                applied(&mut looking, consumer, from, limit).await
            }

            /// Which consumers took effect for an event, and when.
            pub(super) async fn effects_of(&self, id: EventId) -> Result<Vec<EffectView>, Failure> {
                let mut effects = Vec::new();
                for consumer in self.consumers().await? {
                    let found = self.applied(&consumer, id, 1).await?;
                    effects.extend(effect(consumer, &found, id));
                }
                effects.sort_by_key(|effect| effect.at);
                Ok(effects)
            }
        }
    };
}

pub(crate) use implement_applied;
