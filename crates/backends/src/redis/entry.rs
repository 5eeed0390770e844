//! An event as one `XADD`.

use redis::Cmd;
use semel_core::wire::{Binding, Format};
use semel_core::{Failure, Message};

use super::error::too_large;

/// The field that holds the body. It comes last, so that no header of an event can stand for it.
pub(super) const BODY: &str = "payload";

/// How events become entries.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    pub(super) key_prefix: &'a str,
    pub(super) max_len: Option<u64>,
    pub(super) max_field_bytes: usize,
    pub(super) format: Format,
}

impl Entries<'_> {
    /// The command that adds a message to its stream.
    ///
    /// # Errors
    /// `Refused` when the server would close the connection over its size.
    pub(super) fn add(&self, message: &Message) -> Result<Cmd, Failure> {
        let Message { topic, event, .. } = message;
        let body = self.format.body(event);
        let mut command = Cmd::with_capacity(32, body.len() + 512);
        command.arg("XADD").arg([self.key_prefix, topic.as_str()].concat());
        if let Some(entries) = self.max_len {
            command.arg("MAXLEN").arg("~").arg(entries);
        }
        command.arg("*");
        let mut longest = body.len().max(self.key_prefix.len() + topic.as_str().len());
        self.format.headers(event, Binding::Redis, &mut |name, value| {
            longest = longest.max(name.len()).max(value.len());
            command.arg(name).arg(value);
        });
        if longest > self.max_field_bytes {
            return Err(too_large(longest, self.max_field_bytes));
        }
        command.arg(BODY).arg(&body[..]);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Event, Fault};

    use super::*;

    fn entries() -> Entries<'static> {
        let format = Format::Plain;
        Entries { key_prefix: "{shop}:", max_len: None, max_field_bytes: 100, format }
    }

    fn message() -> Message {
        let event = Event::new("order", "42", "OrderPlaced").with_header("payload", "not the body");
        Message::first("orders", event.with_bytes("text/plain", "the body"))
    }

    fn words(command: &Cmd) -> Vec<String> {
        let text = |arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::from("?"),
        };
        command.args_iter().map(text).collect()
    }

    #[test]
    fn the_body_is_the_last_field() {
        let words = words(&entries().add(&message()).unwrap());
        assert_eq!(words[..3], ["XADD", "{shop}:orders", "*"]);
        assert_eq!(words[words.len() - 2..], ["payload", "the body"]);
        assert!(words.windows(2).any(|pair| pair == ["payload", "not the body"]));
    }

    #[test]
    fn a_stream_is_trimmed_only_when_asked_for() {
        let entries = Entries { max_len: Some(1000), ..entries() };
        let words = words(&entries.add(&message()).unwrap());
        assert_eq!(words[..6], ["XADD", "{shop}:orders", "MAXLEN", "~", "1000", "*"]);
    }

    #[test]
    fn any_field_can_be_too_large() {
        let long = "x".repeat(101);
        let event = || Event::new("order", "42", "OrderPlaced");
        let cases = [
            Message::first("orders", event().with_bytes("text/plain", long.clone())),
            Message::first("orders", event().with_header("note", long.clone())),
            Message::first(&*long, event()),
        ];
        for message in cases {
            let failure = entries().add(&message).err().unwrap();
            assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-REDIS-TOO-LARGE"));
        }
    }
}
