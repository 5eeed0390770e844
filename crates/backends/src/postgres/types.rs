//! Values of PostgreSQL that sqlx has no type for.

use std::fmt;
use std::str::FromStr;

use semel_core::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

/// Which transactions were over at one moment: a `pg_snapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    xmin: u64,
    /// No transaction from this one on was over.
    xmax: u64,
    /// Those before it that were still running, in ascending order.
    running: Vec<u64>,
}

impl Snapshot {
    /// The first transaction that was not over for sure, for `$n::text::xid8`.
    pub(super) fn end(&self) -> String {
        self.xmax.to_string()
    }

    /// The earlier transactions that were still running, for `$n::text::xid8[]`.
    pub(super) fn running(&self) -> String {
        format!("{{{}}}", self.list())
    }

    /// Whether a transaction of this short number was over: the one of that number that is nearest
    /// to this snapshot.
    pub(super) fn contains(&self, id: u32) -> bool {
        let distance = id.wrapping_sub(self.xmax as u32).cast_signed();
        let id = self.xmax.saturating_add_signed(distance.into());
        id < self.xmax && self.running.binary_search(&id).is_err()
    }

    fn list(&self) -> String {
        self.running.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.xmin, self.xmax, self.list())
    }
}

impl FromStr for Snapshot {
    type Err = BoxDynError;

    fn from_str(text: &str) -> Result<Self, BoxDynError> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or_else(|| format!("{text:?} is not a snapshot"));
        let (xmin, xmax, list) = (part()?.parse()?, part()?.parse()?, part()?);
        let running = list.split(',').filter(|id| !id.is_empty()).map(str::parse);
        Ok(Self { xmin, xmax, running: running.collect::<Result<_, _>>()? })
    }
}

/// A `timestamptz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(pub(super) Timestamp);

impl Stamp {
    /// Where PostgreSQL's time begins, in microseconds of Unix time: the year 2000.
    const ORIGIN: i64 = 946_684_800_000_000;

    /// Reads the eight bytes. Times out of range, `infinity` among them, become the nearest.
    fn from_wire(micros: i64) -> Self {
        let nearest = if micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
        let time = micros.checked_add(Self::ORIGIN).map(Timestamp::from_microsecond);
        Self(time.and_then(Result::ok).unwrap_or(nearest))
    }
}

impl Type<Postgres> for Stamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for Stamp {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for Stamp {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let micros = self.0.as_microsecond() - Self::ORIGIN;
        buffer.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for Stamp {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                Ok(Self::from_wire(i64::from_be_bytes(value.as_bytes()?.try_into()?)))
            }
            PgValueFormat::Text => Err("a time in text format".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_read_and_written() {
        for text in ["1:1:", "10:20:", "10:20:10,14,19"] {
            assert_eq!(text.parse::<Snapshot>().unwrap().to_string(), text);
        }
        let snapshot: Snapshot = "10:20:10,14".parse().unwrap();
        assert_eq!((snapshot.end(), snapshot.running()), ("20".into(), "{10,14}".into()));
        for text in ["", "1:2", "a:1:", "1:2:x"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn short_numbers_are_those_nearest_by() {
        let wrapped = (1_u64 << 32) + 5;
        let snapshot: Snapshot = format!("{0}:{wrapped}:{0}", wrapped - 7).parse().unwrap();
        let cases = [(4, true), (5, false), (6, false), (u32::MAX, true), (u32::MAX - 1, false)];
        for (id, over) in cases {
            assert_eq!(snapshot.contains(id), over, "{id}");
        }
        assert!("10:20:10,14".parse::<Snapshot>().unwrap().contains(13));
    }

    #[test]
    fn infinity_is_the_end_of_time() {
        assert_eq!(Stamp::from_wire(i64::MAX).0, Timestamp::MAX);
        assert_eq!(Stamp::from_wire(i64::MIN).0, Timestamp::MIN);
        assert_eq!(Stamp::from_wire(0).0.to_string(), "2000-01-01T00:00:00Z");
    }

    #[test]
    fn fuzzed_any_text_is_a_snapshot_or_none() {
        semel_testkit::fuzz::fuzz_text(&["1:1:", "10:20:10,14,19"], |text| {
            if let Ok(snapshot) = text.parse::<Snapshot>() {
                let again: Snapshot = snapshot.to_string().parse().unwrap();
                assert_eq!(again.to_string(), snapshot.to_string());
                assert_eq!(again.contains(u32::MAX), snapshot.contains(u32::MAX));
            }
        });
    }
}
