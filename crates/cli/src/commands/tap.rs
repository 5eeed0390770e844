//! `semel tap`: events as they pass.

use semel_core::admin::{EventView, State};

use super::Desk;
use super::events::json;
use super::passing::Passing;
use super::screen::Screen;
use crate::args::TapOptions;
use crate::exit::{Exit, Problem};
use crate::output::{Format, plain, print, print_json_line};

pub(crate) async fn run(options: &TapOptions) -> Result<Exit, Problem> {
    let desk = Desk::open(&options.pipeline).await?;
    let store = desk.store.as_ref();
    let problem = |failure| desk.problem(failure);
    let mut passing = Passing::new(options.filter.in_state(None));
    passing.skip_present(store).await.map_err(problem)?;
    let (mut screen, mut left) = (Screen::new(), options.count.unwrap_or(usize::MAX));
    while left > 0 && screen.goes_on(options.every).await {
        for mut view in passing.look(store).await.map_err(problem)?.into_iter().take(left) {
            left -= 1;
            if options.payload
                && let Some(whole) = store.get(view.event.id).await.map_err(problem)?
            {
                view.event = whole.event;
            }
            match options.output.format {
                Format::Text => print(&line(&view, options.payload)),
                Format::Json => print_json_line(&json(&view, options.payload)),
            }
        }
    }
    Ok(Exit::Done)
}

fn line(view: &EventView, with_payload: bool) -> String {
    let event = &view.event;
    let at = match view.state {
        State::Published => view.published_at.unwrap_or(event.created_at),
        _ => event.created_at,
    };
    let (lane, kind, id) = (event.lane(), &event.event_type, event.id);
    let mut line = format!("{at}  {:<10}  {lane}  {kind}  {id}", view.state.as_str());
    if let Some(error) = view.error.as_ref().filter(|_| view.state != State::Published) {
        line += &format!("  {error}");
    }
    if with_payload {
        line += &format!("  {}", String::from_utf8_lossy(event.payload.bytes()));
    }
    plain(&line) + "\n"
}
