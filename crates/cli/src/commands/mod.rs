//! One file or folder per command.

pub(crate) mod demo;
