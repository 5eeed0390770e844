//! Strings that mean something: spans of time, numbers of bytes, contents of secret files.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A span of time such as `100ms`, `5s` or `3d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is no span of time; write \"100ms\", \"5s\" or \"3d\""))
}

pub(super) fn within(
    value: Duration,
    bounds: &RangeInclusive<Duration>,
) -> Result<Duration, String> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (bounds.start(), bounds.end());
    let [least, most] = [least, most].map(|each| humantime::format_duration(*each));
    Err(format!("must be from {least} to {most}"))
}

/// A number of bytes such as `512KiB` or `1MB`.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| factor);
    let value = factor.zip(number.parse().ok()).and_then(|(f, number)| f.checked_mul(number));
    value.ok_or_else(|| format!("{text:?} is no size; write \"512KiB\", \"1MiB\" or \"1GB\""))
}

pub(super) fn size_within(value: usize, bounds: &RangeInclusive<usize>) -> Result<usize, String> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(format!("must be from {} to {}", shown_size(*bounds.start()), shown_size(*bounds.end())))
}

const UNITS: &[(&str, usize)] = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("kB", 1000),
    ("B", 1),
];

pub(super) fn shown_size(bytes: usize) -> String {
    let (unit, factor) =
        UNITS.iter().find(|(_, factor)| bytes.is_multiple_of(*factor)).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / factor)
}

/// The secret in a file: without the line end that editors add.
pub(super) fn secret_of(content: io::Result<String>) -> Result<String, String> {
    let content = content.map_err(|error| {
        format!("cannot read the file: {error}; write the secret into it, or name another")
    })?;
    let secret = content.strip_suffix('\n').unwrap_or(&content);
    let secret = secret.strip_suffix('\r').unwrap_or(secret);
    if secret.is_empty() {
        Err("the file is empty; write the secret into it".into())
    } else {
        Ok(secret.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let cases = [
            ("0B", Some(0)),
            ("1KiB", Some(1024)),
            ("1 MiB", Some(1 << 20)),
            ("3GB", Some(3_000_000_000)),
            ("100", None),
            ("MiB", None),
            ("-1MiB", None),
            ("1mib", None),
            ("99999999999999999999B", None),
            ("99999999999999999GiB", None),
        ];
        for (text, expected) in cases {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        assert_eq!(size_within(5, &(1024..=1 << 20)).unwrap_err(), "must be from 1KiB to 1MiB");
    }

    #[test]
    fn spans_of_time_have_units_and_bounds() {
        let bounds = Duration::from_millis(10)..=Duration::from_secs(60);
        let read = |text| duration(text).and_then(|value| within(value, &bounds));
        assert_eq!(read("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(read("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(read("1ms").unwrap_err(), "must be from 10ms to 1m");
        for wrong in ["5", "soon", "", "-1s"] {
            assert!(read(wrong).unwrap_err().contains("no span of time"), "{wrong}");
        }
    }

    #[test]
    fn one_line_end_is_no_part_of_a_secret() {
        let read = |text: &str| secret_of(Ok(text.to_owned()));
        for text in ["hunter2", "hunter2\n", "hunter2\r\n"] {
            assert_eq!(read(text).as_deref(), Ok("hunter2"));
        }
        assert_eq!(read("hunter2\n\n").as_deref(), Ok("hunter2\n"));
        assert!(read("\n").is_err());
    }
}
