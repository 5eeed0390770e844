//! Whether to expect that what is about to be written is there already.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Duplicates are rare and come together: after one, more are expected for a while.
#[derive(Debug, Default)]
pub(super) struct Doubt(AtomicUsize);

/// How long a doubt lasts: so many questions.
const LASTS: usize = 1000;

impl Doubt {
    /// Whether to doubt this time.
    pub(super) fn is_left(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// There was a duplicate.
    pub(super) fn raise(&self) {
        self.0.store(LASTS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_lasts_for_a_while() {
        let doubt = Doubt::default();
        assert!(!doubt.is_left());
        doubt.raise();
        assert_eq!((0..2 * LASTS).filter(|_| doubt.is_left()).count(), LASTS);
    }
}
