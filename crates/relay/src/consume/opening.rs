//! How a transaction of a consumer begins.
//!
//! Nearly always messages are new, the marks are where this process left them, and there are no
//! letters. So that is taken for granted in the round trip that opens the transaction; if it is not
//! so, the transaction is empty and each is looked at.

use semel_core::inbox::Opening;
use semel_core::{Failure, InboxStore, Message};

use super::positions::Claims;
use super::{Handler, Origin, Parts};

/// A transaction, and what is known and done in it.
pub(super) struct Begun<'m, Tx> {
    pub(super) tx: Tx,
    /// What goes by its position, once it is claimed.
    pub(super) claims: Option<Claims>,
    /// The first messages, if their ids are recorded.
    pub(super) first: Option<Recorded<'m>>,
    /// Whether there are letters at all, once that is known.
    pub(super) with_letters: Option<bool>,
}

/// Messages whose ids are recorded.
pub(super) struct Recorded<'m> {
    /// Where what comes after them in the batch begins.
    pub(super) end: usize,
    pub(super) taken: Vec<&'m Message>,
    /// Of each of these, whether its id was new.
    pub(super) new: Vec<bool>,
}

impl<S, H> Parts<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// Opens a transaction for messages of a batch.
    pub(super) async fn begin<'m>(
        &self,
        batch: &[&'m Message],
        origin: Origin,
    ) -> Result<Begun<'m, S::Tx<'static>>, Failure> {
        let options = &self.options;
        let letters = options.letters.as_ref();
        let looks_first = options.sequences.is_some()
            || letters.is_some_and(|l| origin == Origin::Letters || !l.is_beside_inbox());
        if looks_first {
            return Ok(Begun::empty(self.store.begin().await?));
        }
        let no_letters = letters.is_some();
        match &options.positions {
            Some(positions) if batch.iter().copied().any(Claims::concern) => {
                let wanted = batch.iter().copied().filter(|message| self.handler.wants(message));
                let Some(claims) = positions.expected(wanted) else {
                    return Ok(Begun::empty(self.store.begin().await?));
                };
                let opening = Opening { steps: &claims.steps(), ids: &[], no_letters };
                let (tx, is_so) = self.store.begin_with(&self.name, opening).await?;
                if !is_so {
                    return Ok(Begun::empty(tx));
                }
                positions.forget(&claims);
                let with_letters = Some(false);
                Ok(Begun { tx, claims: Some(claims), first: None, with_letters })
            }
            _ => self.begin_with_ids(batch, no_letters).await,
        }
    }

    async fn begin_with_ids<'m>(
        &self,
        batch: &[&'m Message],
        no_letters: bool,
    ) -> Result<Begun<'m, S::Tx<'static>>, Failure> {
        let end = batch.len().min(self.pace.chunk());
        let taken: Vec<_> =
            batch[..end].iter().copied().filter(|m| self.handler.wants(m)).collect();
        let ids: Vec<_> = taken.iter().map(|message| message.event.id).collect();
        let opening = Opening { steps: &[], ids: &ids, no_letters };
        let (tx, is_so) = self.store.begin_with(&self.name, opening).await?;
        if !is_so {
            return Ok(Begun::empty(tx));
        }
        let new = vec![true; taken.len()];
        let first = Some(Recorded { end, taken, new });
        Ok(Begun { tx, claims: Some(Claims::default()), first, with_letters: Some(false) })
    }
}

impl<Tx> Begun<'_, Tx> {
    /// Nothing is known of it.
    fn empty(tx: Tx) -> Self {
        Self { tx, claims: None, first: None, with_letters: None }
    }
}
