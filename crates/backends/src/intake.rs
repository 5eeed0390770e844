//! What a task in the background takes in for a subscription, until the engine asks for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use semel_core::{Batch, Failure, Limit, Message};
use tokio::sync::Notify;

use crate::subscription::Window;

/// Messages that have come, shared by the subscription and its task.
pub(crate) struct Intake<T> {
    state: Mutex<State<T>>,
    arrived: Notify,
    left: Notify,
}

struct State<T> {
    window: Window<T>,
    trouble: Option<Failure>,
}

impl<T: Send + 'static> Intake<T> {
    pub(crate) fn new(system: &'static str) -> Arc<Self> {
        let state = Mutex::new(State { window: Window::new(system), trouble: None });
        Arc::new(Self { state, arrived: Notify::new(), left: Notify::new() })
    }

    /// A message came.
    pub(crate) fn receive(&self, message: Message, place: T) {
        self.state().window.receive(message, place);
        self.arrived.notify_one();
    }

    /// Nothing can come, for now; whoever asks next is told.
    pub(crate) fn fail(&self, failure: Failure) {
        self.state().trouble = Some(failure);
        self.arrived.notify_one();
    }

    /// Waits until there is room below `most`, and in bytes; says for how many.
    pub(crate) async fn room(&self, most: usize) -> usize {
        loop {
            let left = self.left.notified();
            let room = self.state().window.room(most);
            if room > 0 {
                return room;
            }
            left.await;
        }
    }

    /// What waits, or why nothing can come.
    pub(crate) fn hand_out(&self, limit: Limit) -> Result<Batch, Failure> {
        let mut state = self.state();
        match state.trouble.take() {
            Some(failure) => Err(failure),
            None => {
                self.left.notify_one();
                Ok(state.window.hand_out(limit))
            }
        }
    }

    /// Looks at the messages, or changes them.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Window<T>) -> R) -> R {
        let done = work(&mut self.state().window);
        self.left.notify_one();
        done
    }

    /// Resolves when something has come.
    pub(crate) fn arrival(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let intake = Arc::clone(self);
        Box::pin(async move { intake.arrived.notified().await })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use semel_core::Event;

    use super::*;

    #[tokio::test]
    async fn what_came_while_nobody_waited_is_noticed() {
        let intake = Intake::new("test");
        assert!(intake.arrival().now_or_never().is_none());
        intake.receive(Message::first("t", Event::new("a", "1", "T")), 7);
        assert!(intake.arrival().now_or_never().is_some());
        assert!(intake.room(1).now_or_never().is_none());
        let batch = intake.hand_out(Limit::default()).unwrap();
        let waiting = intake.room(1);
        intake.with(|window| window.settle(batch.deliveries[0].receipt));
        assert_eq!(waiting.await, 1);
    }

    #[tokio::test]
    async fn what_is_too_large_together_is_waited_for_until_some_is_handed_out() {
        let (intake, mut came) = (Intake::new("test"), 0);
        while intake.room(1_000).now_or_never().is_some() {
            let large = Event::new("a", "1", "T").with_bytes("text/plain", vec![b'x'; 1 << 20]);
            intake.receive(Message::first("t", large), came);
            came += 1;
        }
        assert_eq!(came, 16);
        let asking = tokio::spawn({
            let intake = Arc::clone(&intake);
            async move { intake.room(1_000).await }
        });
        tokio::task::yield_now().await;
        assert!(!asking.is_finished());
        intake.hand_out(Limit { events: 4, ..Limit::default() }).unwrap();
        assert!((1..=4).contains(&asking.await.unwrap()));
    }

    #[test]
    fn trouble_is_told_once() {
        let intake = Intake::<u32>::new("test");
        intake.fail(Failure::unavailable("E-TEST", "away"));
        assert_eq!(intake.hand_out(Limit::default()).unwrap_err().code(), "E-TEST");
        assert!(intake.hand_out(Limit::default()).is_ok());
    }
}
