//! How a command ends: exit codes, and the message of a failure.
//!
//! Every failure is told in the same shape: what, where, why, what it means for your events, and
//! what to run.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use semel_core::{Failure, Fault};

/// What a script learns from the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// The command ran, and found problems.
    Problems = 1,
    /// The command line is wrong.
    Usage = 64,
    /// A database or broker cannot be reached.
    Unreachable = 69,
    /// It may work later.
    TryAgain = 75,
    /// This user may not.
    Denied = 77,
    /// The set-up is wrong.
    Configuration = 78,
    /// It was interrupted before it knew.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// How the codes of failures end that say: this user may not.
const DENIALS: [&str; 2] = ["-PRIVILEGE", "-LOGIN"];

impl From<&Failure> for Exit {
    fn from(failure: &Failure) -> Self {
        match failure.fault() {
            _ if DENIALS.iter().any(|end| failure.code().ends_with(end)) => Self::Denied,
            Fault::Unavailable => Self::Unreachable,
            Fault::Transient => Self::TryAgain,
            Fault::Misconfigured => Self::Configuration,
            Fault::Refused => Self::Problems,
        }
    }
}

/// A failure, where it happened, and what it means for the user's events.
#[derive(Debug)]
pub(crate) struct Problem {
    failure: Failure,
    places: Vec<String>,
    effect: &'static str,
    exit: Exit,
}

impl Problem {
    pub(crate) fn new(failure: Failure, place: impl Into<String>, effect: &'static str) -> Self {
        Self::at(failure, vec![place.into()], effect)
    }

    /// A failure with several places.
    pub(crate) fn at(failure: Failure, places: Vec<String>, effect: &'static str) -> Self {
        let exit = Exit::from(&failure);
        Self { failure, places, effect, exit }
    }

    /// The same, with another place.
    #[cfg(feature = "page")]
    pub(crate) fn also_at(mut self, place: String) -> Self {
        self.places.push(place);
        self
    }

    /// The same, because of how the command was called.
    pub(crate) fn of_usage(mut self) -> Self {
        self.exit = Exit::Usage;
        self
    }

    /// Whether another try may go well, with nothing changed.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self.exit, Exit::Unreachable | Exit::TryAgain)
    }

    #[cfg(feature = "page")]
    pub(crate) const fn failure(&self) -> &Failure {
        &self.failure
    }

    pub(crate) fn no_runtime(error: io::Error) -> Self {
        let failure = Failure::unavailable("E-RUNTIME", "cannot start the worker threads")
            .with_source(error)
            .with_fix("raise the limits of processes and open files (ulimit -u, ulimit -n)");
        Self::new(failure, "this process", "nothing was touched")
    }

    /// Tells the user, and says how to end.
    pub(crate) fn report(&self) -> Exit {
        // When stderr is closed there is nobody left to tell; the exit code still speaks.
        io::stderr().write_all(self.message().as_bytes()).ok();
        self.exit
    }

    /// In one line.
    pub(crate) fn summary(&self) -> String {
        format!("{}: {}", self.failure.code(), self.failure)
    }

    /// In full.
    pub(crate) fn message(&self) -> String {
        let Self { failure, places, effect, .. } = self;
        let mut message = format!("error[{}]  {failure}\n", failure.code());
        for place in places {
            message += &format!("  where   {place}\n");
        }
        message += &format!("  effect  {effect}\n");
        if let Some(fix) = failure.fix() {
            message += &format!("  run     {fix}\n");
        }
        message
    }
}

/// Prints what clap has to say: help when it was asked for, otherwise what is wrong.
pub(crate) fn report_usage(error: &clap::Error) -> Exit {
    // As above: without an output there is nobody to tell.
    error.print().ok();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Done,
        _ => Exit::Usage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_every_part() {
        let failure = Failure::misconfigured("E-TEST", "cannot open shop.db")
            .with_source(io::Error::other("permission denied"))
            .with_fix("chmod u+w shop.db");
        let message = Problem::new(failure, "source.orders", "no event is lost").message();
        let parts = [
            "error[E-TEST]  cannot open shop.db: permission denied",
            "where   source.orders",
            "effect  no event is lost",
            "run     chmod u+w shop.db",
        ];
        for part in parts {
            assert!(message.contains(part), "{message}");
        }
    }
}
