//! `semel top`: how fast every pipeline is, and which aggregate types keep it busy.

use std::collections::BTreeMap;
use std::time::Instant;

use semel_core::admin::{Filter, State, Stats};

use super::Desk;
use super::passing::Passing;
use super::screen::Screen;
use crate::args::TopOptions;
use crate::config::Config;
use crate::exit::{Exit, Problem};
use crate::output::{Align, Table, age, print};

/// A pipeline that is watched.
struct Watched {
    name: String,
    desk: Desk,
    passing: Passing,
    last: Option<(Instant, Stats)>,
}

pub(crate) async fn run(options: &TopOptions) -> Result<Exit, Problem> {
    let mut all = Vec::new();
    for pipeline in Config::load(&options.config.path)?.pipelines {
        let desk = Desk::of(&pipeline).await?;
        let mut passing = Passing::new(Filter::default());
        let skipped = passing.skip_present(desk.store.as_ref()).await;
        skipped.map_err(|failure| desk.problem(failure))?;
        all.push(Watched { name: pipeline.name, desk, passing, last: None });
    }
    let mut screen = Screen::new();
    let most = options.count.unwrap_or(u64::MAX);
    while screen.looks() < most && screen.goes_on(options.every).await {
        let (mut pipelines, mut types) = (pipelines(), types());
        for watched in &mut all {
            watched.look(&mut pipelines, &mut types).await?;
        }
        screen.clear();
        print(&format!("{}\n{}", pipelines.text(), types.text()));
    }
    Ok(Exit::Done)
}

fn pipelines() -> Table<7> {
    use Align::{Left, Right};
    Table::new([
        ("PIPELINE", Left),
        ("WRITTEN/S", Right),
        ("PUBLISHED/S", Right),
        ("WAITING", Right),
        ("FAILED", Right),
        ("DEAD", Right),
        ("OLDEST", Right),
    ])
}

fn types() -> Table<4> {
    use Align::{Left, Right};
    Table::new([
        ("PIPELINE", Left),
        ("AGGREGATE TYPE", Left),
        ("WRITTEN/S", Right),
        ("PUBLISHED/S", Right),
    ])
}

impl Watched {
    async fn look(
        &mut self,
        pipelines: &mut Table<7>,
        types: &mut Table<4>,
    ) -> Result<(), Problem> {
        let store = self.desk.store.as_ref();
        let problem = |failure| self.desk.problem(failure);
        let stats = store.stats().await.map_err(problem)?;
        let changed = self.passing.look(store).await.map_err(problem)?;
        let now = Instant::now();
        let waiting = stats.count(State::Pending) + stats.count(State::Publishing);
        let (written, published, seconds) = match &self.last {
            None => (0, 0, 0.0),
            Some((then, before)) => (
                total(&stats).saturating_sub(total(before)),
                stats.count(State::Published).saturating_sub(before.count(State::Published)),
                now.duration_since(*then).as_secs_f64(),
            ),
        };
        pipelines.row([
            self.name.clone(),
            rate(written, seconds),
            rate(published, seconds),
            waiting.to_string(),
            stats.count(State::Failed).to_string(),
            stats.count(State::Dead).to_string(),
            stats.oldest_pending.map_or_else(|| "-".into(), age),
        ]);
        let mut busy: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for view in &changed {
            let (written, published) = busy.entry(&view.event.aggregate_type).or_default();
            *written += u64::from(self.passing.is_new(view.event.id));
            *published += u64::from(view.state == State::Published);
        }
        for (kind, (written, published)) in busy {
            let (written, published) = (rate(written, seconds), rate(published, seconds));
            types.row([self.name.clone(), kind.to_owned(), written, published]);
        }
        self.last = Some((now, stats));
        Ok(())
    }
}

/// Every event that is there; what is deleted meanwhile only makes it look slower.
fn total(stats: &Stats) -> u64 {
    stats.counts.iter().sum()
}

fn rate(count: u64, seconds: f64) -> String {
    if seconds == 0.0 {
        return "-".into();
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate to be read by people")]
    let rate = count as f64 / seconds;
    format!("{rate:.1}")
}
