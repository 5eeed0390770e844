//! `semel keys conform`: how an HTTP endpoint treats idempotency keys, found out from outside.
//!
//! What the endpoint must offer for it is in `docs/conformance.md`; the numbers are those of the
//! list of behaviours there.

mod call;
mod crashes;
mod keys;
mod misuse;
mod probe;
mod races;
mod replay;
mod reply;
mod retention;
mod scopes;
mod sidecar;
mod sizes;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use serde_json::json;
use tokio::time::timeout;

use self::probe::{Ground, Probe};
use crate::args::KeyConformOptions;
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

/// One behaviour, and how to find out.
struct Behaviour {
    number: u8,
    title: &'static str,
    /// The routes it needs.
    routes: &'static [&'static str],
    check: fn(Probe) -> BoxFuture<'static, Result<(), Wrong>>,
}

/// Why a behaviour was not seen.
enum Wrong {
    Failed(String),
    Skipped(String),
}

/// Behaviours by number: number, check, the routes it needs, title.
macro_rules! behaviours {
    ($($number:literal $check:ident [$($route:literal)*] $title:literal;)*) => {
        pub(super) const ALL: &[super::Behaviour] = &[$(super::Behaviour {
            number: $number,
            title: $title,
            routes: &[$($route),*],
            check: |probe| Box::pin($check(probe)),
        }),*];
    };
}
use behaviours;

const ALL: [&[Behaviour]; 9] = [
    keys::ALL,
    replay::ALL,
    misuse::ALL,
    races::ALL,
    crashes::ALL,
    retention::ALL,
    scopes::ALL,
    sizes::ALL,
    sidecar::ALL,
];

pub(crate) async fn run(options: &KeyConformOptions) -> Result<Exit, Problem> {
    /// So many at once: most of them wait most of the time.
    const AT_ONCE: usize = 6;
    let ground = Arc::new(Ground::open(&options.urls).await?);
    let chosen = ALL
        .into_iter()
        .flatten()
        .filter(|behaviour| options.only.is_empty() || options.only.contains(&behaviour.number));
    let mut results =
        stream::iter(chosen.map(|behaviour| try_one(&ground, behaviour))).buffered(AT_ONCE);
    let mut report = Report::new(options.output.format);
    while let Some((behaviour, result)) = results.next().await {
        report.add(behaviour, result);
    }
    Ok(report.end())
}

async fn try_one<'b>(
    ground: &Arc<Ground>,
    behaviour: &'b Behaviour,
) -> (&'b Behaviour, Result<(), Wrong>) {
    const PATIENCE: Duration = Duration::from_secs(180);
    let missing = behaviour.routes.iter().find(|route| !ground.has(route));
    let result = if let Some(route) = missing {
        Err(Wrong::Skipped(format!("the endpoint has no route {route:?}")))
    } else {
        let checked = timeout(PATIENCE, (behaviour.check)(Probe::new(ground))).await;
        checked.unwrap_or_else(|_| Err(Wrong::Failed(format!("no end after {PATIENCE:?}"))))
    };
    (behaviour, result)
}

/// What is printed: a line each as it is known, or everything at the end.
struct Report {
    format: Format,
    behaviours: Vec<serde_json::Value>,
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Report {
    fn new(format: Format) -> Self {
        Self { format, behaviours: Vec::new(), passed: 0, failed: 0, skipped: 0 }
    }

    fn add(&mut self, behaviour: &Behaviour, result: Result<(), Wrong>) {
        let (word, count, reason) = match result {
            Ok(()) => ("pass", &mut self.passed, None),
            Err(Wrong::Failed(reason)) => ("FAIL", &mut self.failed, Some(reason)),
            Err(Wrong::Skipped(reason)) => ("skip", &mut self.skipped, Some(reason)),
        };
        *count += 1;
        let (number, title) = (behaviour.number, behaviour.title);
        match self.format {
            Format::Text => {
                let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                print(&format!("{word} {number:>3}  {title}{reason}\n"));
            }
            Format::Json => self.behaviours.push(json!({
                "number": number,
                "title": title,
                "result": word.to_lowercase(),
                "reason": reason,
            })),
        }
    }

    fn end(self) -> Exit {
        let Self { passed, failed, skipped, .. } = self;
        match self.format {
            Format::Text => {
                print(&format!("{passed} passed, {failed} failed, {skipped} skipped\n"));
            }
            Format::Json => print_json(&json!({
                "behaviours": self.behaviours,
                "passed": passed,
                "failed": failed,
                "skipped": skipped,
            })),
        }
        if failed == 0 { Exit::Done } else { Exit::Problems }
    }
}
