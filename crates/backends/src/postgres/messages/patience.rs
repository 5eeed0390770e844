//! How long somebody waits who sees that it goes on.

use std::time::Duration;

use tokio::time::Instant;

/// Waits as long as something moves, and a minute from then on.
#[derive(Debug)]
pub(super) struct Patience<T> {
    seen: Option<T>,
    since: Instant,
}

impl<T: PartialEq> Patience<T> {
    const LONGEST: Duration = Duration::from_secs(60);

    pub(super) fn new() -> Self {
        Self { seen: None, since: Instant::now() }
    }

    /// Whether what is seen now has been the same for too long.
    pub(super) fn is_over(&mut self, now: T) -> bool {
        if self.seen.as_ref() != Some(&now) {
            *self = Self { seen: Some(now), since: Instant::now() };
        }
        self.since.elapsed() >= Self::LONGEST
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_lasts_as_long_as_something_moves() {
        const WHILE: Duration = Duration::from_secs(59);
        let mut patience = Patience::new();
        for step in 0..10 {
            assert!(!patience.is_over(step));
            advance(WHILE).await;
            assert!(!patience.is_over(step));
        }
        advance(Duration::from_secs(1)).await;
        assert!(patience.is_over(9));
    }
}
