//! What is in streams, read by `XRANGE`: no group moves, nothing is acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, from_redis_value};
use semel_core::{Failure, Topic};

use super::config::RedisConfig;
use super::error::{failure, strange_answer};
use super::group::{Fields, event_of};
use super::link::{Dialler, Link};
use crate::arrival::Arrival;

impl RedisConfig {
    /// The events that are in these streams now. Nothing is consumed; what is no event is passed
    /// over, and so is a stream that does not exist.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached or does not answer in time, `Misconfigured`
    /// when the user may not read.
    pub async fn arrivals(&self, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Failure> {
        crate::crypto::choose_provider();
        let dialler = Dialler::new(Arc::new(self.clone()));
        let mut arrivals = Vec::new();
        for (queue, topic) in topics.iter().enumerate() {
            let key = format!("{}{topic}", self.key_prefix);
            self.read(&dialler, &key, queue, &mut arrivals).await?;
        }
        Ok(arrivals)
    }

    async fn read(
        &self,
        dialler: &Dialler,
        key: &str,
        queue: usize,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), Failure> {
        let (mut from, mut place) = ("-".to_owned(), 0);
        loop {
            let page = page(dialler, self.timeout, key, (&from, "+"), PAGE).await?;
            for (_, fields) in &page {
                place += 1;
                if let Ok(event) = event_of(fields) {
                    arrivals.push(Arrival { id: event.id, queue, place });
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => from = format!("({last}"),
                _ => return Ok(()),
            }
        }
    }
}

/// How many entries are asked for at once.
const PAGE: usize = 1000;

/// Entries of a stream, from one id to another; none of one that does not exist.
pub(super) async fn page(
    dialler: &Dialler,
    limit: Duration,
    key: &str,
    (from, to): (&str, &str),
    count: usize,
) -> Result<Vec<(String, Fields)>, Failure> {
    const DOING: &str = "read a stream";
    let mut range = cmd("XRANGE");
    range.arg(key).arg(from).arg(to).arg("COUNT").arg(count);
    let asking = async |link: &Link| link.ask(&range).await.map_err(|error| failure(DOING, error));
    let answer = dialler.in_time(limit, asking).await?;
    from_redis_value(answer).map_err(|_| strange_answer(DOING))
}
