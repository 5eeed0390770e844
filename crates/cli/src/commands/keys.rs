//! `semel keys`: what is running, what is done, and making a key free by hand.

use std::sync::Arc;

use semel_core::Failure;
use semel_core::idempotency::{KeyAdmin, KeyView, ScopedKey};
use serde_json::{Value, json};

use super::audit::Noted;
use crate::args::{KeyListOptions, KeyReleaseOptions, KeyShowOptions, KeysCommand};
use crate::exit::{Exit, Problem};
use crate::output::{Align, Format, Table, age, print, print_json};
use crate::wiring::{DatabaseKind, Keys, Missing, connect_keys, shown};

pub(crate) async fn run(command: &KeysCommand) -> Result<Exit, Problem> {
    match command {
        KeysCommand::List(options) => list(options).await,
        KeysCommand::Show(options) => show(options).await,
        KeysCommand::Release(options) => release(options).await,
        #[cfg(feature = "proxy")]
        KeysCommand::Conform(options) => super::conform::run(options).await,
    }
}

/// A store, and how failures of it are told.
struct Desk {
    store: Arc<dyn Keys>,
    place: String,
}

impl Desk {
    async fn open(url: &str) -> Result<Self, Problem> {
        let place = shown(url);
        if url == "memory:" {
            let what = "keys in memory can only be seen by the process that has them";
            let failure = Failure::misconfigured("E-STORE-URL", what)
                .with_fix("give --store the URL of a server or a file");
            return Err(Problem::new(failure, place, EFFECT));
        }
        match connect_keys(url).await {
            Ok(store) => Ok(Self { store, place }),
            Err(failure) => Err(Problem::new(failure, place, EFFECT)),
        }
    }

    fn problem(&self, failure: Failure) -> Problem {
        Problem::new(failure, &self.place, EFFECT)
    }
}

const EFFECT: &str = "no key was changed, unless it is said above";

async fn list(options: &KeyListOptions) -> Result<Exit, Problem> {
    let desk = Desk::open(&options.store.url).await?;
    let page = desk.store.list(options.after.as_deref(), options.limit).await;
    let page = page.map_err(|failure| desk.problem(failure))?;
    match options.output.format {
        Format::Text => {
            table(&page.keys).print();
            if let Some(place) = page.next {
                print(&format!("there may be more: --after {place}\n"));
            }
        }
        Format::Json => print_json(&json!({
            "keys": page.keys.iter().map(json).collect::<Vec<_>>(),
            "next": page.next,
        })),
    }
    Ok(Exit::Done)
}

async fn show(options: &KeyShowOptions) -> Result<Exit, Problem> {
    let desk = Desk::open(&options.store.url).await?;
    let found = desk.store.look(&options.key).await.map_err(|failure| desk.problem(failure))?;
    let Some(view) = found else {
        let what = format!("the key {} is free", options.key);
        let failure = Failure::refused("E-KEY-FREE", what)
            .with_fix("look for others with `semel keys list`; it may have expired");
        return Err(desk.problem(failure));
    };
    match options.output.format {
        Format::Text => table(&[view]).print(),
        Format::Json => print_json(&json(&view)),
    }
    Ok(Exit::Done)
}

/// Each on its own: one that is free already is no mistake.
async fn release(options: &KeyReleaseOptions) -> Result<Exit, Problem> {
    let desk = Desk::open(&options.store.url).await?;
    let mut released = Vec::new();
    for key in &options.keys {
        let was_used = free(&*desk.store, &options.store.url, key, options.dry_run).await;
        let was_used = was_used.map_err(|failure| desk.problem(failure))?;
        if options.output.format == Format::Text {
            let word = match (was_used, options.dry_run) {
                (true, true) => "would be released",
                (true, false) => "released",
                (false, _) => "was free",
            };
            print(&format!("{key}  {word}\n"));
        }
        if was_used {
            released.push(key.to_string());
        }
    }
    if options.output.format == Format::Json {
        print_json(&json!({ "released": released, "dry_run": options.dry_run }));
    }
    Ok(Exit::Done)
}

async fn free(
    store: &dyn Keys,
    url: &str,
    key: &ScopedKey,
    dry_run: bool,
) -> Result<bool, Failure> {
    if dry_run {
        return Ok(store.look(key).await?.is_some());
    }
    let noted = note(url, key).await?;
    let was_used = KeyAdmin::free(store, key).await?;
    if let Some(noted) = noted {
        noted.end(usize::from(was_used)).await;
    }
    Ok(was_used)
}

/// A store that is no database has no log of changes.
async fn note(url: &str, key: &ScopedKey) -> Result<Option<Noted>, Failure> {
    let Ok(kind) = DatabaseKind::of_url(url) else { return Ok(None) };
    let database = (kind.connect)(url.to_owned(), Missing::Refuse).await?;
    Noted::begin(&*database, "free key", "", &format!("key:{key}")).await.map(Some)
}

fn table(keys: &[KeyView]) -> Table<5> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("KEY", Left),
        ("STATE", Left),
        ("ATTEMPT", Right),
        ("LASTS", Right),
        ("BYTES", Right),
    ]);
    for view in keys {
        table.row([
            view.key.to_string(),
            view.state.as_str().into(),
            view.attempt.map_or_else(String::new, |attempt| attempt.to_string()),
            age(view.remaining),
            view.bytes.to_string(),
        ]);
    }
    table
}

/// A key for programs.
fn json(view: &KeyView) -> Value {
    json!({
        "key": view.key.to_string(),
        "state": view.state.as_str().to_lowercase().replace(' ', "_"),
        "attempt": view.attempt,
        "lasts_seconds": view.remaining.as_secs_f64(),
        "bytes": view.bytes,
    })
}
