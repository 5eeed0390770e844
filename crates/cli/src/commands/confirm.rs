//! Asking before many events are changed, and showing how far it has come.

use std::io::{self, BufRead, IsTerminal, Write};

/// Whether somebody at a terminal says yes.
pub(super) fn says_yes(question: &str) -> bool {
    io::stdin().is_terminal() && {
        // Whoever cannot read the question will not answer it.
        io::stderr().write_all(format!("{question} [y/N] ").as_bytes()).ok();
        is_yes(&mut io::stdin().lock())
    }
}

fn is_yes(answers: &mut impl BufRead) -> bool {
    let mut answer = String::new();
    answers.read_line(&mut answer).is_ok()
        && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// A word for somebody at a terminal who waits for others, whose progress cannot be seen.
#[cfg(feature = "page")]
pub(super) fn tell_to_wait(whom: &str) {
    if io::stderr().is_terminal() {
        io::stderr().write_all(format!("asking {whom}; this may take a while\n").as_bytes()).ok();
    }
}

/// A line that grows, on a terminal.
pub(super) struct Progress {
    total: usize,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        Self { total, is_shown: io::stderr().is_terminal() && total > 0 }
    }

    pub(super) fn show(&self, done: usize) {
        if self.is_shown {
            io::stderr().write_all(format!("\r{}", bar(done, self.total)).as_bytes()).ok();
        }
    }

    pub(super) fn end(self) {
        if self.is_shown {
            io::stderr().write_all(b"\n").ok();
        }
    }
}

fn bar(done: usize, total: usize) -> String {
    const WIDTH: usize = 30;
    let done = done.min(total);
    let full = done * WIDTH / total.max(1);
    let percent = done * 100 / total.max(1);
    format!("[{}{}] {done} of {total}, {percent} %", "#".repeat(full), " ".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, yes) in
            [("y\n", true), ("YES\n", true), ("\n", false), ("n\n", false), ("", false)]
        {
            assert_eq!(is_yes(&mut answer.as_bytes()), yes, "{answer:?}");
        }
    }

    #[test]
    fn a_bar_is_full_at_the_end() {
        assert!(bar(0, 10).starts_with("[          "));
        assert_eq!(bar(10, 10), format!("[{}] 10 of 10, 100 %", "#".repeat(30)));
        assert_eq!(bar(12, 10), bar(10, 10), "more came meanwhile");
    }
}
