//! What became of deliveries, on its way into the tables.

use std::collections::BTreeMap;

use semel_core::{Failure, Fault, Holding, Outcome, Receipt, Settlement};

use super::database::Flight;
use super::dialect::{Dialect, Key};
use super::pipeline::CHUNK;
use super::source::MappedSource;
use super::statement::{Answer, Kind, Statement};
use crate::row::plain;

/// Outcomes, by what has to be written for them.
#[derive(Default)]
struct Outcomes {
    delivered: Vec<String>,
    /// Of those, the ones that had failed before.
    recovered: Vec<String>,
    failed: Vec<(Flight, Setback)>,
    /// All receipts, those of released rows among them.
    landed: Vec<u64>,
}

/// How an event failed.
struct Setback {
    state: &'static str,
    holds: bool,
    attempts: u32,
    /// How many microseconds until it is offered again, and when that is by the relay's clock.
    wait: Option<(i64, i64)>,
    error: String,
}

impl MappedSource {
    /// Nothing is changed in memory until all of it is stored.
    pub(super) async fn settle_all(
        &mut self,
        settlements: &[Settlement],
    ) -> Result<Holding, Failure> {
        let mut outcomes = self.sort(settlements);
        let mut written = self.database.write("settle", self.statements(&outcomes)).await;
        let refused = written.as_ref().is_err_and(|failure| failure.fault() == Fault::Refused);
        if refused && outcomes.simplify_errors() {
            written = self.database.write("settle", self.statements(&outcomes)).await;
        }
        let Some(answers) = written? else { return Ok(Holding::Lost) };
        self.see_marks(&outcomes.delivered, &answers).await?;
        let mut flights = self.flights.lock();
        for receipt in &outcomes.landed {
            flights.remove(receipt);
        }
        Ok(Holding::Held)
    }

    /// All that has to be written, in one transaction.
    fn statements(&self, outcomes: &Outcomes) -> Vec<Statement> {
        let mut statements = vec![self.pipeline.guard(&*self.database, Some(self.epoch))];
        self.mark(outcomes, &mut statements);
        for failed in outcomes.failed.chunks(CHUNK) {
            statements.push(self.park(failed));
        }
        let mut counts: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (flight, setback) in &outcomes.failed {
            counts.entry(setback.attempts).or_default().push(flight.row_id.clone());
        }
        for (attempts, ids) in &counts {
            let count = self.pipeline.count_attempts(&*self.database, *attempts, ids);
            statements.extend(count);
        }
        statements
    }

    /// A row that is not found by its id when it is marked would be published again, for ever.
    async fn see_marks(&self, delivered: &[String], answers: &[Answer]) -> Result<(), Failure> {
        // The guard comes first.
        let marked = answers.get(1).map_or(0, |answer| answer.changed);
        if delivered.is_empty() || marked >= delivered.len() as u64 {
            return Ok(());
        }
        let (table, id) = (&self.pipeline.table, &self.pipeline.table.mapping.id);
        let mut sql = self.database.statement();
        sql.push(&format!("SELECT 1 FROM {} t WHERE {} AND ", table.name, table.unmarked("t.")));
        sql.among(&Key::own(&table.key().text), delivered).push(" LIMIT 1");
        if self.database.read("look for rows that were not marked", sql).await?.is_empty() {
            // Somebody deleted or marked them by hand.
            return Ok(());
        }
        let what = format!("{}: a published row was not marked", table.mapping.shown());
        Err(Failure::misconfigured("E-MAPPED-ID", what).with_fix(format!(
            "write ids of the type that the column {id:?} has, and let no trigger undo the change"
        )))
    }

    /// In the order in which they were handed out, so that the first of a lane is parked first.
    fn sort(&self, settlements: &[Settlement]) -> Outcomes {
        let flights = self.flights.lock();
        let known =
            settlements.iter().filter_map(|Settlement { receipt: Receipt(receipt), outcome }| {
                flights.get(receipt).map(|flight| (*receipt, (flight, outcome)))
            });
        let known: BTreeMap<_, _> = known.collect();
        let mut sorted = Outcomes::default();
        for (receipt, (flight, outcome)) in known {
            sorted.landed.push(receipt);
            match outcome {
                Outcome::Delivered => {
                    sorted.delivered.push(flight.row_id.clone());
                    sorted.recovered.extend(flight.parked.then(|| flight.row_id.clone()));
                }
                Outcome::Released => {}
                Outcome::Retry { at, attempts, failure } => {
                    let wait = at.duration_since(self.database.clock().now());
                    let micros = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX / 4);
                    let setback = Setback {
                        state: "failed",
                        holds: true,
                        attempts: *attempts,
                        // The database counts it on its own clock.
                        wait: Some((micros.max(0), at.as_microsecond())),
                        error: failure.to_string(),
                    };
                    sorted.failed.push((flight.clone(), setback));
                }
                Outcome::Dead { attempts, failure, parks_lane } => {
                    let setback = Setback {
                        state: "dead",
                        holds: *parks_lane,
                        attempts: *attempts,
                        wait: None,
                        error: failure.to_string(),
                    };
                    sorted.failed.push((flight.clone(), setback));
                }
            }
        }
        sorted
    }

    /// Marks what was delivered, in one statement.
    fn mark(&self, outcomes: &Outcomes, statements: &mut Vec<Statement>) {
        if !outcomes.delivered.is_empty() {
            let table = &self.pipeline.table;
            let mut sql = self.database.statement().of_kind(Kind::Change);
            table.mark_rows(&mut sql, true, self.database.clock().now());
            sql.push(" WHERE ").among(&table.bare_key(), &outcomes.delivered);
            statements.push(sql);
        }
        if !outcomes.recovered.is_empty() {
            statements.push(self.pipeline.forget(&*self.database, &outcomes.recovered));
        }
    }

    /// Notes what failed. What an operator gave up meanwhile stays given up.
    fn park(&self, failed: &[(Flight, Setback)]) -> Statement {
        let dialect = self.database.dialect();
        let mut sql = self.database.statement().of_kind(Kind::Change);
        sql.push(&format!(
            "INSERT INTO {}{} (pipeline, row_id, aggregate_type, aggregate_id, state, holds, \
             attempts, due, retry_at, error, changed_at) VALUES ",
            dialect.parked(),
            if dialect == Dialect::Mysql { "" } else { " AS p" },
        ));
        for (place, (flight, setback)) in failed.iter().enumerate() {
            sql.push(if place == 0 { "(" } else { ", (" }).text(self.pipeline.name.as_str());
            sql.push(", ").text(flight.row_id.as_str());
            sql.push(", ").text(flight.lane.0.as_str()).push(", ").text(flight.lane.1.as_str());
            sql.push(&format!(", '{}', {}, ", setback.state, u8::from(setback.holds)));
            sql.int(i64::from(setback.attempts)).push(", ");
            match setback.wait {
                Some((wait, at)) => sql.now().push(" + ").int(wait).push(", ").int(at),
                None => sql.push("NULL, NULL"),
            };
            // PostgreSQL takes no text with a NUL in it.
            let error = setback.error.replace('\0', "");
            sql.push(", ").text(error.as_str()).push(", ").now().push(")");
        }
        sql.push(match dialect {
            Dialect::Mysql => ON_DUPLICATE,
            Dialect::Postgres | Dialect::Sqlite => ON_CONFLICT,
        });
        sql
    }
}

impl Outcomes {
    /// A database that is not in UTF-8 may have no place for what is in an error, and an event that
    /// cannot be parked would hold back all others. Says whether there was something to simplify.
    fn simplify_errors(&mut self) -> bool {
        let mut simplified = false;
        for (_, setback) in &mut self.failed {
            if !setback.error.is_ascii() {
                setback.error = plain(&setback.error);
                simplified = true;
            }
        }
        simplified
    }
}

const ON_CONFLICT: &str = " ON CONFLICT (pipeline, row_id) DO UPDATE SET state = excluded.state, \
    holds = excluded.holds, attempts = excluded.attempts, due = excluded.due, \
    retry_at = excluded.retry_at, error = excluded.error, changed_at = excluded.changed_at \
    WHERE p.state <> 'discarded'";

/// The state comes last: what stands before it must see the old one.
const ON_DUPLICATE: &str = " ON DUPLICATE KEY UPDATE \
    holds = IF(state = 'discarded', holds, VALUES(holds)), \
    attempts = IF(state = 'discarded', attempts, VALUES(attempts)), \
    due = IF(state = 'discarded', due, VALUES(due)), \
    retry_at = IF(state = 'discarded', retry_at, VALUES(retry_at)), \
    error = IF(state = 'discarded', error, VALUES(error)), \
    changed_at = IF(state = 'discarded', changed_at, VALUES(changed_at)), \
    state = IF(state = 'discarded', state, VALUES(state))";
