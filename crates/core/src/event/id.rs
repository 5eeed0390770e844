//! The identity of an event.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::failure::Failure;

/// The identity of an event: a UUID, version 7 when semel makes it, so that ids sort by time.
///
/// ```
/// # use semel_core::EventId;
/// let id = EventId::now();
/// assert_eq!(id.to_string().parse::<EventId>()?, id);
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// A new id of this moment.
    #[must_use]
    pub fn now() -> Self {
        Self(Uuid::now_v7())
    }

    /// An id somebody else made; any UUID version is accepted.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// A reproducible id: version 7 of this time, with `number` in place of the random part.
    #[must_use]
    pub fn numbered(time: Timestamp, number: u64) -> Self {
        let millis = u64::try_from(time.as_millisecond()).unwrap_or(0);
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The UUID itself.
    #[must_use]
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// The time inside a version 7 id; none for other versions.
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        if self.0.get_version_num() != 7 {
            return None;
        }
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?).ok()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        Uuid::parse_str(text).map(Self).map_err(|error| {
            Failure::refused("E-EVENT-INVALID", format!("{text:?} is not an event id: {error}"))
                .with_fix("give the id as a UUID, such as 0190b6e8-7a3c-7def-8000-0123456789ab")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_version_7_carry_their_time() {
        let time = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
        let id = EventId::numbered(time, 7);
        assert_eq!(id.timestamp(), Some(time));
        assert!(EventId::numbered(time, 8) > id);
        assert_eq!(EventId::from_uuid(Uuid::nil()).timestamp(), None);
    }

    #[test]
    fn a_wrong_id_says_what_to_write() {
        let failure = "42".parse::<EventId>().unwrap_err();
        assert!(failure.to_string().contains("\"42\" is not an event id"));
        assert!(failure.fix().unwrap().contains("UUID"));
    }
}
