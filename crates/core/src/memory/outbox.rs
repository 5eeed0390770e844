//! [`OutboxWriter`] in memory.

use std::collections::HashSet;

use super::{MemoryDatabase, MemoryTx};
use crate::event::{Event, EventLimits};
use crate::outbox::{AppendError, OutboxWriter};

impl OutboxWriter for MemoryDatabase {
    type Tx<'c> = MemoryTx;

    async fn append(&self, tx: &mut Self::Tx<'_>, events: &[Event]) -> Result<(), AppendError> {
        let limits = EventLimits::default();
        let mut keys = HashSet::with_capacity(events.len());
        {
            let committed = self.committed();
            for event in events {
                event.check(&limits).map_err(AppendError::Invalid)?;
                let key = event.idempotency_key().into_owned();
                if committed.idempotency_keys.contains(&key)
                    || tx.idempotency_keys.contains(&key)
                    || keys.contains(&key)
                {
                    return Err(AppendError::Duplicate {
                        key: Some(key),
                        transaction_usable: true,
                    });
                }
                keys.insert(key);
            }
        }
        tx.idempotency_keys.extend(keys);
        tx.events.extend_from_slice(events);
        Ok(())
    }
}
