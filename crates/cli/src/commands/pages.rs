//! `semel completions` and `semel man`: what packages install beside the program.

use std::io::{self, Write};

use clap_complete::Shell;

use crate::args;
use crate::exit::Exit;

pub(crate) fn completions(shell: Shell) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "semel", &mut text);
    write(&text)
}

/// One page for all commands, in the format of `man`.
pub(crate) fn manual() -> Exit {
    let mut text = Vec::new();
    let page = clap_mangen::Man::new(args::command());
    // Writing into memory does not fail.
    page.render(&mut text).ok();
    write(&text)
}

/// Whoever closed standard output does not want to know.
fn write(text: &[u8]) -> Exit {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).ok();
    Exit::Done
}
