//! One look at the tables: what is handed out, and what has to wait.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use semel_core::{Delivery, Event, Failure, Limit, Message, Publication, Receipt, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::error::failure;
use super::parking::{Aside, FreeLanes, Standing, Woken, json, standing};
use super::poll::SqliteSource;
use super::row::{self, AFTER_EVENT, event_columns, stored};

/// What was found to be handed out or put aside.
pub(super) struct Round {
    limit: Limit,
    count: usize,
    bytes: usize,
    /// How many events were looked at, and how large they are.
    seen: usize,
    bytes_seen: usize,
    /// In the order in which they are handed out.
    found: Vec<(u64, Found)>,
    /// Something was found for which there was no room.
    pub(super) more: bool,
    /// What cannot be read, and holds its lane from here on.
    unreadable: Vec<Arc<Event>>,
}

enum Found {
    /// Parked and due, after so many attempts.
    Parked(u32, Publication, Arc<Event>),
    /// In the log, and free to go.
    Free(Arc<Event>),
    /// In the log, and has to wait behind its lane.
    Held,
    /// In the log, and has to wait for something else.
    PutAside(Aside),
    /// In the log, but settled or parked before.
    Passed,
}

/// Rows after a position.
const NEW: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", ",
    standing!(),
    " FROM semel_outbox o WHERE o.seq > ?2 ORDER BY o.seq LIMIT ?3"
);

/// Rows by their numbers.
const AGAIN: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", ",
    standing!(),
    " FROM semel_outbox o WHERE o.seq IN (SELECT value FROM json_each(?2)) ORDER BY o.seq"
);

impl Round {
    pub(super) fn new(limit: Limit) -> Self {
        let (found, unreadable) = (Vec::new(), Vec::new());
        let (seen, bytes_seen) = (0, 0);
        Self { limit, count: 0, bytes: 0, seen, bytes_seen, found, more: false, unreadable }
    }

    /// How many rows to ask for: one more than there is room for, to know whether there is more.
    fn rows(&self, average: usize) -> usize {
        let room = self.limit.bytes.saturating_sub(self.bytes) / average.max(1);
        self.limit.events.saturating_sub(self.count).min(room).saturating_add(1)
    }

    fn look_at(&mut self, event: &Event) {
        self.seen += 1;
        self.bytes_seen = self.bytes_seen.saturating_add(event.size());
    }

    /// Takes up the room for an event, if there is any.
    fn admit(&mut self, event: &Event) -> bool {
        let bytes = self.bytes.saturating_add(event.size());
        let room = self.count == 0 || (self.count < self.limit.events && bytes <= self.limit.bytes);
        if room {
            self.count += 1;
            self.bytes = bytes;
        }
        self.more |= !room;
        room
    }

    /// Whether an event is behind one that cannot be read, in its lane.
    fn is_held(&self, event: &Event) -> bool {
        self.unreadable.iter().any(|before| before.lane() == event.lane())
    }
}

impl SqliteSource {
    /// Parked events that are due: they are the oldest. One that cannot be read is dead again.
    pub(super) async fn collect_parked(&mut self, round: &mut Round) -> Result<(), Failure> {
        let mut chosen = self.choose_parked(round).await?;
        if chosen.is_empty() {
            return Ok(());
        }
        self.unsure = true;
        let mut tx = self.store.begin().await?;
        if self.owns(&mut tx).await? {
            let seqs: Vec<u64> = chosen.iter().map(|(seq, _)| *seq).collect();
            let granted = self.parking().take(&mut tx, &seqs, self.epoch).await?;
            chosen.retain(|(seq, _)| granted.contains(seq));
            for (seq, aside) in chosen.iter().filter_map(Found::aside) {
                self.parking().put(&mut tx, seq, aside).await?;
            }
            chosen.retain(|(_, found)| !matches!(found, Found::PutAside(_)));
            round.found.append(&mut chosen);
        }
        tx.commit().await.map_err(failure("read parked events"))
    }

    /// Reads parked events as long as there is room, one after the other: all that are due may be
    /// far too much.
    async fn choose_parked(&self, round: &mut Round) -> Result<Vec<(u64, Found)>, Failure> {
        let failed = || failure("read parked events");
        let mut reader = self.store.readers.acquire().await.map_err(failed())?;
        let rows = round.rows(self.average);
        let mut due = self.parking().due(&mut reader, rows);
        let (mut read, mut chosen) = (0, Vec::new());
        while let Some(found) = due.try_next().await.map_err(failed())? {
            read += 1;
            let seq = row::seq(&found)?;
            // After a settle whose answer was lost the table may be ahead of us.
            if self.taken.contains(&seq) || self.watermark.is_out(seq) {
                continue;
            }
            let (event, fault) = row::event(&found)?;
            round.look_at(&event);
            let attempts = row::column(&found, AFTER_EVENT)?;
            if let Some(fault) = fault {
                chosen.push((seq, unreadable(&self.pipeline, seq, attempts, &fault)));
                round.unreadable.push(event);
                // It took the place of another in the answer.
                round.more = true;
                continue;
            }
            if round.is_held(&event) {
                continue;
            }
            if !round.admit(&event) {
                break;
            }
            let publication = row::publication(&found, AFTER_EVENT + 1)?;
            chosen.push((seq, Found::Parked(attempts, publication, event)));
        }
        // If none of them can be had, it is of no use to ask again at once.
        round.more |= read == rows && !chosen.is_empty();
        Ok(chosen)
    }

    /// Released rows, then rows that were not read yet.
    pub(super) async fn collect_log(&self, round: &mut Round) -> Result<(), Failure> {
        let mut reader = self.store.readers.acquire().await.map_err(failure("read the outbox"))?;
        if !self.again.is_empty() {
            self.collect_again(&mut reader, round).await?;
        }
        if !round.more {
            let (after, rows) = (stored(self.watermark.read()), round.rows(self.average));
            let query = sqlx::query(NEW).bind(&self.pipeline).bind(after).bind(stored(rows as u64));
            let (read, _) = self.collect(query.fetch(&mut *reader), round).await?;
            round.more |= read == rows;
        }
        Ok(())
    }

    /// Released rows. Nothing goes past what must come first.
    async fn collect_again(
        &self,
        reader: &mut SqliteConnection,
        round: &mut Round,
    ) -> Result<(), Failure> {
        let seqs: Vec<u64> = self.again.iter().copied().take(round.rows(self.average)).collect();
        let query = sqlx::query(AGAIN).bind(&self.pipeline).bind(json(&seqs));
        let before = round.found.len();
        let (_, all) = self.collect(query.fetch(reader), round).await?;
        if all {
            let there: HashSet<u64> = round.found[before..].iter().map(|(seq, _)| *seq).collect();
            // Somebody deleted the others.
            let gone = seqs.iter().filter(|seq| !there.contains(seq));
            round.found.extend(gone.map(|seq| (*seq, Found::Passed)));
        }
        round.more |= !all || seqs.len() < self.again.len();
        Ok(())
    }

    /// Reads rows as long as there is room; says how many, and whether there was room for all.
    async fn collect(
        &self,
        mut rows: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
        round: &mut Round,
    ) -> Result<(usize, bool), Failure> {
        let now = self.store.clock.now();
        let mut count = 0;
        while let Some(found) = rows.try_next().await.map_err(failure("read the outbox"))? {
            count += 1;
            let seq = row::seq(&found)?;
            let standing = Standing::from_column(row::column(&found, AFTER_EVENT)?);
            let found = if standing == Standing::Parked || self.watermark.is_known(seq) {
                Found::Passed
            } else {
                let (event, fault) = row::event(&found)?;
                round.look_at(&event);
                match fault {
                    None if round.is_held(&event) => sort(event, Standing::Held, now),
                    None => sort(event, standing, now),
                    Some(fault) => {
                        round.unreadable.push(event);
                        unreadable(&self.pipeline, seq, 0, &fault)
                    }
                }
            };
            if let Found::Free(event) = &found
                && !round.admit(event)
            {
                return Ok((count, false));
            }
            round.found.push((seq, found));
        }
        Ok((count, true))
    }

    /// Parks what must wait; says whether something is due now all the same.
    pub(super) async fn put_aside(&self, round: &Round) -> Result<Woken, Failure> {
        let held = round.found.iter().filter(|(_, found)| matches!(found, Found::Held));
        let held: Vec<u64> = held.map(|(seq, _)| *seq).collect();
        let aside: Vec<_> = round.found.iter().filter_map(Found::aside).collect();
        if held.is_empty() && aside.is_empty() {
            return Ok(Woken::default());
        }
        let parking = self.parking();
        let mut woken = Woken::default();
        let mut tx = self.store.begin().await?;
        if self.owns(&mut tx).await? {
            for (seq, aside) in aside {
                parking.put(&mut tx, seq, aside).await?;
            }
            // A lane that has become free meanwhile goes on at once.
            let followers = parking.follow(&mut tx, &held, FreeLanes::Park).await?;
            let lanes: BTreeSet<_> = followers.into_iter().map(|(lane, _)| lane).collect();
            let read =
                round.found.iter().map(|(seq, _)| *seq).fold(self.watermark.read(), u64::max);
            woken = parking.wake_scheduled(&mut tx, read).await?;
            woken.something_is_due |= parking.promote_all(&mut tx, &lanes).await?;
        }
        tx.commit().await.map_err(failure("park events"))?;
        Ok(woken)
    }

    /// From here on everything is the engine's.
    pub(super) fn hand_out(&mut self, round: Round) -> Vec<Delivery> {
        self.unsure = false;
        if let Some(average) = round.bytes_seen.checked_div(round.seen) {
            self.average = average;
        }
        let topic = self.topic.clone();
        let delivery = |seq, event, attempts: u32, publication| {
            let message = Message::first(topic.clone(), event);
            let message = Message { attempt: attempts + 1, publication, ..message };
            Delivery { message, receipt: Receipt(seq) }
        };
        let mut deliveries = Vec::with_capacity(round.count);
        for (seq, found) in round.found {
            let was_read = self.again.remove(&seq);
            match found {
                Found::Parked(attempts, publication, event) => {
                    self.taken.insert(seq);
                    deliveries.push(delivery(seq, event, attempts, publication));
                }
                Found::Free(event) => {
                    if !was_read {
                        self.watermark.hand_out(seq);
                    }
                    deliveries.push(delivery(seq, event, 0, Publication::First));
                }
                Found::Held | Found::PutAside(_) | Found::Passed if was_read => {
                    self.watermark.finish(&[seq]);
                }
                Found::Held | Found::PutAside(_) | Found::Passed => self.watermark.pass(seq),
            }
        }
        self.store.note_handed_out(&self.pipeline, self.epoch, self.watermark.read());
        deliveries
    }
}

impl Found {
    /// How it is put aside, if it is.
    fn aside((seq, found): &(u64, Self)) -> Option<(u64, &Aside)> {
        if let Self::PutAside(aside) = found { Some((*seq, aside)) } else { None }
    }
}

/// What to do with an event of the log that can be read.
fn sort(event: Arc<Event>, standing: Standing, now: Timestamp) -> Found {
    match event.available_at {
        // Due or not: it takes its place when it falls due, and that is not where it was written.
        Some(time) if time > now || time > event.created_at => {
            Found::PutAside(Aside::scheduled(time.as_microsecond()))
        }
        _ if standing == Standing::Held => Found::Held,
        _ => Found::Free(event),
    }
}

/// A row that cannot be read is dead, and its lane waits, until somebody mends or discards it. No
/// sink ever sees it, so nobody else says so.
fn unreadable(pipeline: &str, seq: u64, attempts: u32, fault: &Failure) -> Found {
    let (table, code) = ("semel_outbox", fault.code());
    tracing::error!(pipeline, table, seq, code, "a row cannot be read, and is dead: {fault}");
    Found::PutAside(Aside::dead(attempts, fault))
}
