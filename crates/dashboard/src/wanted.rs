//! What is looked for, in words: `state:dead type:order aggregate:42 event:OrderPlaced since:1h`.
//! Inside quotes spaces and slashes mean nothing, and `\"` and `\\` are a quote and a backslash.

use semel_core::admin::{Filter, State};
use semel_core::{EventId, Timestamp};

/// What somebody looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) filter: Filter,
    /// One event, by its id.
    pub(crate) id: Option<EventId>,
}

impl Wanted {
    /// Reads the words; a word without a qualifier is an id of an event or of an aggregate.
    pub(crate) fn parse(words: &str, now: Timestamp) -> Result<Self, String> {
        let mut wanted = Self::default();
        for word in split(words)? {
            wanted.add(&word, now)?;
        }
        Ok(wanted)
    }

    fn add(&mut self, word: &Word, now: Timestamp) -> Result<(), String> {
        let filter = &mut self.filter;
        let Some((qualifier, value)) = word.text.split_once(':') else {
            match word.text.parse() {
                Ok(id) => self.id = Some(id),
                Err(_) => filter.aggregate_id = Some(word.text.clone()),
            }
            return Ok(());
        };
        let text = Some(value.to_owned());
        match qualifier {
            "state" => filter.state = Some(state(value)?),
            "type" => filter.aggregate_type = text,
            "aggregate" => match word.slash {
                Some(slash) => {
                    let begin = qualifier.len() + 1;
                    filter.aggregate_type = Some(word.text[begin..slash].to_owned());
                    filter.aggregate_id = Some(word.text[slash + 1..].to_owned());
                }
                None => filter.aggregate_id = text,
            },
            "event" => filter.event_type = text,
            "since" => filter.since = Some(time(value, now)?),
            "until" => filter.until = Some(time(value, now)?),
            "id" => self.id = Some(value.parse().map_err(|_| format!("{value:?} is no id"))?),
            _ => {
                return Err(format!(
                    "{qualifier:?} is not known; there are state, type, aggregate, event, since, \
                     until and id"
                ));
            }
        }
        Ok(())
    }
}

fn state(value: &str) -> Result<State, String> {
    let names = State::ALL.map(State::as_str).join(", ");
    let found = State::ALL.into_iter().find(|state| state.as_str() == value);
    found.ok_or_else(|| format!("state {value:?} is not known; there are {names}"))
}

/// A time, or how long ago.
fn time(value: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(time) = value.parse() {
        return Ok(time);
    }
    let ago = humantime::parse_duration(value).ok();
    ago.and_then(|ago| now.checked_sub(ago).ok())
        .ok_or_else(|| format!("{value:?} is no time; write 1h or 2026-01-31T08:00:00Z"))
}

/// What stands between spaces, without its quotes.
#[derive(Default)]
struct Word {
    text: String,
    /// Where the first slash outside quotes is.
    slash: Option<usize>,
}

/// Words at spaces, but not inside quotes.
fn split(words: &str) -> Result<Vec<Word>, String> {
    let (mut found, mut begun, mut quoted) = (Vec::new(), None::<Word>, false);
    let mut rest = words.chars();
    while let Some(c) = rest.next() {
        if c.is_whitespace() && !quoted {
            found.extend(begun.take());
            continue;
        }
        let word = begun.get_or_insert_default();
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => {
                let next = rest.next();
                if !matches!(next, Some('"' | '\\')) {
                    word.text.push('\\');
                }
                word.text.extend(next);
            }
            c => {
                if c == '/' && !quoted && word.slash.is_none() {
                    word.slash = Some(word.text.len());
                }
                word.text.push(c);
            }
        }
    }
    if quoted {
        return Err("a quote is not closed".into());
    }
    found.extend(begun);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

    #[test]
    fn words_make_a_filter() {
        let words = "state:dead type:order  aggregate:\"4 2\" event:Placed since:1h";
        let filter = Wanted::parse(words, NOW).unwrap().filter;
        assert_eq!(filter.state, Some(State::Dead));
        assert_eq!(filter.aggregate_type.as_deref(), Some("order"));
        assert_eq!(filter.aggregate_id.as_deref(), Some("4 2"));
        assert_eq!(filter.event_type.as_deref(), Some("Placed"));
        assert_eq!(filter.since.unwrap().as_second(), NOW.as_second() - 3600);
    }

    #[test]
    fn a_bare_word_is_an_id() {
        let id = EventId::now();
        assert_eq!(Wanted::parse(&id.to_string(), NOW).unwrap().id, Some(id));
        let lane = Wanted::parse("aggregate:order/42", NOW).unwrap().filter;
        assert_eq!(lane.aggregate_type.as_deref(), Some("order"));
        assert_eq!(Wanted::parse("42", NOW).unwrap().filter.aggregate_id.as_deref(), Some("42"));
        assert_eq!(Wanted::parse("", NOW).unwrap(), Wanted::default());
    }

    #[test]
    fn quotes_keep_what_would_part_words() {
        for (words, kind, id) in [
            (r#"aggregate:"a\"b""#, None, r#"a"b"#),
            (r#"aggregate:"a\\ b""#, None, r"a\ b"),
            (r#"aggregate:"a b\\""#, None, r"a b\"),
            (r#"aggregate:"a\b c""#, None, r"a\b c"),
            (r"aggregate:a\b", None, r"a\b"),
            (r#"aggregate:"a/b""#, None, "a/b"),
            (r#"aggregate:order/"4 2""#, Some("order"), "4 2"),
            (r#"aggregate:"an/order"/"a/b""#, Some("an/order"), "a/b"),
            ("aggregate:order/a/b", Some("order"), "a/b"),
            (r#"type:order aggregate:"a/b""#, Some("order"), "a/b"),
            (r#""a b""#, None, "a b"),
        ] {
            let filter = Wanted::parse(words, NOW).unwrap().filter;
            let found = (filter.aggregate_type.as_deref(), filter.aggregate_id.as_deref());
            assert_eq!(found, (kind, Some(id)), "{words}");
        }
    }

    #[test]
    fn what_cannot_be_is_explained() {
        for (words, why) in [
            ("state:lost", "pending, publishing"),
            ("since:yesterday", "write 1h"),
            ("payload:x", "aggregate"),
            ("id:x", "no id"),
            ("aggregate:\"4", "not closed"),
            (r#"aggregate:"4\""#, "not closed"),
        ] {
            let refusal = Wanted::parse(words, NOW).unwrap_err();
            assert!(refusal.contains(why), "{words}: {refusal}");
        }
    }
}
