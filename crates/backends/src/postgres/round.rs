//! One look of a source at the tables, and what it hands out because of it.
//!
//! A round works on copies: the memory of the source changes only after the last await, so that a
//! call that is dropped or fails hands nothing out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::{Batch, Delivery, Event, Failure, Holding, Limit, Message, Publication, Receipt};

use super::cursor;
use super::error::failure;
use super::log::{self, Agenda, LogRow, Look, Portion, What};
use super::parking::{Aside, Changes};
use super::poll::PostgresSource;
use super::pooler::Link;
use super::row::{self, AFTER_EVENT, column};
use super::window::{Ledger, Next, Standing};

/// Whether the planner has to be guided: for a while after a read that took far too long.
#[derive(Debug, Default)]
pub(super) struct Guidance {
    until: Option<Instant>,
}

impl Guidance {
    const FOR: Duration = Duration::from_secs(60);
    /// What a read may take, and each of its rows.
    const READ: Duration = Duration::from_millis(20);
    const ROW: Duration = Duration::from_micros(20);

    fn is_needed(&self) -> bool {
        self.until.is_some()
    }

    /// Looks at how long a read took; says whether the next one is done differently.
    fn changes(&mut self, took: Duration, rows: usize) -> bool {
        let slow = took > Self::READ + Self::ROW * u32::try_from(rows).unwrap_or(u32::MAX);
        let before = self.until.is_some();
        self.until = match self.until {
            None => slow.then(|| Instant::now() + Self::FOR),
            Some(until) => (Instant::now() < until).then_some(until),
        };
        before != self.until.is_some()
    }
}

/// Rows of other shares that were read over since the position was stored.
#[derive(Debug, Default)]
pub(super) struct Passing {
    others: bool,
    since: Option<Instant>,
}

impl Passing {
    /// A share without events of its own writes no more often than this.
    const PACE: Duration = Duration::from_secs(2);

    /// Whether the position is to be stored although nothing was settled, so that a successor does
    /// not read all of them again.
    fn is_due(&mut self, others: bool) -> bool {
        self.others |= others;
        self.others && self.since.get_or_insert_with(Instant::now).elapsed() >= Self::PACE
    }
}

/// A parked event that is due: its number, attempts made, and whether it is replayed.
type Parked = (i64, Arc<Event>, u32, Publication);

/// What one round uses.
struct Round {
    limit: Limit,
    agenda: Agenda,
    /// Parked rows that are due, with the attempts made.
    parked: Vec<Parked>,
    /// Rows of the log, by receipt.
    log: Vec<(u64, LogRow)>,
    /// The ledger once all of that is handed out.
    ledger: Ledger,
    more: bool,
}

impl PostgresSource {
    /// One look at the tables; none when another one is needed at once.
    pub(super) async fn round(
        &mut self,
        link: &mut Link<'_>,
        limit: Limit,
    ) -> Result<Option<Batch>, Failure> {
        if self.unsure && !self.catch_up(link).await?.is_held() {
            self.lost = true;
            return Ok(Some(Batch::default()));
        }
        let again = self.ledger.again(limit.events.max(1));
        let Some(Look { agenda, rows, full }) = self.look(link, limit, &again).await? else {
            return Ok(None);
        };
        self.unsure = true;
        let parked = self.take_parked(link, &agenda, limit).await?;
        let ledger = self.ledger.clone();
        let (more, log) = (!parked.is_empty(), Vec::new());
        let mut round = Round { limit, agenda, parked, log, ledger, more };
        if again.is_empty() {
            self.average = mean_size(&rows, self.average);
            round.use_log(rows, full);
        } else {
            round.use_again(&again, rows);
        }
        self.put_aside(link, &mut round).await?;
        if !round.log.is_empty() && !self.lost {
            let mut step = link.step().await?;
            self.lost = !self.cursor.mark(&mut step, &round.ledger).await?.is_held();
            step.end().await?;
        }
        round.fill(link).await?;
        self.store_end(link, &round).await?;
        if self.lost {
            return Ok(Some(Batch::default()));
        }
        self.unsure = false;
        Ok(self.hand_out(round))
    }

    /// Stores where a window ended without a row, which no settlement will, and from time to time
    /// where those without any row of this share did.
    async fn store_end(&mut self, link: &mut Link<'_>, round: &Round) -> Result<(), Failure> {
        let passed = self.passing.is_due(round.agenda.others) || !self.ledger.is_settled();
        if passed && round.ledger.is_settled() && !self.lost {
            let mut step = link.step().await?;
            self.lost = !self.cursor.advance(&mut step, &round.ledger).await?.is_held();
            step.end().await?;
            self.passing = Passing::default();
        }
        Ok(())
    }

    /// Learns what an earlier call has changed in the tables before it ended half-way.
    async fn catch_up(&mut self, link: &mut Link<'_>) -> Result<Holding, Failure> {
        let mut tx = cursor::begin(link, "catch up").await?;
        let held = self.cursor.wait_for_others(&mut tx).await?;
        if held.is_held() {
            let known: Vec<i64> = self.flights.values().copied().collect();
            self.parking().free_all_but(&mut tx, &known).await?;
            let unread = self.ledger.unread_window();
            let aside = self.parking().put_aside_since(&mut tx, unread).await?;
            tx.commit().await.map_err(failure("catch up"))?;
            self.ledger.learn(&aside);
            self.unsure = false;
        }
        Ok(held)
    }

    /// Reads what is next; none when a window had to be measured first.
    async fn look(
        &mut self,
        link: &mut Link<'_>,
        limit: Limit,
        again: &[(u64, i64)],
    ) -> Result<Option<Look>, Failure> {
        let portion = Portion::of(limit, self.average);
        let next = self.ledger.next();
        let what = if again.is_empty() {
            What::Next(&next)
        } else {
            What::These(again.iter().map(|(_, seq)| *seq).collect())
        };
        let guided = self.guidance.is_needed();
        let began = Instant::now();
        let look = log::read(link, &self.cursor, &what, portion, guided).await?;
        // Rows of other shares are read, too.
        let rows = look.rows.len().saturating_mul(self.cursor.share.of as usize);
        if self.guidance.changes(began.elapsed(), rows) {
            // Plans that were made the other way are of no use.
            link.forget_plans().await?;
        }
        if let Next::Window { from } = &next
            && again.is_empty()
            && look.full
        {
            // Its rows came in the order of the transactions: they are not its beginning.
            let end = look.agenda.snapshot;
            let mut step = link.step().await?;
            let (first, last) = log::bounds(&mut step, from, &end).await?;
            step.end().await?;
            self.ledger.open_window(end, first, last);
            return Ok(None);
        }
        Ok(Some(look))
    }

    /// Parked events that are due: they are the oldest.
    async fn take_parked(
        &mut self,
        link: &mut Link<'_>,
        agenda: &Agenda,
        limit: Limit,
    ) -> Result<Vec<Parked>, Failure> {
        if agenda.scheduled {
            self.wake_scheduled(link).await?;
        }
        if !agenda.due && !agenda.scheduled {
            return Ok(Vec::new());
        }
        let events = limit.events.max(1);
        let mut step = link.step().await?;
        let taken = self.parking().offer(&mut step, self.cursor.epoch, events, limit.bytes).await?;
        step.end().await?;
        let read = |found| {
            let attempts: i32 = column(found, AFTER_EVENT)?;
            let event = Arc::new(row::event(found)?.0);
            let publication = row::publication(found, AFTER_EVENT + 1)?;
            Ok((row::seq(found)?, event, u32::try_from(attempts).unwrap_or(0), publication))
        };
        taken.iter().map(read).collect()
    }

    async fn wake_scheduled(&mut self, link: &mut Link<'_>) -> Result<(), Failure> {
        const WHAT: &str = "wake scheduled events";
        let mut tx = cursor::begin(link, WHAT).await?;
        self.lost = !self.cursor.wait_for_others(&mut tx).await?.is_held();
        if self.lost {
            return Ok(());
        }
        let woken = self.parking().wake_scheduled(&mut tx, self.ledger.count()).await?;
        let mut ledger = self.ledger.clone();
        ledger.skip_numbers(i64::try_from(woken).unwrap_or(i64::MAX));
        self.lost = !self.cursor.advance(&mut tx, &ledger).await?.is_held();
        if !self.lost {
            tx.commit().await.map_err(failure(WHAT))?;
            self.ledger = ledger;
        }
        Ok(())
    }

    /// Parks the rows of the log whose lane is held or whose time has not come.
    async fn put_aside(&mut self, link: &mut Link<'_>, round: &mut Round) -> Result<(), Failure> {
        let held = self.held(link, round).await?;
        let changes = round.sort_out(&held);
        if !changes.is_empty() {
            let held = self.store_changes(link, &round.ledger, &changes).await?;
            self.lost |= !held.is_held();
        }
        Ok(())
    }

    async fn held(&self, link: &mut Link<'_>, round: &Round) -> Result<HashSet<i64>, Failure> {
        if round.log.is_empty() || !round.agenda.held {
            return Ok(HashSet::new());
        }
        let lane = |(_, LogRow { seq, event, .. }): &'_ (u64, LogRow)| {
            (*seq, event.aggregate_type.clone(), event.aggregate_id.clone())
        };
        let lanes: Vec<_> = round.log.iter().map(lane).collect();
        let mut step = link.step().await?;
        let held = self.parking().held(&mut step, &lanes).await?;
        step.end().await?;
        Ok(held.into_iter().collect())
    }

    /// Remembers what is in flight now.
    fn hand_out(&mut self, round: Round) -> Option<Batch> {
        let mut deliveries = Vec::with_capacity(round.parked.len() + round.log.len());
        let found = !round.log.is_empty();
        for (seq, event, attempts, publication) in round.parked {
            self.last_flight += 1;
            self.flights.insert(self.last_flight, seq);
            let message = self.message(event, publication);
            let message = Message { attempt: attempts + 1, ..message };
            deliveries.push(Delivery { message, receipt: Receipt(self.last_flight) });
        }
        let log = round.log.into_iter().map(|(receipt, row)| Delivery {
            message: self.message(row.event, Publication::First),
            receipt: Receipt(receipt),
        });
        deliveries.extend(log);
        self.ledger = round.ledger;
        if let Some(tail) = &mut self.tail {
            tail.note(self.ledger.end(), found, !round.more);
        }
        let nothing_yet = deliveries.is_empty() && round.more;
        let next_due = round.agenda.next_retry;
        (!nothing_yet).then_some(Batch { deliveries, more: round.more, next_due })
    }

    fn message(&self, event: Arc<Event>, publication: Publication) -> Message {
        Message { publication, ..Message::first(self.topic.clone(), event) }
    }
}

impl Round {
    /// As many rows of a page as there is room for.
    fn use_log(&mut self, mut rows: Vec<LogRow>, full: bool) {
        if let Next::Window { .. } = self.ledger.next() {
            let first = rows.first().map_or(1, |row| row.seq);
            let last = rows.last().map_or(0, |row| row.seq);
            self.ledger.open_window(self.agenda.snapshot.clone(), first, last);
        } else {
            // Whatever came since this window was fixed is not in it.
            self.more = true;
        }
        let fitting = self.fitting(&rows);
        let complete = fitting == rows.len() && !full;
        rows.truncate(fitting);
        for row in rows {
            if let Some(receipt) = self.ledger.push(row.seq, row.event.id) {
                self.log.push((receipt, row));
            }
        }
        if complete {
            self.ledger.complete_window();
        }
        self.more |= !complete;
    }

    /// As many rows as there is room for of those that came back untried.
    fn use_again(&mut self, again: &[(u64, i64)], mut rows: Vec<LogRow>) {
        let receipts: HashMap<i64, u64> =
            again.iter().map(|&(receipt, seq)| (seq, receipt)).collect();
        let found: HashSet<i64> = rows.iter().map(|row| row.seq).collect();
        for (receipt, _) in again.iter().filter(|(_, seq)| !found.contains(seq)) {
            // Somebody deleted it.
            self.ledger.set(*receipt, Standing::Settled);
        }
        rows.truncate(self.fitting(&rows));
        for row in rows {
            if let Some(&receipt) = receipts.get(&row.seq) {
                self.ledger.set(receipt, Standing::Out);
                self.log.push((receipt, row));
            }
        }
        self.more = true;
    }

    /// How many rows fit beside what is parked.
    fn fitting(&self, rows: &[LogRow]) -> usize {
        let mut bytes = self.parked.iter().map(|(_, event, ..)| event.size()).sum::<usize>();
        let mut count = self.parked.len();
        let fits = |row: &&LogRow| {
            bytes += row.size;
            count += 1;
            count == 1 || (count <= self.limit.events && bytes <= self.limit.bytes)
        };
        rows.iter().take_while(fits).count()
    }

    /// Takes out what cannot be handed out now, and says what to do with it.
    fn sort_out(&mut self, held: &HashSet<i64>) -> Changes {
        let mut changes = Changes::default();
        let mut something_is_due = false;
        let (ledger, now) = (&mut self.ledger, self.agenda.now);
        self.log.retain(|(receipt, row)| {
            let place = ledger.out(*receipt).map_or(0, |(_, window)| window);
            let known = ledger.is_known(row.seq);
            let aside = match row.event.available_at {
                _ if known => None,
                // Due or not: it takes its place when it falls due, and that is not where it was
                // written.
                Some(until) if until > now || until > row.event.created_at => {
                    something_is_due |= until <= now;
                    Some(Aside::scheduled(row.seq, place, until))
                }
                _ if held.contains(&row.seq) => Some(Aside::waiting(row.seq, place)),
                _ => return true,
            };
            ledger.set(*receipt, Standing::Settled);
            changes.put_aside.extend(aside);
            false
        });
        ledger.trim();
        // The next look wakes it, behind all of this one.
        self.more |= something_is_due;
        changes
    }

    /// Fetches what was too large to come at once.
    async fn fill(&mut self, link: &mut Link<'_>) -> Result<(), Failure> {
        if self.log.iter().all(|(_, row)| !row.is_large()) {
            return Ok(());
        }
        let mut step = link.step().await?;
        log::fill(&mut step, self.log.iter_mut().map(|(_, row)| row)).await?;
        step.end().await
    }
}

fn mean_size(rows: &[LogRow], before: usize) -> usize {
    if rows.is_empty() {
        return before;
    }
    let mean = rows.iter().map(|row| row.size).sum::<usize>() / rows.len();
    (before * 3 + mean) / 4
}
