//! The command line: reads it and hands over to one verb. The binary and the Python package are its two doors.
#![allow(
    unreachable_pub,
    reason = "the verbs are private: what is public in them is so for their neighbours"
)]

mod args;
mod bodies;
mod commands;
mod exit;
mod host;
mod interrupt;
mod invoke;
mod output;
mod render;

pub use host::Stop;
pub use invoke::{Answer, Call, invoke};

use args::{Cli, Verb};
use clap::Parser as _;
use output::Output;
use std::process::ExitCode;

/// Runs the process's own command line.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(&cli.output);
    ExitCode::from(answer(cli, &output))
}

/// Hands over to the verb; answers the exit code.
fn answer(cli: Cli, output: &Output) -> u8 {
    let format = cli.output.format;
    if let Err(failure) = cli.verb.allows(format) {
        return exit::code(Err(failure), output);
    }
    let outcome = match cli.verb {
        Verb::Plan(args) => commands::plan::plan(&args, format, output),
        Verb::Diagnose(args) => commands::diagnose::diagnose(&args, format, output),
        Verb::Explain(args) => commands::explain::explain(&args, format, output),
        Verb::Run(args) => commands::run::run(&args, format, output),
        Verb::Sweep(args) => commands::sweep::sweep(&args, format, output),
        Verb::Replay(args) => commands::replay::replay(&args, format, output),
        Verb::Diff(args) => commands::diff::diff(&args, format, output),
        Verb::Calibrate(args) => commands::calibrate::calibrate(&args, format, output),
        Verb::Workload(args) => commands::workload::workload(&args, format, output),
        Verb::Serve(args) => commands::serve::serve(&args, format, output),
        Verb::Bench(args) => commands::bench::bench(&args, format, output),
        Verb::Chat(args) => commands::chat::chat(&args, output),
        Verb::Watch(args) => commands::watch::watch(&args, format, output),
        Verb::Doctor(args) => commands::doctor::doctor(&args, format, output),
        Verb::Schema(args) => commands::schema::schema(&args, output),
        Verb::Completions { shell } => commands::help::completions(shell, output),
        Verb::Man => commands::help::man(output),
    };
    exit::code(outcome, output)
}
