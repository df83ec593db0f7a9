//! `plan`: from a launch command to a verdict, a ledger, a window and a value to pass.

use crate::{
    args::{EngineName, Format, MeasuredArgs, PlanArgs},
    exit::{self, Failure},
    output::Output,
    render,
};
use plimsoll_catalog::{devices, files::HubPaths};
use plimsoll_core::{figure::Tag, units::Bytes};
use plimsoll_ingest::{
    launch::{self, Context, Engine, Launch, LaunchInput, with_flag},
    log,
};
use plimsoll_replay::{
    assemble::{ModelAsk, Places, case_launch, find_device, find_model, ranks_of},
    plan::{Level, Plan, plan as plan_case},
    start::{CapacityReading, Case, Fact, Facts},
};
use serde_json::{Value, json};
use std::{env, path::PathBuf};

/// Plans one launch.
pub fn plan(args: &PlanArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    if args.device.as_deref() == Some("list") {
        return list_devices(output);
    }
    let mut launch = read_launch(args)?;
    let case = case(args, &mut launch)?;
    let plan = plan_case(&case).map_err(Failure::input)?;
    let view = render::plan::View { plan: &plan, case: &case, launch: &launch, args };
    let text = match format {
        Format::Human => render::plan::human(&view, output),
        Format::Json => format!("{:#}\n", render::plan::machine(&view)),
        Format::Jsonl => format!("{}\n", render::plan::machine(&view)),
        Format::Csv => render::plan::csv(&view),
        Format::Md => render::plan::markdown(&view),
    };
    output.write(&text)?;
    Ok(code(args, &plan))
}

/// 1 when a problem was found or the margin is too small.
fn code(args: &PlanArgs, plan: &Plan) -> u8 {
    let too_small = args.min_margin.is_some_and(|least| {
        let least = i64::try_from(least.0).unwrap_or(i64::MAX);
        plan.margin().is_none_or(|margin| margin < least)
    });
    match plan.level {
        Level::Refused | Level::Oom => exit::FAILED,
        Level::Ok | Level::Low if too_small => exit::FAILED,
        Level::Ok | Level::Low => exit::OK,
    }
}

fn list_devices(output: &Output) -> Result<u8, Failure> {
    let names: String = devices::all().iter().map(|(key, ..)| format!("{key}\n")).collect();
    output.write(&names)?;
    Ok(exit::OK)
}

/// The launch: the command after `--` with the flags given beside it, or flags alone.
fn read_launch(args: &PlanArgs) -> Result<Launch, Failure> {
    let version = args
        .engine_version
        .as_ref()
        .map(|text| text.parse().map_err(|e| Failure::input(format!("--engine-version: {e}"))))
        .transpose()?;
    let read_file = |path: &str| std::fs::read_to_string(path);
    let ctx = Context { version, read_file: Some(&read_file), env: &[] };
    let beside = beside(args)?;
    if args.command.is_empty() {
        let engine = match args.engine {
            Some(EngineName::Vllm) => Engine::Vllm,
            Some(EngineName::Sglang) => Engine::Sglang,
            None if args.gpu_memory_utilization.is_some() => Engine::Vllm,
            None => Engine::Sglang,
        };
        let Some(model) = &args.model else {
            let message = "give a launch command after `--`, or --model and --device\n\n  plimsoll \
                 plan --device \"H100 80GB\" -- python -m sglang.launch_server --model-path \
                 meta-llama/Llama-3.1-8B-Instruct";
            return Err(Failure::input(message));
        };
        let name = if engine == Engine::Sglang { "model-path" } else { "model" };
        let mut flags = vec![(name.to_owned(), json!(model))];
        flags.extend(beside);
        return launch::from_flags(engine, version, &flags, &ctx).map_err(Failure::input);
    }
    let mut command = args.command.clone();
    for (name, value) in beside {
        let text = match &value {
            Value::Bool(true) => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let flag = format!("--{name}");
        command = with_flag(&command, &flag, text.as_deref()).ok_or_else(|| {
            let why =
                "the command stands in a quoted word that cannot be changed: write the flag there";
            Failure::input(format!("{flag}: {why}"))
        })?;
    }
    launch::parse_command(LaunchInput::Argv(&command), &ctx).map_err(Failure::input)
}

/// Engine flags given to `plan` itself.
fn beside(args: &PlanArgs) -> Result<Vec<(String, Value)>, Failure> {
    let mut flags = Vec::new();
    let mut put = |name: &str, value: Option<Value>| {
        flags.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("tp", args.tp.map(|n| json!(n)));
    put("mem-fraction-static", args.mem_fraction_static.map(|f| json!(f)));
    put("gpu-memory-utilization", args.gpu_memory_utilization.map(|f| json!(f)));
    for text in &args.set {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, json!(value)),
            None => (text.as_str(), json!(true)),
        };
        let name = name.trim_start_matches('-');
        if name.is_empty() {
            return Err(Failure::input(format!("--set {text}: write NAME=VALUE or NAME")));
        }
        put(name, Some(value));
    }
    Ok(flags)
}

fn case(args: &PlanArgs, launch: &mut Launch) -> Result<Case, Failure> {
    let Some(name) = &args.device else {
        return Err(Failure::input(
            "no device: give --device NAME (`--device list` prints the catalog)",
        ));
    };
    let device = find_device(name, launch).map_err(Failure::input)?;
    let mut ask = ModelAsk::of_launch(&launch.engine);
    if let Some(model) = &args.model {
        ask.name = Some(model.clone());
    }
    ask.figures.kv_bytes_per_token = args.measured.kv_bytes_per_token;
    if ask.figures.kv_bytes_per_token.is_some() {
        ask.figures.weights = args.measured.weights;
    }
    let model = find_model(&ask, &launch.engine, &places()).map_err(Failure::input)?;
    let ranks = ranks_of(&launch.engine);
    Ok(Case {
        launch: case_launch(&launch.engine),
        model,
        device,
        capacity: CapacityReading::Catalog,
        ranks,
        facts: facts(&args.measured)?,
        tenants: Vec::new(),
    })
}

fn places() -> Places {
    let path = |name: &str| env::var_os(name).map(PathBuf::from);
    let hub =
        HubPaths { hub_cache: path("HF_HUB_CACHE"), hf_home: path("HF_HOME"), home: path("HOME") };
    Places { hub, base: PathBuf::new() }
}

/// Flags win over the figures of a log.
fn facts(measured: &MeasuredArgs) -> Result<Facts, Failure> {
    let from_log = match &measured.from_log {
        None => Facts::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::input(format!("cannot read {}: {error}", path.display()))
            })?;
            log_facts(&text, &path.display().to_string())?
        }
    };
    let given =
        |bytes: Option<Bytes>, flag: &str| bytes.map(|bytes| Fact::all(bytes, Tag::Measured, flag));
    Ok(Facts {
        free_before_load: given(measured.free_before_load, "--free-before-load")
            .or(from_log.free_before_load),
        used_by_load: given(measured.weights, "--weights").or(from_log.used_by_load),
        free_after_load: from_log.free_after_load.filter(|_| measured.weights.is_none()),
        free_after_graphs: given(measured.free_after_graphs, "--free-after-graphs")
            .or(from_log.free_after_graphs),
        graph_memory: from_log.graph_memory,
        others: given(measured.others, "--others"),
        host_available: given(measured.host_available, "--host-available"),
        ..Facts::default()
    })
}

fn log_facts(text: &str, path: &str) -> Result<Facts, Failure> {
    let figures = log::start_figures(text);
    if figures.is_empty() {
        return Err(Failure::input(format!(
            "{path} has no start-up line of SGLang or vLLM that says memory"
        )));
    }
    let fact = |seen: Option<log::Seen<Bytes>>| {
        seen.map(|seen| Fact::all(seen.value, Tag::Measured, format!("{path}:{}", seen.line)))
    };
    // Free memory before minus after is what the budget sees; the printed usage is one rank's.
    let both = figures.free_before_load.is_some() && figures.free_after_load.is_some();
    Ok(Facts {
        free_before_load: fact(figures.free_before_load),
        free_after_load: fact(figures.free_after_load),
        used_by_load: fact(figures.weights).filter(|_| !both),
        free_after_graphs: fact(figures.free_after_graphs),
        graph_memory: fact(figures.graphs),
        ..Facts::default()
    })
}
