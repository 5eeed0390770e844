//! What operators did to one event, as far as the log of changes can tell: it has the words by which events
//! were chosen, and how many there were, not which.

use semel_core::admin::EventView;
use semel_core::insight::AuditEntry;
use semel_core::{Event, EventId, Failure, Fault, Insight, Timestamp};

/// A change that was made to the event, or may have been.
pub(super) struct Touched {
    pub(super) at: Timestamp,
    pub(super) how: String,
}

/// The changes since the event was made, the earliest first; none where the log is not this user's to read.
pub(super) async fn touched(
    insight: &dyn Insight,
    owner: &str,
    view: &EventView,
) -> Result<Vec<Touched>, Failure> {
    const PAGE: usize = 500;
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = match insight.activity(before, PAGE).await {
            Err(failure) if failure.fault() == Fault::Misconfigured => return Ok(Vec::new()),
            page => page?,
        };
        let is_later = |entry: &&AuditEntry| entry.at >= view.event.created_at;
        let later: Vec<_> = page.iter().take_while(is_later).collect();
        let is_last = later.len() < PAGE;
        before = page.last().map(|entry| entry.id);
        let of_owner = later.into_iter().filter(|entry| entry.pipeline == owner);
        found.extend(of_owner.filter_map(|entry| touch(entry, &view.event)));
        if is_last {
            found.reverse();
            return Ok(found);
        }
    }
}

fn touch(entry: &AuditEntry, event: &Event) -> Option<Touched> {
    let done = match entry.what.as_str() {
        "retry" => "retried",
        "discard" => "discarded",
        "replay" => "published again",
        _ => return None,
    };
    let (who, words) = (&entry.who, &entry.filter);
    let how = match (meant(words, event)?, entry.events) {
        (_, Some(0)) => return None,
        (Meant::ByItsId { of }, Some(events)) if events >= of => format!("{done} by {who}"),
        (_, Some(events)) => {
            let plural = if events == 1 { "event" } else { "events" };
            format!("perhaps {done} by {who}, who chose {words}: {events} {plural}")
        }
        (_, None) => format!("perhaps {done} by {who}, who chose {words}: it was begun"),
    };
    Some(Touched { at: entry.at, how })
}

/// How an event is among those that were chosen.
enum Meant {
    /// One of so many ids.
    ByItsId { of: u64 },
    /// Unless it was in another state at that time.
    ByItsKind,
}

/// Nothing, if the words are about other events.
fn meant(words: &str, event: &Event) -> Option<Meant> {
    let words = split(words);
    let id = |word: &String| -> Option<EventId> {
        word.strip_prefix("id:").unwrap_or(word).parse().ok()
    };
    let ids: Vec<_> = words.iter().filter_map(id).collect();
    if !ids.is_empty() {
        let is_there = ids.contains(&event.id);
        return is_there.then_some(Meant::ByItsId { of: ids.len() as u64 });
    }
    let (kind, aggregate) = (&event.aggregate_type, &event.aggregate_id);
    let fits = |word: &String| match word.split_once(':') {
        Some(("type", value)) => value == kind,
        Some(("event", value)) => value == event.event_type,
        Some(("aggregate", value)) => value == aggregate || value == format!("{kind}/{aggregate}"),
        Some(("state" | "since" | "until" | "error", _)) => true,
        _ => word == "all" || word == aggregate,
    };
    words.iter().all(fits).then_some(Meant::ByItsKind)
}

/// Words at spaces, but not inside quotes, and without these.
fn split(words: &str) -> Vec<String> {
    let (mut found, mut begun, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut rest = words.chars();
    while let Some(next) = rest.next() {
        if next.is_whitespace() && !is_quoted {
            found.extend(begun.take());
            continue;
        }
        let word = begun.get_or_insert_default();
        match next {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => word.extend(rest.next()),
            next => word.push(next),
        }
    }
    found.extend(begun);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(what: &str, filter: &str, events: Option<u64>) -> Option<String> {
        let mut event = Event::new("order", "4 2", "OrderPlaced");
        event.id = ID.parse().unwrap();
        let (who, what, filter) = ("olga".into(), what.into(), filter.into());
        let (pipeline, at) = ("orders".into(), Timestamp::UNIX_EPOCH);
        let entry = AuditEntry { id: 1, at, who, what, pipeline, filter, events };
        touch(&entry, &event).map(|touched| touched.how)
    }

    const ID: &str = "0198c0de-0000-7000-8000-000000000001";
    const OTHER: &str = "0198c0de-0000-7000-8000-000000000002";

    #[test]
    fn what_was_chosen_by_its_id_is_certain() {
        let one = format!("id:{ID}");
        assert_eq!(told("retry", &one, Some(1)).unwrap(), "retried by olga");
        assert_eq!(told("discard", ID, Some(1)).unwrap(), "discarded by olga");
        let both = format!("id:{OTHER} id:{ID}");
        assert_eq!(told("replay", &both, Some(2)).unwrap(), "published again by olga");
        let of_one = told("retry", &both, Some(1)).unwrap();
        assert_eq!(of_one, format!("perhaps retried by olga, who chose {both}: 1 event"));
        let begun = told("retry", &one, None).unwrap();
        assert_eq!(begun, format!("perhaps retried by olga, who chose {one}: it was begun"));
    }

    #[test]
    fn what_was_chosen_by_its_kind_may_be() {
        for words in [
            "all",
            "state:dead",
            "state:dead event:OrderPlaced type:order aggregate:\"4 2\" since:1h",
            "aggregate:order/\"4 2\"",
            "\"4 2\" error:\"E-KAFKA: \\\"no\\\"\"",
        ] {
            let told = told("retry", words, Some(3)).expect(words);
            assert_eq!(told, format!("perhaps retried by olga, who chose {words}: 3 events"));
        }
    }

    #[test]
    fn what_was_about_others_is_not_told() {
        for words in ["aggregate:42", "type:payment", "event:OrderPaid", "7", "aggregate:a/\"4 2\""]
        {
            assert_eq!(told("retry", words, Some(3)), None, "{words}");
        }
        assert_eq!(told("retry", &format!("id:{OTHER}"), Some(1)), None);
        assert_eq!(told("retry", "state:dead", Some(0)), None, "there were none");
        assert_eq!(told("reveal", &format!("id:{ID}"), Some(1)), None, "a look changes nothing");
    }
}
