//! Looking again and again, until ctrl-C: on a terminal in place, elsewhere one look below the other.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use crate::output::print;
use crate::signals::requests_to_end;

pub(super) struct Screen {
    ends: UnboundedReceiver<()>,
    is_terminal: bool,
    looks: u64,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { ends: requests_to_end(), is_terminal: io::stdout().is_terminal(), looks: 0 }
    }

    /// Waits for the next look, the first of which comes at once; not once somebody wants to end.
    pub(super) async fn goes_on(&mut self, every: Duration) -> bool {
        self.looks += 1;
        if self.looks == 1 {
            return true;
        }
        tokio::select! {
            Some(()) = self.ends.recv() => false,
            () = sleep(every) => true,
        }
    }

    /// How many looks there were, this one included.
    pub(super) const fn looks(&self) -> u64 {
        self.looks
    }

    /// Makes room for what is printed next.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            print("\x1b[H\x1b[2J");
        } else if self.looks > 1 {
            print("\n");
        }
    }
}
