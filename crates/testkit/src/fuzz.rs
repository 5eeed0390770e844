//! Input that nobody has thought of: examples, changed at random, for some seconds.
//!
//! `SEMEL_FUZZ_SECONDS` says for how long each target is tried, 1 unless set. What fails is printed
//! with the seed that makes it again: `SEMEL_FUZZ_SEED`. An input that once failed becomes an example.
//! Tests whose names begin with `fuzzed_` are tried for a minute by `./dev test`, all at once.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::services::announce;

/// Calls `check` with the examples, then with what comes of changing them.
///
/// ```
/// # use semel_testkit::fuzz::fuzz;
/// fuzz(&[b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"], |input| {
///     let text = String::from_utf8_lossy(input);
///     assert!(text.split('-').count() <= input.len() + 1);
/// });
/// ```
///
/// # Panics
/// As `check` does.
pub fn fuzz<E: AsRef<[u8]>>(examples: &[E], check: impl Fn(&[u8])) {
    let check = AssertUnwindSafe(check);
    for example in examples {
        check(example.as_ref());
    }
    let (end, repeated) = (Instant::now() + seconds(), number("SEMEL_FUZZ_SEED"));
    let mut seed = repeated.unwrap_or_else(|| RandomState::new().hash_one(()));
    while Instant::now() < end {
        let input = changed(examples, &mut StdRng::seed_from_u64(seed));
        if let Err(panic) = catch_unwind(|| check(&input)) {
            announce(&format!("SEMEL_FUZZ_SEED={seed} fails with {}", input.escape_ascii()));
            resume_unwind(panic);
        }
        if repeated.is_some() {
            return;
        }
        seed = seed.wrapping_add(1);
    }
}

/// The same with text.
///
/// ```
/// # use semel_testkit::fuzz::fuzz_text;
/// fuzz_text(&["{aggregate_type}.events"], |text| {
///     text.parse::<semel_core::route::Template>().ok();
/// });
/// ```
///
/// # Panics
/// As `check` does.
pub fn fuzz_text(examples: &[&str], check: impl Fn(&str)) {
    fuzz(examples, |input| check(&String::from_utf8_lossy(input)));
}

fn seconds() -> Duration {
    Duration::from_secs(number("SEMEL_FUZZ_SECONDS").unwrap_or(1))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// An example with a few changes.
fn changed<E: AsRef<[u8]>>(examples: &[E], random: &mut StdRng) -> Vec<u8> {
    let example = |random: &mut StdRng| match examples {
        [] => Vec::new(),
        _ => examples[random.random_range(0..examples.len())].as_ref().to_vec(),
    };
    let mut input = example(random);
    for _ in 0..random.random_range(1..8) {
        change(&mut input, random, &example);
    }
    input
}

/// What breaks parsers: ends and repetitions, extreme numbers, and the middle of characters.
const AWKWARD: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x80",
    b"\r\n",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"%",
    b"${",
    b"-1",
    b"0",
    b"18446744073709551616",
    b"1e999",
    "\u{e9}".as_bytes(),
    "\u{1f680}".as_bytes(),
    "\u{212a}".as_bytes(),
];

fn change(input: &mut Vec<u8>, random: &mut StdRng, example: &dyn Fn(&mut StdRng) -> Vec<u8>) {
    let at = random.random_range(0..=input.len());
    let until = random.random_range(at..=input.len().min(at + 16));
    match random.random_range(0..7) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..until)),
        2 => {
            let piece = AWKWARD[random.random_range(0..AWKWARD.len())];
            drop(input.splice(at..until, piece.iter().copied()));
        }
        3 => input.insert(at, random.random()),
        4 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.random_range(0..8);
            }
        }
        5 => {
            let piece: Vec<u8> = input[at..until].repeat(random.random_range(1..20));
            drop(input.splice(at..at, piece));
        }
        _ => {
            let other = example(random);
            let from = random.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn examples_come_first_and_then_much_else() {
        let seen = RefCell::new(Vec::new());
        fuzz(&["one", "two"], |input| seen.borrow_mut().push(input.to_vec()));
        let seen = seen.into_inner();
        assert_eq!(seen[..2], [b"one".to_vec(), b"two".to_vec()]);
        assert!(seen.iter().collect::<HashSet<_>>().len() > 1_000);
    }

    #[test]
    fn a_seed_makes_the_same_again() {
        let make = |seed| changed(&["[a]\nb = 1"], &mut StdRng::seed_from_u64(seed));
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(8));
    }

    #[test]
    #[should_panic(expected = "found it")]
    fn what_fails_is_found() {
        fuzz(&["[a]\nb = 1"], |input| assert!(!input.contains(&b'"'), "found it"));
    }
}
