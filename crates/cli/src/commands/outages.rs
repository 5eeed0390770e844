//! Why events wait, told to the database while it is so: whoever looks there, by whatever program, sees
//! what the relay sees. Nothing depends on it: what cannot be told is left.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use semel_core::insight::{Insight, Outage};
use semel_core::{Failure, Fault};
use semel_relay::Pulse;
use tokio::time::{Instant, sleep, timeout};

/// How often it is looked for news.
const LOOKS: Duration = Duration::from_secs(1);
/// How often it is told again, well before it is taken to be over; and tried again, when it failed.
const AGAIN: Duration = Duration::from_secs(10);
/// A database that hangs must hold up neither the next look nor the end of a relay.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tells of the outages of a pipeline.
pub(super) struct Outages {
    pub(super) pipeline: String,
    /// What the relay is called where operators look.
    pub(super) relay: String,
    /// The names of the sinks.
    pub(super) sinks: Vec<String>,
    pub(super) insight: Arc<dyn Insight>,
    pub(super) pulse: Pulse,
}

impl Outages {
    /// For as long as some work takes.
    pub(super) async fn during<T>(self, work: impl Future<Output = T>) -> T {
        let mut told = None;
        let done = tokio::select! {
            done = work => done,
            never = self.tell(&mut told) => match never {},
        };
        if told.is_some() {
            self.say(None, &mut true).await;
        }
        done
    }

    async fn tell(&self, told: &mut Option<Outage>) -> Infallible {
        let mut again = Instant::now();
        let mut failed = false;
        let mut is_refused = false;
        loop {
            sleep(LOOKS).await;
            let failure = self.pulse.outages().remove(&self.pipeline);
            let outage = failure.map(|failure| Outage::of(&failure, &self.sinks));
            let is_due = Instant::now() >= again;
            let is_news = outage != *told && !failed;
            if is_news || is_due && (outage.is_some() || told.is_some()) {
                again = Instant::now() + AGAIN;
                failed = !self.say(outage.as_ref(), &mut is_refused).await;
                // What was perhaps told is taken back in the end.
                *told = if failed { told.take().or(outage) } else { outage };
            }
        }
    }

    /// Whether it is told now.
    async fn say(&self, outage: Option<&Outage>, was_refused: &mut bool) -> bool {
        let telling = self.insight.tell_outage(&self.pipeline, &self.relay, outage);
        match timeout(PATIENCE, telling).await {
            Ok(Ok(())) => return true,
            Ok(Err(failure)) if failure.fault() == Fault::Misconfigured && !*was_refused => {
                *was_refused = true;
                self.complain(&failure);
            }
            Ok(Err(failure)) => tracing::debug!(%failure, "the database is not told of an outage"),
            Err(_) => tracing::debug!("the database takes too long to be told of an outage"),
        }
        false
    }

    /// It will not get better by itself.
    fn complain(&self, failure: &Failure) {
        tracing::warn!(
            pipeline = self.pipeline,
            code = failure.code(),
            fix = failure.fix().unwrap_or("semel check --fix-sql"),
            "cannot tell the database of an outage: {failure}; events are not concerned, but status \
             and page will not show it"
        );
    }
}
