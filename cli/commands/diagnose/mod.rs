//! `diagnose`: what happened to a server, from its log, and what to set.

mod input;
mod launch;

use crate::{
    args::{DiagnoseArgs, Format, ServerName},
    exit::{self, Failure},
    interrupt,
    output::{self, Output},
    render::diagnosis::{self as render, Detail, View},
};
use input::Input;
pub use launch::Typed;
use plimsoll_diagnosis::{Asked, Case, Level};
use plimsoll_ingest::log::Server;

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
    let view = View {
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
    Ok(if report.level() == Some(Level::Error) { exit::FAILED } else { exit::OK })
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
