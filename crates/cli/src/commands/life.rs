//! The life of an event, step by step: written, due, tried, published or given up, applied.

use semel_core::Timestamp;
use semel_core::admin::{EventView, State};
use serde_json::{Value, json};

use crate::output::plain;

/// What happened, and when, as far as it is known.
type Step = (Option<Timestamp>, String);

/// One line for each step, for people.
pub(super) fn text(view: &EventView, applied: &[(String, Timestamp)]) -> String {
    let mut text = String::from("life\n");
    for (at, what) in steps(view, applied) {
        let at = at.map_or_else(|| "-".to_owned(), |at| at.to_string());
        text += &format!("  {at:<32}{}\n", plain(&what));
    }
    text
}

/// The same for programs.
pub(super) fn json(view: &EventView, applied: &[(String, Timestamp)]) -> Value {
    let step = |(at, what): Step| json!({ "at": at, "what": what });
    steps(view, applied).into_iter().map(step).collect()
}

fn steps(view: &EventView, applied: &[(String, Timestamp)]) -> Vec<Step> {
    let event = &view.event;
    let mut steps: Vec<Step> = vec![(Some(event.created_at), "written".into())];
    if let Some(at) = event.available_at {
        steps.push((Some(at), "due, not before".into()));
    }
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
    steps.extend(applied.iter().map(|(who, at)| (Some(*at), format!("applied by {who}"))));
    steps
}

#[cfg(test)]
mod tests {
    use semel_core::Event;

    use super::*;

    #[test]
    fn a_life_has_its_steps_in_order() {
        let mut view = EventView::pending(Event::new("order", "42", "OrderPlaced"));
        view.attempts = 2;
        view.error = Some("E-KAFKA: no".into());
        view.state = State::Published;
        view.published_at = Some(Timestamp::UNIX_EPOCH);
        let told: Vec<_> = steps(&view, &[("payments".into(), Timestamp::UNIX_EPOCH)])
            .into_iter()
            .map(|(_, what)| what)
            .collect();
        let expected = [
            "written",
            "2 failed attempts: E-KAFKA: no",
            "published: the sink confirmed it",
            "applied by payments",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_follows_a_failure_is_told_with_its_reason_and_its_time() {
        let mut view = EventView::pending(Event::new("order", "42", "OrderPlaced"));
        view.error = Some("too large".into());
        view.state = State::Dead;
        let (_, last) = steps(&view, &[]).pop().unwrap();
        assert_eq!(last, "dead letter (too large): semel dead retry, or semel dead discard");
        (view.state, view.attempts) = (State::Failed, 2);
        view.next_attempt = Some(Timestamp::UNIX_EPOCH);
        let last = steps(&view, &[]).pop().unwrap();
        assert_eq!(last, (Some(Timestamp::UNIX_EPOCH), "is tried again: attempt 3".into()));
    }
}
