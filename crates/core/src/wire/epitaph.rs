//! What a dead letter says of its death.

use super::Binding;
use crate::failure::Failure;

/// Why a message became a dead letter: headers that it gets beside its own, which stay as they are.
///
/// None of them is a header of the event, so a dead letter still [decodes](super::decode) as the
/// event that it was.
///
/// | header | value |
/// |---|---|
/// | `semel-error` | what happened |
/// | `semel-error-code` | its code |
/// | `semel-attempts` | how often it was tried |
/// | `semel-consumer` | who tried |
/// | `semel-origin` | where it was: `topic/partition@offset`, `stream/subject@sequence`, `stream@id`, `queue@id`, a queue |
///
/// ```
/// use semel_core::Failure;
/// use semel_core::wire::{Binding, Epitaph};
///
/// let failure = Failure::refused("E-SHOP-GONE", "there is no order 42");
/// let epitaph =
///     Epitaph { failure: &failure, attempts: 1, consumer: "billing", origin: "orders/0@17" };
/// let mut headers = Vec::new();
/// epitaph.headers(Binding::Kafka, &mut |name, value| headers.push((name, value.to_owned())));
/// assert!(headers.contains(&(Epitaph::CODE, "E-SHOP-GONE".to_owned())));
/// assert!(headers.iter().all(|(name, _)| Epitaph::has(name)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Epitaph<'a> {
    /// Why it died.
    pub failure: &'a Failure,
    /// Attempts made; none for a message that is no event.
    pub attempts: u32,
    /// The consumer group, or what stands for it.
    pub consumer: &'a str,
    /// Where the message was.
    pub origin: &'a str,
}

impl Epitaph<'_> {
    /// What happened.
    pub const ERROR: &'static str = "semel-error";
    /// The code of what happened.
    pub const CODE: &'static str = "semel-error-code";
    /// How often it was tried.
    pub const ATTEMPTS: &'static str = "semel-attempts";
    /// Who tried.
    pub const CONSUMER: &'static str = "semel-consumer";
    /// Where it was.
    pub const ORIGIN: &'static str = "semel-origin";

    const LONGEST: usize = 2_000;

    /// Whether a header is one of an epitaph: a letter that dies again gets a new one.
    #[must_use]
    pub fn has(name: &str) -> bool {
        [Self::ERROR, Self::CODE, Self::ATTEMPTS, Self::CONSUMER, Self::ORIGIN].contains(&name)
    }

    /// Calls `each` with the name and value of every header, ready for the protocol.
    pub fn headers(&self, binding: Binding, each: &mut dyn FnMut(&'static str, &str)) {
        let error: String = self.failure.to_string().chars().take(Self::LONGEST).collect();
        let attempts = self.attempts.to_string();
        let all = [
            (Self::ERROR, &*error),
            (Self::CODE, self.failure.code()),
            (Self::ATTEMPTS, &*attempts),
            (Self::CONSUMER, self.consumer),
            (Self::ORIGIN, self.origin),
        ];
        for (name, value) in all {
            each(name, &binding.escape_value(value));
        }
    }
}

/// What an [`Epitaph`] says, read from the headers of a dead letter.
///
/// ```
/// use semel_core::wire::{Binding, Inscription};
///
/// let headers = [("semel-error", "no order 42"), ("semel-origin", "orders/0@17")];
/// let said = Inscription::read(Binding::Kafka, headers).unwrap();
/// assert_eq!((&*said.error, &*said.origin), ("no order 42", "orders/0@17"));
/// assert_eq!(Inscription::read(Binding::Kafka, [("tenant", "acme")]), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inscription {
    /// What happened.
    pub error: String,
    /// The code of what happened.
    pub code: String,
    /// How often it was tried.
    pub attempts: u32,
    /// Who tried.
    pub consumer: String,
    /// Where it was.
    pub origin: String,
}

impl Inscription {
    /// Reads it; nothing, where no header says where the message was: then no consumer of semel put
    /// it there.
    pub fn read<'a>(
        binding: Binding,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Option<Self> {
        let mut said = Self::default();
        for (name, value) in headers {
            let value = || binding.unescape(value).into_owned();
            match name {
                Epitaph::ERROR => said.error = value(),
                Epitaph::CODE => said.code = value(),
                Epitaph::ATTEMPTS => said.attempts = value().parse().unwrap_or(0),
                Epitaph::CONSUMER => said.consumer = value(),
                Epitaph::ORIGIN => said.origin = value(),
                _ => {}
            }
        }
        (!said.origin.is_empty()).then_some(said)
    }
}
