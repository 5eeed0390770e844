//! [`Insight`] in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;

use super::MemoryDatabase;
use crate::event::EventId;
use crate::failure::Failure;
use crate::inbox::Tally;
use crate::insight::{AuditEntry, ConsumerView, EffectView, Insight, Outage, OutageView, Workings};

#[async_trait]
impl Insight for MemoryDatabase {
    async fn workings(&self, pipeline: &str) -> Result<Workings, Failure> {
        let outages = self.outages(pipeline).await?;
        let committed = self.committed();
        let (written, settled) = committed.log.progress();
        let (written, settled) = (Some(written), Some(settled));
        Ok(Workings { written, settled, outages, ..Workings::default() })
    }

    async fn outages(&self, pipeline: &str) -> Result<Vec<OutageView>, Failure> {
        let now = self.now();
        let committed = self.committed();
        let all = committed.outages.iter().filter(|((of, _), _)| of == pipeline);
        let mut all: Vec<_> = all
            .filter(|(_, (_, told))| holds(*told, now))
            .map(|(_, (outage, _))| outage.clone())
            .collect();
        all.sort_by_key(|outage| outage.since);
        Ok(all)
    }

    async fn tell_outage(
        &self,
        pipeline: &str,
        relay: &str,
        outage: Option<&Outage>,
    ) -> Result<(), Failure> {
        let now = self.now();
        let outages = &mut self.committed().outages;
        outages.retain(|_, (_, told)| holds(*told, now));
        let place = (pipeline.to_owned(), relay.to_owned());
        let Some(outage) = outage.cloned() else {
            outages.remove(&place);
            return Ok(());
        };
        let since = outages.get(&place).map_or(now, |(known, _)| known.since);
        outages.insert(place, (OutageView { relay: relay.to_owned(), outage, since }, now));
        Ok(())
    }

    async fn consumers(&self) -> Result<Vec<ConsumerView>, Failure> {
        let committed = self.committed();
        let mut seen = BTreeMap::new();
        for ((name, _), entry) in &committed.inbox {
            let (count, last) = seen.entry(name).or_insert((0, entry.at));
            (*count, *last) = (*count + 1, entry.at.max(*last));
        }
        let seen = seen.into_iter().map(|(name, (count, last))| (name.clone(), count, last));
        let marks = &committed.marks;
        let counted = marks.iter().filter(|((of, _), _)| of == Tally::APPLIED);
        let counted = counted.map(|((_, name), applied)| {
            let duplicates = marks.get(&(Tally::DUPLICATES.to_owned(), name.clone()));
            (name.clone(), *applied, duplicates.copied().unwrap_or(0))
        });
        Ok(ConsumerView::all(seen, counted))
    }

    async fn effects(&self, id: EventId) -> Result<Vec<EffectView>, Failure> {
        let committed = self.committed();
        let taken = committed.inbox.iter().filter(|((_, seen), _)| *seen == id);
        let mut effects: Vec<_> = taken
            .map(|((name, _), seen)| EffectView { consumer: name.clone(), at: seen.at })
            .collect();
        effects.sort_by(|one, other| (one.at, &one.consumer).cmp(&(other.at, &other.consumer)));
        Ok(effects)
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

/// Whether an outage that was told of then is one still.
fn holds(told: Timestamp, now: Timestamp) -> bool {
    now.duration_since(told).unsigned_abs() <= Outage::HOLDS
}
