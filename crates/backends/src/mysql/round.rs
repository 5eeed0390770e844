//! One look at the tables: what is handed out, and what has to wait.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use semel_core::{Delivery, Event, Failure, Limit, Message, Outcome, Publication, Timestamp};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;

use super::error::failure;
use super::parking::{Aside, Standing, standing};
use super::poll::MysqlSource;
use super::row::{self, AFTER_EVENT, as_micros, event_columns, json, listed, share_of};
use super::store::{count, timestamp};

/// What was found to be handed out or put aside.
pub(super) struct Round {
    limit: Limit,
    count: usize,
    bytes: usize,
    /// In the order in which they are handed out.
    found: Vec<(u64, Found)>,
    /// Something was found for which there was no room.
    pub(super) more: bool,
    /// Up to here there is nothing else, of a share.
    end: u64,
    /// What cannot be read, and holds its lane from here on.
    unreadable: Vec<Arc<Event>>,
}

enum Found {
    /// Parked and due, after so many attempts.
    Parked(u32, Publication, Arc<Event>),
    /// In the log, and free to go.
    Free(Arc<Event>),
    /// In the log, and has to wait.
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
    ", ",
    as_micros!("utc_timestamp(6)"),
    " FROM semel_outbox o FORCE INDEX (semel_outbox_position) \
     WHERE o.position > ? ORDER BY o.position LIMIT ?"
);

/// Rows of a share after a position, up to another.
const NEW_OF_SHARE: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", ",
    standing!(),
    ", ",
    as_micros!("utc_timestamp(6)"),
    " FROM semel_outbox o FORCE INDEX (semel_outbox_position) \
     WHERE o.position > ? AND o.position <= ? AND ",
    share_of!("?"),
    " = ? ORDER BY o.position LIMIT ?"
);

/// Whoever sees a position sees all before it.
const LAST: &str = "SELECT last FROM semel_counter WHERE name = 'position'";

/// Rows by their positions.
const AGAIN: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", ",
    standing!(),
    ", ",
    as_micros!("utc_timestamp(6)"),
    " FROM ",
    listed!(),
    " STRAIGHT_JOIN semel_outbox o ON o.position = j.position ORDER BY o.position"
);

impl Round {
    pub(super) fn new(limit: Limit) -> Self {
        let (found, unreadable) = (Vec::new(), Vec::new());
        Self { limit, count: 0, bytes: 0, found, more: false, end: 0, unreadable }
    }

    /// How many rows to ask for: one more than there is room for, to know whether there is more.
    fn rows(&self, average: usize) -> usize {
        let room = self.limit.bytes.saturating_sub(self.bytes) / average.max(1);
        self.limit.events.saturating_sub(self.count).min(room).saturating_add(1)
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

impl MysqlSource {
    /// Parked events that are due: they are the oldest. One that cannot be read is dead again.
    pub(super) async fn collect_parked(&mut self, round: &mut Round) -> Result<(), Failure> {
        self.unsure = true;
        let mut tx = self.store.begin_brief().await?;
        if self.owns(&mut tx).await? {
            let (chosen, dead) = self.choose_parked(&mut tx, round).await?;
            let dead: Vec<_> = dead.iter().map(|(position, aside)| (*position, aside)).collect();
            self.parking().put(&mut tx, &dead).await?;
            self.parking().take(&mut tx, &chosen, self.epoch).await?;
        }
        tx.commit().await.map_err(failure("take parked events"))
    }

    /// Reads parked events as long as there is room, one after the other: all that are due may be
    /// far too much. Says which are handed out, and which cannot be read.
    async fn choose_parked(
        &self,
        connection: &mut MySqlConnection,
        round: &mut Round,
    ) -> Result<(Vec<u64>, Vec<(u64, Aside)>), Failure> {
        let (mut chosen, mut dead) = (Vec::new(), Vec::new());
        let (rows, mut read) = (round.rows(self.average), 0);
        let mut due = self.parking().due(connection, rows);
        while let Some(found) = due.try_next().await.map_err(failure("read parked events"))? {
            read += 1;
            let position = row::position(&found)?;
            // After a settle whose answer was lost the table may be ahead of us.
            if self.taken.contains(&position) || self.watermark.is_out(position) {
                continue;
            }
            let (event, fault) = row::event(&found)?;
            let attempts = row::column(&found, AFTER_EVENT)?;
            if let Some(fault) = fault {
                self.report(position, &fault);
                let outcome = Outcome::Dead { attempts, failure: fault, parks_lane: true };
                let aside = Aside::failed(&outcome, &*self.store.clock);
                dead.extend(aside.map(|aside| (position, aside)));
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
            chosen.push(position);
            let publication = row::publication(&found, AFTER_EVENT + 1)?;
            round.found.push((position, Found::Parked(attempts, publication, event)));
        }
        // If none of them can be had, it is of no use to ask again at once.
        round.more |= read == rows && !chosen.is_empty();
        Ok((chosen, dead))
    }

    /// Released rows, then rows that were not read yet.
    pub(super) async fn collect_log(&self, round: &mut Round) -> Result<(), Failure> {
        let failed = || failure("read the outbox");
        let mut connection = self.store.pool().acquire().await.map_err(failed())?;
        // Nothing goes past what must come first.
        if !self.again.is_empty() && !self.collect_again(&mut connection, round).await? {
            round.more = true;
            return Ok(());
        }
        let rows = round.rows(self.average);
        let sql = if self.share.of == 1 { NEW } else { NEW_OF_SHARE };
        let mut query =
            sqlx::query(sql).bind(&self.pipeline).bind(&self.pipeline).bind(self.watermark.read());
        let mut end = 0;
        if self.share.of > 1 {
            end = sqlx::query_scalar(LAST).fetch_one(&mut *connection).await.map_err(failed())?;
            query = query.bind(end).bind(self.share.of).bind(self.share.number);
        }
        let query = query.bind(count(rows));
        let (read, all) = self.collect(query.fetch(&mut *connection), round).await?;
        round.more |= read == rows;
        if all && read < rows {
            round.end = end;
        }
        Ok(())
    }

    /// Released rows; says whether these are all.
    async fn collect_again(
        &self,
        connection: &mut MySqlConnection,
        round: &mut Round,
    ) -> Result<bool, Failure> {
        let rows = round.rows(self.average);
        let positions: Vec<u64> = self.again.iter().copied().take(rows).collect();
        let query = sqlx::query(AGAIN).bind(&self.pipeline).bind(&self.pipeline);
        let query = query.bind(json(&positions));
        let before = round.found.len();
        let (_, all) = self.collect(query.fetch(connection), round).await?;
        if all {
            let there: HashSet<u64> = round.found[before..].iter().map(|(at, _)| *at).collect();
            // Somebody deleted the others.
            let gone = positions.iter().filter(|position| !there.contains(position));
            round.found.extend(gone.map(|position| (*position, Found::Passed)));
        }
        Ok(all && positions.len() == self.again.len())
    }

    /// Reads rows as long as there is room; says how many, and whether there was room for all.
    async fn collect(
        &self,
        mut rows: BoxStream<'_, Result<MySqlRow, sqlx::Error>>,
        round: &mut Round,
    ) -> Result<(usize, bool), Failure> {
        let mut count = 0;
        while let Some(found) = rows.try_next().await.map_err(failure("read the outbox"))? {
            count += 1;
            let position = row::position(&found)?;
            let standing = Standing::from_column(row::column(&found, AFTER_EVENT)?);
            let found = if standing == Standing::Parked || self.watermark.is_known(position) {
                Found::Passed
            } else {
                let now = timestamp(row::column(&found, AFTER_EVENT + 1)?);
                match row::event(&found)? {
                    (event, None) => {
                        let held = round.is_held(&event);
                        let standing = if held { Standing::Held } else { standing };
                        aside(&event, standing, now).map_or(Found::Free(event), Found::PutAside)
                    }
                    (event, Some(fault)) => {
                        round.unreadable.push(event);
                        self.report(position, &fault);
                        Found::PutAside(Aside::unreadable(&fault))
                    }
                }
            };
            if let Found::Free(event) = &found
                && !round.admit(event)
            {
                return Ok((count, false));
            }
            round.found.push((position, found));
        }
        Ok((count, true))
    }

    /// Tells of a row that cannot be read. It is dead, and no sink ever sees it, so nobody else
    /// says so.
    fn report(&self, position: u64, fault: &Failure) {
        let (pipeline, table, code) = (&*self.pipeline, "semel_outbox", fault.code());
        tracing::error!(
            pipeline,
            table,
            position,
            code,
            "a row cannot be read, and is dead: {fault}"
        );
    }

    /// Parks what must wait; says whether something is due now all the same.
    pub(super) async fn put_aside(&self, round: &Round) -> Result<bool, Failure> {
        let asides: Vec<(u64, &Aside)> = round
            .found
            .iter()
            .filter_map(|(position, found)| match found {
                Found::PutAside(aside) => Some((*position, aside)),
                _ => None,
            })
            .collect();
        if asides.is_empty() {
            return Ok(false);
        }
        let parking = self.parking();
        let mut something_is_due = false;
        let mut tx = self.store.begin_brief().await?;
        if self.owns(&mut tx).await? {
            parking.put(&mut tx, &asides).await?;
            let positions: Vec<u64> = asides.iter().map(|(position, _)| *position).collect();
            something_is_due |= parking.promote(&mut tx, &positions).await?;
            let found = round.found.iter().map(|(position, _)| *position);
            let read = found.fold(self.watermark.read(), u64::max);
            something_is_due |= parking.wake_scheduled(&mut tx, read).await?;
        }
        tx.commit().await.map_err(failure("park events"))?;
        Ok(something_is_due)
    }

    /// From here on everything is the engine's.
    pub(super) fn hand_out(&mut self, round: Round) -> Vec<Delivery> {
        self.unsure = false;
        if let Some(average) = round.bytes.checked_div(round.count) {
            self.average = average;
        }
        let (topic, generation) = (self.topic.clone(), self.generation);
        let delivery = |position, event, attempts: u32, publication| {
            let message = Message::first(topic.clone(), event);
            let message = Message { attempt: attempts + 1, publication, ..message };
            Delivery { message, receipt: Self::receipt(generation, position) }
        };
        let mut deliveries = Vec::with_capacity(round.count);
        for (position, found) in round.found {
            let was_read = self.again.remove(&position);
            match found {
                Found::Parked(attempts, publication, event) => {
                    self.taken.insert(position);
                    deliveries.push(delivery(position, event, attempts, publication));
                }
                Found::Free(event) => {
                    if !was_read {
                        self.watermark.hand_out(position);
                    }
                    deliveries.push(delivery(position, event, 0, Publication::First));
                }
                Found::PutAside(_) | Found::Passed if was_read => {
                    self.watermark.finish(&[position]);
                }
                Found::PutAside(_) | Found::Passed => self.watermark.pass(position),
            }
        }
        if round.end > self.watermark.read() {
            self.watermark.pass(round.end);
        }
        let (number, read) = (self.share.number, self.watermark.read());
        self.store.note_handed_out(&self.pipeline, number, self.epoch, read);
        deliveries
    }
}

/// How an event that cannot be handed out is put aside.
fn aside(event: &Event, standing: Standing, now: Timestamp) -> Option<Aside> {
    match event.available_at {
        // Due or not: it takes its place when it falls due, and that is not where it was written.
        Some(time) if time > now || time > event.created_at => Some(Aside::scheduled()),
        _ if standing == Standing::Held => Some(Aside::waiting()),
        _ => None,
    }
}
