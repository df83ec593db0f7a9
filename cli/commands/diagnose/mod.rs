//! `diagnose`: what happened to a server, from its log, and what to set.

mod extra;
mod input;
mod launch;

pub use extra::{Emission, Written};
pub use launch::Typed;

use crate::{
    args::{DiagnoseArgs, Format, ServerName},
    exit::{self, Failure},
    interrupt,
    output::Output,
    render::diagnosis::{self as render, Detail, View},
};
use input::Input;
use plimsoll_catalog::devices;
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_diagnosis::{Asked, Case, Level};
use plimsoll_ingest::{
    launch::Launch,
    log::{Log, Server},
};
use plimsoll_replay::assemble::{ModelAsk, find_model};

/// Diagnoses the logs of one server.
pub fn diagnose(args: &DiagnoseArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    interrupt::exit_at_once(output);
    let Asking { case, names, typed, version } = asking(args, output)?;
    let report = plimsoll_diagnosis::diagnose(&case);
    let comparison = args.against.as_ref().map(|path| extra::compare(&case, path)).transpose()?;
    let emission = args
        .emit_scenario
        .as_ref()
        .map(|folder| extra::emit(&case, &report.findings, typed.as_ref(), version, folder));
    // What could not be written does not hide what was found.
    let (emission, failed) = match emission.transpose() {
        Ok(emission) => (emission, None),
        Err(failure) => (None, Some(failure)),
    };
    let view = View {
        report: &report,
        case: &case,
        names: &names,
        typed: typed.as_ref(),
        comparison: comparison.as_ref(),
        emission: emission.as_ref(),
        redact: input::redact(args),
        detail: if args.all { Detail::All } else { Detail::Screen },
    };
    output.write(&match format {
        Format::Human | Format::Csv => render::human(&view, output),
        Format::Json => format!("{:#}\n", render::machine(&view)),
        Format::Jsonl => format!("{}\n", render::machine(&view)),
        Format::Md => render::markdown(&view),
        Format::Sarif => format!("{:#}\n", render::sarif(&view)),
    })?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    Ok(if report.level() == Some(Level::Error) { exit::FAILED } else { exit::OK })
}

/// What is asked: the case, and what the user calls its parts.
struct Asking {
    case: Case,
    /// Names of the files, by index.
    names: Vec<String>,
    /// The command, given or shown by the log.
    typed: Option<Typed>,
    /// The release that was asked for.
    version: Option<Version>,
}

/// Reads the arguments and the logs.
fn asking(args: &DiagnoseArgs, output: &Output) -> Result<Asking, Failure> {
    let given = launch::typed(args)?;
    let version = launch::version(args)?;
    let mut input = input::read(args, output)?;
    if let Some(server) = args.server {
        input.log.server = Some(server_of(server));
    }
    if input.log.server.is_none() && input.log.events.is_empty() {
        return Err(input::nothing_known(&input));
    }
    let Input { mut log, names, .. } = input;
    if let Some(text) = &args.engine_version {
        log.version = Some((text.as_str().into(), 0, 0));
    }
    let (typed, launch) = match given {
        Some(typed) => {
            let launch = launch::read(&typed, version, &log)?;
            (Some(typed), Some(launch))
        }
        None => shown_by(&log, version, output),
    };
    known(args, launch.as_ref())?;
    let (device, model) = (args.device.clone(), args.model.clone());
    let asked = Asked { device, model, places: super::plan::places() };
    Ok(Asking { case: Case { log, launch, asked }, names, typed, version })
}

/// The command that the log itself shows. It may be cut off: then it is said, and left out.
fn shown_by(
    log: &Log,
    version: Option<Version>,
    output: &Output,
) -> (Option<Typed>, Option<Launch>) {
    let Some(text) = &log.command else { return (None, None) };
    let typed = Typed::Text(text.to_string());
    match launch::read(&typed, version, log) {
        Ok(launch) => (Some(typed), Some(launch)),
        Err(failure) => {
            let why = failure.message;
            output.note(&format!("note: the command in the log is not read: {why}"));
            (None, None)
        }
    }
}

/// A device and a model that are named must be there.
fn known(args: &DiagnoseArgs, launch: Option<&Launch>) -> Result<(), Failure> {
    if let Some(name) = &args.device {
        devices::find(name).map_err(|error| {
            let all = "`plimsoll plan --device list` prints them all";
            Failure::input(format!("--device {name}: {error}; {all}"))
        })?;
    }
    if let (Some(name), Some(launch)) = (&args.model, launch) {
        let mut ask = ModelAsk::of_launch(&launch.engine);
        ask.name = Some(name.clone());
        find_model(&ask, &launch.engine, &super::plan::places())
            .map_err(|error| Failure::input(format!("--model: {error}")))?;
    }
    Ok(())
}

const fn server_of(name: ServerName) -> Server {
    match name {
        ServerName::Sglang => Server::Sglang,
        ServerName::Vllm => Server::Vllm,
        ServerName::LlamaCpp => Server::LlamaCpp,
        ServerName::Ollama => Server::Ollama,
        ServerName::TensorRtLlm => Server::TensorRtLlm,
        ServerName::Tgi => Server::Tgi,
        ServerName::Lmdeploy => Server::Lmdeploy,
    }
}
