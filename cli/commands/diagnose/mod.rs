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
    output::{self, Output},
    render::diagnosis::{self as render, Detail, View},
};
use input::Input;
use plimsoll_catalog::devices;
use plimsoll_diagnosis::{Asked, Case, Level};
use plimsoll_ingest::{launch::Launch, log::Server};
use plimsoll_replay::assemble::{ModelAsk, find_model};

/// Diagnoses the logs of one server.
pub fn diagnose(args: &DiagnoseArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    interrupt::exit_at_once();
    let typed = launch::typed(args)?;
    let version = launch::version(args)?;
    let mut input = input::read(args)?;
    if let Some(server) = args.server {
        input.log.server = Some(server_of(server));
    }
    if let Some(text) = &args.engine_version {
        input.log.version = Some((text.as_str().into(), 0, 0));
    }
    let typed =
        typed.or_else(|| input.log.command.as_deref().map(|text| Typed::Text(text.to_owned())));
    let given = !args.launch.is_empty() || args.command.is_some();
    let launch = match &typed {
        None => None,
        Some(typed) => match launch::read(typed, version, &input.log) {
            Ok(launch) => Some(launch),
            // A command that the log shows may be cut off; one that is given may not be wrong.
            Err(failure) if given => return Err(failure),
            Err(failure) => {
                output::note(&format!(
                    "note: the command in the log is not read: {}",
                    failure.message
                ));
                None
            }
        },
    };
    known(args, launch.as_ref())?;
    let asked = Asked {
        device: args.device.clone(),
        model: args.model.clone(),
        places: super::plan::places(),
    };
    if input.log.server.is_none() && input.log.events.is_empty() {
        return Err(input::nothing_known(&input));
    }
    let Input { log, names, .. } = input;
    let case = Case { log, launch, asked };
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
        comparison: comparison.as_ref(),
        emission: emission.as_ref(),
        report: &report,
        case: &case,
        names: &names,
        typed: typed.as_ref(),
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
