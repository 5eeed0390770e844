//! The life of an event, step by step: written, due, changed by operators, tried, published or given up,
//! applied.

use semel_core::Timestamp;
use semel_core::admin::{EventView, State};
use serde_json::{Value, json};

use super::touched::Touched;
use crate::output::plain;

/// What happened, and when, as far as it is known.
type Step = (Option<Timestamp>, String);

/// What is known of an event.
pub(super) struct Life {
    pub(super) view: EventView,
    /// By operators, the earliest first.
    pub(super) touched: Vec<Touched>,
    /// By which consumers, and when; the earliest first.
    pub(super) applied: Vec<(String, Timestamp)>,
}

/// One line for each step, for people.
pub(super) fn text(life: &Life) -> String {
    let mut text = String::from("life\n");
    for (at, what) in steps(life) {
        let at = at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        text += &format!("  {at:<32}{}\n", plain(&what));
    }
    text
}

/// The same for programs.
pub(super) fn json(life: &Life) -> Value {
    let step = |(at, what): Step| json!({ "at": at, "what": what });
    steps(life).into_iter().map(step).collect()
}

fn steps(life: &Life) -> Vec<Step> {
    let Life { view, touched, applied } = life;
    let event = &view.event;
    let mut steps: Vec<Step> = vec![(Some(event.created_at), "written".into())];
    if let Some(at) = event.available_at {
        steps.push((Some(at), "due, not before".into()));
    }
    // What failed before is not counted any more: an operator began anew.
    let last = touched.last().map(|last| last.at);
    let (before, after): (Vec<_>, Vec<_>) =
        applied.iter().partition(|(_, at)| last.is_some_and(|last| *at < last));
    let effect = |(who, at): &(String, Timestamp)| (Some(*at), format!("applied by {who}"));
    let mut past: Vec<_> = touched.iter().map(|one| (Some(one.at), one.how.clone())).collect();
    past.extend(before.into_iter().map(effect));
    past.sort_by_key(|(at, _)| *at);
    steps.extend(past);
    if view.attempts > 0 {
        let plural = if view.attempts == 1 { "attempt" } else { "attempts" };
        let why = view.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        steps.push((None, format!("{} failed {plural}{why}", view.attempts)));
    }
    let (at, what) = match view.state {
        State::Pending => {
            (None, "waits to be published, or behind another of its aggregate".into())
        }
        State::Publishing => (None, "is being published".into()),
        State::Published => (view.published_at, "published: the sink confirmed it".into()),
        State::Failed => {
            (view.next_attempt, format!("is tried again: attempt {}", view.attempts + 1))
        }
        State::Dead => {
            // One that was refused at sight has no attempt to tell the reason.
            let why = view.error.as_ref().filter(|_| view.attempts == 0);
            let why = why.map(|error| format!(" ({error})")).unwrap_or_default();
            (None, format!("dead letter{why}: semel dead retry, or semel dead discard"))
        }
        State::Discarded => (None, "given up by an operator".into()),
    };
    steps.push((at, what));
    steps.extend(after.into_iter().map(effect));
    steps
}

#[cfg(test)]
mod tests {
    use semel_core::Event;

    use super::*;

    fn told(life: &Life) -> Vec<String> {
        steps(life).into_iter().map(|(_, what)| what).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_life_has_its_steps_in_order() {
        let mut view = EventView::pending(Event::new("order", "42", "OrderPlaced"));
        view.attempts = 2;
        view.error = Some("E-KAFKA: no".into());
        view.state = State::Published;
        view.published_at = Some(at(9));
        let touch = |second, how: &str| Touched { at: at(second), how: how.into() };
        let touched = vec![touch(3, "retried by olga"), touch(7, "published again by olga")];
        let applied = vec![("payments".into(), at(5)), ("emails".into(), at(9))];
        let expected = [
            "written",
            "retried by olga",
            "applied by payments",
            "published again by olga",
            "2 failed attempts: E-KAFKA: no",
            "published: the sink confirmed it",
            "applied by emails",
        ];
        assert_eq!(told(&Life { view, touched, applied }), expected);
    }

    #[test]
    fn what_follows_a_failure_is_told_with_its_reason_and_its_time() {
        let mut view = EventView::pending(Event::new("order", "42", "OrderPlaced"));
        view.error = Some("too large".into());
        view.state = State::Dead;
        let mut life = Life { view, touched: Vec::new(), applied: Vec::new() };
        let last = told(&life).pop().unwrap();
        assert_eq!(last, "dead letter (too large): semel dead retry, or semel dead discard");
        (life.view.state, life.view.attempts) = (State::Failed, 2);
        life.view.next_attempt = Some(Timestamp::UNIX_EPOCH);
        let last = steps(&life).pop().unwrap();
        assert_eq!(last, (Some(Timestamp::UNIX_EPOCH), "is tried again: attempt 3".into()));
    }
}
