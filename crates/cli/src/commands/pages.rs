//! `semel completions` and `semel man`: what packages install beside the program.

use std::io::{self, Write};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::Roff;

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
    // Writing into memory does not fail.
    render(&mut text).ok();
    write(&text)
}

fn render(page: &mut Vec<u8>) -> io::Result<()> {
    let whole = Man::new(args::command());
    whole.render_title(page)?;
    whole.render_name_section(page)?;
    whole.render_synopsis_section(page)?;
    whole.render_description_section(page)?;
    whole.render_options_section(page)?;
    // That each has --help is said once.
    let mut all = args::command().disable_help_flag(true);
    all.build();
    render_commands(&all, page)?;
    whole.render_extra_section(page)?;
    whole.render_version_section(page)
}

fn render_commands(of: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    for command in of.get_subcommands().filter(|one| !one.is_hide_set()) {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        Roff::new().control("SH", [name]).to_writer(page)?;
        let described = Man::new(command.clone());
        let mut parts = Vec::new();
        described.render_description_section(&mut parts)?;
        described.render_synopsis_section(&mut parts)?;
        described.render_options_section(&mut parts)?;
        // They belong to the command.
        let parts = String::from_utf8_lossy(&parts).replace("\n.SH ", "\n.SS ");
        page.write_all(parts.as_bytes())?;
        render_commands(command, page)?;
    }
    Ok(())
}

/// Whoever closed standard output does not want to know.
fn write(text: &[u8]) -> Exit {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).ok();
    Exit::Done
}
