//! `plan`: from a launch command to a verdict, a ledger, a window and a value to pass.

mod launch;
mod list;
mod machine;
mod measured;
mod more_ranks;
mod own_fraction;

pub use launch::changed;
pub use more_ranks::MoreRanks;
pub use own_fraction::OwnFraction;

use crate::{
    args::{Format, PlanArgs},
    exit::{self, Failure},
    output::Output,
    render::{self, plan::View},
};
use measured::Measured;
use plimsoll_catalog::files::HubPaths;
use plimsoll_core::device::DeviceProfile;
use plimsoll_ingest::launch::Launch;
use plimsoll_replay::{
    assemble::{
        AssembleErrorKind, ModelAsk, Places, apply_profile, case_launch, find_device, find_model,
        ranks_of,
    },
    plan::{AtFraction, Level, Plan, plan as plan_case},
    start::{CapacityReading, Case},
};
use std::{env, path::PathBuf};

/// Plans one launch.
pub fn plan(args: &PlanArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    if args.device.as_deref() == Some("list") {
        return list::devices(format, output);
    }
    if args.model.as_deref() == Some("list") {
        return list::models(format, output);
    }
    let asked = launch::read(args)?;
    let mut launch = asked.launch;
    let (device, device_note) = device(args, &mut launch)?;
    let measured = measured::read(&args.measured, &device)?;
    let case_of = |launch: &Launch| case(args, launch, &device, &measured);
    let case = case_of(&launch)?;
    let plan = plan_case(&case).map_err(Failure::input)?;
    let view = View {
        more_ranks: more_ranks::find(&launch, &plan, case_of),
        own_fraction: own_fraction::find(&case, &plan),
        plan: &plan,
        case: &case,
        launch: &launch,
        command: &asked.command,
        args,
        device_note,
        log_tokens: measured.pool_tokens,
    };
    let text = match format {
        Format::Human | Format::Sarif => render::plan::human(&view, output),
        Format::Json => format!("{:#}\n", render::plan::machine(&view)),
        Format::Jsonl => format!("{}\n", render::plan::machine(&view)),
        Format::Csv => render::plan::csv(&view),
        Format::Md => render::plan::markdown(&view),
    };
    output.write(&text)?;
    Ok(code(&view))
}

/// The fraction to pass; one without a pool is no advice, nor is one when the engine refuses for a
/// reason that no fraction mends.
pub fn advised(plan: &Plan) -> Option<&AtFraction> {
    let mends = plan
        .refusal()
        .is_none_or(|refused| refused.remedies.iter().any(|remedy| remedy.flag == plan.flag));
    plan.advised.as_ref().filter(|at| mends && at.tokens.is_some())
}

/// 1 when a problem was found or the margin is too small.
fn code(view: &View<'_>) -> u8 {
    let too_small = view.margin_holds() == Some(false);
    match view.plan.level {
        Level::Refused | Level::Oom => exit::FAILED,
        Level::Ok | Level::Low if too_small => exit::FAILED,
        Level::Ok | Level::Low => exit::OK,
    }
}

/// The device by name, else the one of this machine; with what is said about the choice.
fn device(
    args: &PlanArgs,
    launch: &mut Launch,
) -> Result<(DeviceProfile, Option<String>), Failure> {
    let Some(name) = &args.device else {
        let here = machine::device()?;
        // By its name once more, for the launch's platform; a device of the driver is CUDA.
        let device = find_device(&here.device.name, launch).unwrap_or(here.device);
        return Ok((device, Some(here.note)));
    };
    let device = find_device(name, launch).map_err(|error| {
        Failure::input(format!(
            "--device {name}: {error}; `plimsoll plan --device list` prints them all"
        ))
    })?;
    Ok((device, None))
}

fn case(
    args: &PlanArgs,
    launch: &Launch,
    device: &DeviceProfile,
    measured: &Measured,
) -> Result<Case, Failure> {
    let mut ask = ModelAsk::of_launch(&launch.engine);
    if let Some(model) = &args.model {
        ask.name = Some(model.clone());
    }
    ask.figures.kv_bytes_per_token = args.measured.kv_bytes_per_token;
    if ask.figures.kv_bytes_per_token.is_some() {
        ask.figures.weights = args.measured.weights;
    }
    let model = find_model(&ask, &launch.engine, &places())
        .map_err(|error| Failure::input(format!("{error}{}", ways_to_a_model(error.kind))))?;
    let mut case = Case {
        launch: case_launch(&launch.engine),
        model,
        device: device.clone(),
        capacity: CapacityReading::Catalog,
        ranks: ranks_of(&launch.engine),
        facts: measured.facts.clone(),
        tenants: Vec::new(),
    };
    if let Some(file) = &args.measured.profile {
        let shown = file.display().to_string();
        apply_profile(&shown, file, &mut case).map_err(Failure::input)?;
    }
    Ok(case)
}

/// What else can be given for a model that is not found.
fn ways_to_a_model(kind: AssembleErrorKind) -> &'static str {
    if kind == AssembleErrorKind::UnknownModel {
        "\n\nhelp: --model NAME with a name of the catalog (`--model list`) that has the same shape\n\
         help: --model PATH with the folder of its config.json, or its .gguf file\n\
         help: --kv-bytes-per-token AMOUNT and --weights AMOUNT, both of one rank"
    } else {
        ""
    }
}

/// Where models are looked for.
pub fn places() -> Places {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    let hub =
        HubPaths { hub_cache: path("HF_HUB_CACHE"), hf_home: path("HF_HOME"), home: path("HOME") };
    Places { hub, base: PathBuf::new() }
}
