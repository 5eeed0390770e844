//! `semel dead … --sink NAME --queue QUEUE`: dead letters that consumers left with a broker.

use std::collections::BTreeSet;
use std::path::Path;

use semel_backends::{DeadLetter, DeadQueue, Fate, Sweep, sweep};
use semel_core::Failure;
use semel_core::admin::{EventView, State};
use serde_json::{Value, json};

use super::audit::Noted;
use super::change::Change;
use super::confirm::Progress;
use super::{Desk, EFFECT, events};
use crate::args::{BuriedOption, DeadChangeOptions, DeadListOptions, DeadRetryOptions};
use crate::args::{DeadShowOptions, OwnerOption};
use crate::config::{Config, Pipeline, Sink};
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, plain, print, print_json};

/// The oldest letters; all of them stay.
pub(super) async fn list(options: &DeadListOptions) -> Result<Exit, Problem> {
    options.check_buried()?;
    let page = &options.page;
    let mut yard = Yard::open(&options.buried, &page.owner).await?;
    let (mut letters, limit) = (Vec::new(), page.limit);
    let look = yard.look(limit, |some| {
        letters.extend(some);
        letters.len() < limit
    });
    look.await?;
    letters.truncate(limit);
    match page.output.format {
        Format::Text => {
            table(&letters).print();
            let all = yard.queue.count();
            if all > letters.len() {
                print(&format!("there are more, about {all} in all: --limit N\n"));
            }
        }
        Format::Json => print_json(&json!({
            "events": letters.iter().map(|letter| in_json(letter, false)).collect::<Vec<_>>(),
            "next": Value::Null,
        })),
    }
    Ok(Exit::Done)
}

/// One letter; it stays.
pub(super) async fn show(options: &DeadShowOptions) -> Result<Exit, Problem> {
    options.check_buried()?;
    let show = &options.show;
    let mut yard = Yard::open(&options.buried, &show.owner).await?;
    let is_it = |letter: &DeadLetter| letter.event.as_ref().is_some_and(|it| it.id == show.id);
    let mut found = None;
    let look = yard.look(usize::MAX, |some| {
        found = some.into_iter().find(is_it);
        found.is_none()
    });
    look.await?;
    let letter = found.ok_or_else(|| yard.problem(events::not_found(show.id)))?;
    match show.output.format {
        Format::Text => print(&in_words(&letter, show.payload)),
        Format::Json => print_json(&in_json(&letter, show.payload)),
    }
    Ok(Exit::Done)
}

/// Back to where they came from.
pub(super) async fn retry(options: &DeadRetryOptions) -> Result<Exit, Problem> {
    let fate = Fate::Back { otherwise: options.to.as_deref() };
    change(Change::Retry, &options.rest, fate).await
}

/// For good.
pub(super) async fn discard(options: &DeadChangeOptions) -> Result<Exit, Problem> {
    change(Change::Discard, options, Fate::Gone).await
}

async fn change(
    change: Change,
    options: &DeadChangeOptions,
    fate: Fate<'_>,
) -> Result<Exit, Problem> {
    options.check_buried()?;
    let (buried, options) = (&options.buried, &options.change);
    let Yard { mut queue, place, publishers } = Yard::open(buried, &options.owner).await?;
    let count = queue.count();
    if options.dry_run {
        queue.close().await;
        change.tell(options, &Sweep { done: count, ..Sweep::default() });
        return Ok(Exit::Done);
    }
    change.confirm(options, count, &place)?;
    let what = if matches!(fate, Fate::Gone) { "discard" } else { "retry" };
    let noted = note(what, buried, &publishers).await?;
    let progress = Progress::new(count);
    let swept = sweep(&mut *queue, fate, &mut |done| progress.show(done)).await;
    progress.end();
    for entry in noted {
        entry.end(swept.done).await;
    }
    if let Some(failure) = swept.ended_by {
        let place = format!("{place}, after {} of {count} letters", swept.done);
        let effect = "these hold, the others are where they were; repeating it is safe";
        return Err(Problem::new(failure, place, effect));
    }
    change.tell(options, &swept);
    Ok(if swept.left == 0 { Exit::Done } else { Exit::Problems })
}

/// Writes down what is going to be done, once in each database from which that sink is published to.
async fn note(
    what: &str,
    buried: &BuriedOption,
    publishers: &[Pipeline],
) -> Result<Vec<Noted>, Problem> {
    let (sink, queue) = buried.place().unwrap_or_default();
    let words = format!("dead letters of sink:{sink} queue:{queue}");
    let (mut noted, mut known) = (Vec::new(), BTreeSet::new());
    for pipeline in publishers {
        if known.insert(pipeline.source.url.reveal()) {
            let desk = Desk::of(pipeline).await?;
            let entry = Noted::begin(&*desk.database, what, &desk.owner, &words).await;
            noted.push(entry.map_err(|failure| desk.problem(failure))?);
        }
    }
    Ok(noted)
}

/// A queue of letters, and how failures of it are told.
struct Yard {
    queue: Box<dyn DeadQueue>,
    place: String,
    /// The pipelines that publish to the same sink.
    publishers: Vec<Pipeline>,
}

impl Yard {
    async fn open(buried: &BuriedOption, owner: &OwnerOption) -> Result<Self, Problem> {
        let (name, queue) = buried.place().unwrap_or_default();
        let (sink, publishers) = find(&owner.pipeline.config.path, name)?;
        let place = format!("sink.{name} ({}), {queue}", sink.technology());
        let Some(open) = &sink.connect.letters else {
            return Err(Problem::new(holds_none(&sink), place, EFFECT).of_usage());
        };
        match open(queue.to_owned()).await {
            Ok(queue) => Ok(Self { queue, place, publishers }),
            Err(failure) => Err(Problem::new(failure, place, EFFECT)),
        }
    }

    /// Shows letters, oldest first and about so many at a time, as long as more are wanted; all are
    /// given back.
    async fn look(
        &mut self,
        at_once: usize,
        mut wants_more: impl FnMut(Vec<DeadLetter>) -> bool,
    ) -> Result<(), Problem> {
        const PAGE: usize = 1000;
        let looked = loop {
            match self.queue.next(PAGE.min(at_once)).await {
                Ok(some) => {
                    if some.is_empty() || !wants_more(some) {
                        break Ok(());
                    }
                }
                Err(failure) => break Err(self.problem(failure)),
            }
        };
        self.queue.close().await;
        looked
    }

    fn problem(&self, failure: Failure) -> Problem {
        Problem::new(failure, &self.place, EFFECT)
    }
}

/// The sink, and who publishes to it.
fn find(config: &Path, name: &str) -> Result<(Sink, Vec<Pipeline>), Problem> {
    let Config { sinks, mut pipelines, .. } = Config::load(config)?;
    pipelines.retain(|pipeline| pipeline.sinks.iter().any(|sink| sink.name == name));
    let names: Vec<_> = sinks.iter().map(|sink| sink.name.clone()).collect();
    let sink = sinks.into_iter().find(|sink| sink.name == name);
    sink.map(|sink| (sink, pipelines)).ok_or_else(|| {
        let failure = Failure::misconfigured("E-DEAD-SINK", format!("there is no sink {name:?}"))
            .with_fix(format!("give --sink one of {}", names.join(", ")));
        Problem::new(failure, "the configuration", EFFECT).of_usage()
    })
}

/// A sink that is not read by consumers of semel.
fn holds_none(sink: &Sink) -> Failure {
    let (name, kind) = (&sink.name, sink.technology());
    let what = format!("sink.{name} holds no dead letters: no consumer of semel reads from {kind}");
    Failure::misconfigured("E-DEAD-NO-LETTERS", what).with_fix(
        "name a sink of type kafka, rabbitmq, nats, redis or sqs; letters in a table have --consumer \
         NAME --database URL",
    )
}

fn table(letters: &[DeadLetter]) -> Table<8> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("ID", Left),
        ("AGGREGATE", Left),
        ("TYPE", Left),
        ("CREATED", Left),
        ("ATTEMPTS", Right),
        ("CONSUMER", Left),
        ("ORIGIN", Left),
        ("ERROR", Left),
    ]);
    for DeadLetter { event, said, .. } in letters {
        let [id, aggregate, kind, created] = match event {
            Some(event) => [
                event.id.to_string(),
                event.lane().to_string(),
                event.event_type.clone(),
                event.created_at.to_string(),
            ],
            None => ["no event", "", "", ""].map(str::to_owned),
        };
        let said = said.clone().unwrap_or_default();
        let attempts = said.attempts.to_string();
        table.row([id, aggregate, kind, created, attempts, said.consumer, said.origin, said.error]);
    }
    table
}

fn in_words(letter: &DeadLetter, with_payload: bool) -> String {
    let mut text = String::new();
    if let Some(said) = &letter.said {
        let lines = [("code", &said.code), ("consumer", &said.consumer), ("origin", &said.origin)];
        lines.iter().for_each(|(name, value)| text += &format!("{name:<16}{}\n", plain(value)));
    }
    if let Some(view) = view(letter) {
        text += &events::text(&view, with_payload);
    }
    text
}

fn in_json(letter: &DeadLetter, with_payload: bool) -> Value {
    let said = letter.said.clone().unwrap_or_default();
    let mut value = match view(letter) {
        Some(view) => events::json(&view, with_payload),
        None => json!({
            "id": Value::Null, "state": State::Dead,
            "attempts": said.attempts, "error": said.error,
        }),
    };
    value["error_code"] = said.code.into();
    value["consumer"] = said.consumer.into();
    value["origin"] = said.origin.into();
    value
}

/// The letter as an event of an outbox would be seen.
fn view(letter: &DeadLetter) -> Option<EventView> {
    let mut view = EventView::pending(letter.event.clone()?);
    view.state = State::Dead;
    if let Some(said) = &letter.said {
        view.attempts = said.attempts;
        view.error = Some(said.error.clone());
    }
    Some(view)
}
