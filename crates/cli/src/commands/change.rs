//! What an operator does to events: try them again, give them up, publish them once more.

use std::collections::BTreeSet;

use semel_backends::Sweep;
use semel_core::admin::{Filter, Selection, State};
use semel_core::{AdminStore, EventId, Failure};
use serde_json::json;

#[cfg(feature = "page")]
use super::api::Api;
use super::audit::Noted;
#[cfg(feature = "page")]
use super::confirm::tell_to_wait;
use super::confirm::{Progress, says_yes};
use super::{Desk, count_matching};
use crate::args::ChangeOptions;
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

#[derive(Clone, Copy)]
pub(crate) enum Change {
    Retry,
    Discard,
    Replay,
}

impl Change {
    pub(crate) async fn run(self, options: &ChangeOptions) -> Result<Exit, Problem> {
        #[cfg(feature = "page")]
        let count = match Api::of(&options.api)? {
            Some(api) => self.run_over(&api, options).await?,
            None => self.run_here(options).await?,
        };
        #[cfg(not(feature = "page"))]
        let count = self.run_here(options).await?;
        let done = self.done();
        match options.output.format {
            Format::Json => print_json(&json!({ done: count, "dry_run": options.dry_run })),
            Format::Text => print(&self.in_words(options, count)),
        }
        Ok(Exit::Done)
    }

    /// Says what became of letters with a broker.
    pub(super) fn tell(self, options: &ChangeOptions, swept: &Sweep) {
        let (Sweep { done: count, left, reasons, .. }, done) = (swept, self.done());
        let reason = |why: &Failure| format!("{}: {why}", why.code());
        let reasons: Vec<_> = reasons.iter().map(reason).collect();
        if options.output.format == Format::Json {
            return print_json(&json!({
                done: count, "dry_run": options.dry_run, "left": left, "reasons": reasons,
            }));
        }
        print(&self.in_words(options, *count));
        if *left > 0 {
            print(&format!("{left} stay where they are\n"));
            reasons.iter().for_each(|why| print(&format!("  {why}\n")));
        }
    }

    fn in_words(self, options: &ChangeOptions, count: usize) -> String {
        let (would, done) = (if options.dry_run { "would be " } else { "" }, self.done());
        format!("{count} events {would}{done}\n")
    }

    /// In the database; who did it is written down there.
    async fn run_here(self, options: &ChangeOptions) -> Result<usize, Problem> {
        let desk = Desk::of_owner(&options.owner).await?;
        let (store, chosen) = (desk.store.as_ref(), options.selection(self.usual_state()));
        let problem = |failure| desk.problem(failure);
        if options.dry_run {
            return self.count(store, &chosen).await.map_err(problem);
        }
        let words = options.in_words(self.usual_state()).join(" ");
        let note = || Noted::begin(&*desk.database, self.as_str(), &desk.owner, &words);
        match &chosen {
            Selection::Ids(_) => {
                let noted = note().await.map_err(problem)?;
                let done = self.apply(store, &chosen).await.map_err(problem)?;
                noted.end(done).await;
                Ok(done)
            }
            Selection::Matching(filter) => {
                let ids = matching(store, filter).await.map_err(problem)?;
                self.confirm(options, ids.len(), &desk.place)?;
                let noted = note().await.map_err(problem)?;
                let applied = self.apply_bulk(store, &ids).await;
                let (Ok(done) | Err((_, done))) = &applied;
                noted.end(*done).await;
                applied.map_err(|(failure, done)| {
                    let place = format!("{}, after {done} of {} events", desk.place, ids.len());
                    Problem::new(failure, place, "what was done before holds; repeating it is safe")
                })
            }
        }
    }

    /// By a relay; it looks whether the caller may, and writes it down.
    #[cfg(feature = "page")]
    async fn run_over(self, api: &Api, options: &ChangeOptions) -> Result<usize, Problem> {
        options.check_askable()?;
        let name = api.pipeline(options.owner.pipeline.name.as_deref()).await?;
        let (mut count, all) = (0, options.in_words(self.usual_state()));
        if options.all && !options.dry_run {
            let matching = api.change(&name, self.as_str(), &all.join(" "), true).await?;
            self.confirm(options, matching, &format!("pipeline.{name}"))?;
            tell_to_wait(&format!("the relay of {name}"));
        }
        for words in all {
            let changed = api.change(&name, self.as_str(), &words, options.dry_run).await;
            let before = format!("after {count} events that were {}", self.done());
            let is_late = count > 0 && !options.dry_run;
            count +=
                changed.map_err(|early| if is_late { early.also_at(before) } else { early })?;
        }
        Ok(count)
    }

    /// Many events at once are asked about, unless there are none.
    pub(super) fn confirm(
        self,
        options: &ChangeOptions,
        count: usize,
        place: &str,
    ) -> Result<(), Problem> {
        let done = self.done();
        let question = format!("{count} events of {place} will be {done}. Go on?");
        if options.yes || count == 0 || says_yes(&question) {
            return Ok(());
        }
        let what = format!("nobody confirmed that {count} events are {done}");
        let failure = Failure::refused("E-NOT-CONFIRMED", what)
            .with_fix("add --yes, or --dry-run to only count; at a terminal you are asked");
        Err(Problem::new(failure, place, super::EFFECT).of_usage())
    }

    /// A few at a time: small transactions let the relays through, and ctrl-C loses nothing.
    async fn apply_bulk(
        self,
        store: &dyn AdminStore,
        ids: &[EventId],
    ) -> Result<usize, (Failure, usize)> {
        const AT_ONCE: usize = 500;
        let progress = Progress::new(ids.len());
        let mut done = 0;
        for ids in ids.chunks(AT_ONCE) {
            let changed = self.apply(store, &Selection::Ids(ids.to_vec())).await;
            done += changed.map_err(|failure| (failure, done))?;
            progress.show(done);
        }
        progress.end();
        Ok(done)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard => "discard",
            Self::Replay => "replay",
        }
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Discard => "discarded",
            Self::Replay => "replayed",
        }
    }

    /// The state of the events that `--all` means.
    const fn usual_state(self) -> State {
        match self {
            Self::Retry | Self::Discard => State::Dead,
            Self::Replay => State::Published,
        }
    }

    /// Whether an event that was named by its id can be changed.
    fn concerns(self, state: State) -> bool {
        match self {
            Self::Retry | Self::Discard => matches!(state, State::Dead | State::Failed),
            Self::Replay => state == State::Published,
        }
    }

    async fn apply(self, store: &dyn AdminStore, chosen: &Selection) -> Result<usize, Failure> {
        match self {
            Self::Retry => store.retry(chosen).await,
            Self::Discard => store.discard(chosen).await,
            Self::Replay => store.replay(chosen).await,
        }
    }

    /// How many events it would concern.
    async fn count(self, store: &dyn AdminStore, chosen: &Selection) -> Result<usize, Failure> {
        match chosen {
            Selection::Ids(ids) => {
                let mut count = 0;
                for id in ids.iter().collect::<BTreeSet<_>>() {
                    let view = store.get(*id).await?;
                    count += usize::from(view.is_some_and(|view| self.concerns(view.state)));
                }
                Ok(count)
            }
            Selection::Matching(filter) => count_matching(store, filter, |_| true).await,
        }
    }
}

/// The events that match, the oldest first. All of them are listed before one is changed: what is
/// changed leaves the listing, so that the next page would begin too far on where pages are counted;
/// and a relay may bring it back in the same state, so that it would be changed twice.
async fn matching(store: &dyn AdminStore, filter: &Filter) -> Result<Vec<EventId>, Failure> {
    const PAGE: usize = 1000;
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(filter, after, PAGE).await?;
        ids.extend(page.events.iter().map(|view| view.event.id));
        after = page.next;
        if after.is_none() {
            return Ok(ids);
        }
    }
}
