//! [`Insight`] in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::MemoryDatabase;
use crate::failure::Failure;
use crate::insight::{AuditEntry, ConsumerView, Insight, Workings};

#[async_trait]
impl Insight for MemoryDatabase {
    async fn workings(&self, _pipeline: &str) -> Result<Workings, Failure> {
        let committed = self.committed();
        let (written, settled) = committed.log.progress();
        Ok(Workings { written: Some(written), settled: Some(settled), ..Workings::default() })
    }

    async fn consumers(&self) -> Result<Vec<ConsumerView>, Failure> {
        let committed = self.committed();
        let mut consumers = BTreeMap::new();
        for ((name, _), seen) in &committed.inbox {
            let new = || ConsumerView { name: name.clone(), applied: 0, last: seen.at };
            let view = consumers.entry(name).or_insert_with(new);
            view.applied += 1;
            view.last = view.last.max(seen.at);
        }
        Ok(consumers.into_values().collect())
    }

    async fn note(
        &self,
        who: &str,
        what: &str,
        pipeline: &str,
        filter: &str,
    ) -> Result<u64, Failure> {
        let at = self.now();
        let mut committed = self.committed();
        let id = committed.audit.len() as u64 + 1;
        let [who, what, pipeline, filter] = [who, what, pipeline, filter].map(str::to_owned);
        committed.audit.push(AuditEntry { id, at, who, what, pipeline, filter, events: None });
        Ok(id)
    }

    async fn conclude(&self, entry: u64, events: u64) -> Result<(), Failure> {
        let mut committed = self.committed();
        if let Some(found) = committed.audit.iter_mut().find(|one| one.id == entry) {
            found.events = Some(events);
        }
        Ok(())
    }

    async fn activity(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, Failure> {
        let committed = self.committed();
        let earlier = |entry: &&AuditEntry| before.is_none_or(|before| entry.id < before);
        Ok(committed.audit.iter().rev().filter(earlier).take(limit).cloned().collect())
    }
}
