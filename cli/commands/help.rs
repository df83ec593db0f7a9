//! `completions` and `man`: generated from the table of flags.

use crate::{args::Cli, exit::Failure, output::Output};
use clap::CommandFactory as _;

/// Prints the completions for a shell.
pub fn completions(shell: clap_complete::Shell, output: &Output) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "plimsoll", &mut text);
    output.write(&String::from_utf8_lossy(&text))?;
    Ok(crate::exit::OK)
}

/// Prints the manual page, every verb with its flags.
pub fn man(output: &Output) -> Result<u8, Failure> {
    let mut text = Vec::new();
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(&mut text).map_err(Failure::input)?;
    for verb in command.get_subcommands() {
        let name = format!("plimsoll-{}", verb.get_name());
        clap_mangen::Man::new(verb.clone().name(name)).render(&mut text).map_err(Failure::input)?;
    }
    output.write(&String::from_utf8_lossy(&text))?;
    Ok(crate::exit::OK)
}
