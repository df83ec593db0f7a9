//! The launch of `plan`: the command after `--` with the flags given beside it, or flags alone.

use crate::{
    args::{EngineName, PlanArgs},
    exit::Failure,
};
use plimsoll_ingest::launch::{
    self, Context, Engine, Launch, LaunchInput, text_with_flag, with_flag,
};
use plimsoll_replay::scenario::engine::{EngineName as ScenarioEngine, engine_of_command};
use serde_json::{Value, json};

/// What was asked for, read.
pub struct Asked {
    /// The launch.
    pub launch: Launch,
    /// The command with the flags given beside it; empty when there is none.
    pub command: Vec<String>,
}

/// What to write when nothing says which server is meant.
const NO_LAUNCH: &str = "give a launch command after `--`, or --model\n\n  \
    plimsoll plan --device \"H100 80GB\" -- python -m sglang.launch_server --model-path \
    meta-llama/Llama-3.1-8B-Instruct\n  \
    plimsoll plan --device \"H100 80GB\" --model Qwen/Qwen3-8B --engine vllm";

/// Reads the launch.
pub fn read(args: &PlanArgs) -> Result<Asked, Failure> {
    let version = args
        .engine_version
        .as_ref()
        .map(|text| text.parse().map_err(|e| Failure::input(format!("--engine-version: {e}"))))
        .transpose()?;
    let read_file = |path: &str| std::fs::read_to_string(path);
    let ctx = Context { version, read_file: Some(&read_file), env: &[] };
    let beside = beside(args)?;
    if args.command.is_empty() {
        let engine = engine(args);
        let Some(model) = &args.model else { return Err(Failure::input(NO_LAUNCH)) };
        let name = if engine == Engine::Sglang { "model-path" } else { "model" };
        let mut flags = vec![(name.to_owned(), json!(model))];
        flags.extend(beside);
        let launch = launch::from_flags(engine, version, &flags, &ctx).map_err(Failure::input)?;
        return Ok(Asked { launch, command: Vec::new() });
    }
    let mut command = args.command.clone();
    for (name, value) in beside {
        let text = match &value {
            Value::Bool(true) => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let flag = format!("--{name}");
        command = changed(&command, &flag, text.as_deref()).ok_or_else(|| {
            Failure::input(format!("{flag}: cannot be put into this text; write it there"))
        })?;
    }
    let input = match text_of(&command) {
        Some(text) => LaunchInput::Text(text),
        None => LaunchInput::Argv(&command),
    };
    let launch = launch::parse_command(input, &ctx).map_err(Failure::input)?;
    same_engine(args, &launch)?;
    Ok(Asked { launch, command })
}

/// One argument with blanks is a text: a quoted command, a script, a Compose or Kubernetes file.
fn text_of(command: &[String]) -> Option<&str> {
    match command {
        [text] if text.contains(char::is_whitespace) => Some(text),
        _ => None,
    }
}

/// The command with a flag set; `None` for a text that starts no server in shell words.
pub fn changed(command: &[String], flag: &str, value: Option<&str>) -> Option<Vec<String>> {
    match text_of(command) {
        Some(text) => text_with_flag(text, flag, value).map(|text| vec![text]),
        None => with_flag(command, flag, value),
    }
}

/// The engine, where no command says it.
fn engine(args: &PlanArgs) -> Engine {
    match args.engine {
        Some(EngineName::Vllm) => Engine::Vllm,
        Some(EngineName::Sglang) => Engine::Sglang,
        None if args.gpu_memory_utilization.is_some() => Engine::Vllm,
        None => Engine::Sglang,
    }
}

/// `--engine` beside a command may not contradict it.
fn same_engine(args: &PlanArgs, launch: &Launch) -> Result<(), Failure> {
    let given = args.engine.map(|_| engine(args));
    let found = launch.engine.engine();
    if given.is_some_and(|given| given != found) {
        let message = format!("--engine: the command starts {found}; leave --engine out");
        return Err(Failure::input(message));
    }
    Ok(())
}

/// vLLM has no `--tp`; SGLang has.
fn starts_vllm(args: &PlanArgs) -> bool {
    if args.command.is_empty() {
        return engine(args) == Engine::Vllm;
    }
    engine_of_command(&args.command.join(" ")) == Some(ScenarioEngine::Vllm)
}

/// Engine flags given to `plan` itself.
fn beside(args: &PlanArgs) -> Result<Vec<(String, Value)>, Failure> {
    let mut flags = Vec::new();
    let mut put = |name: &str, value: Option<Value>| {
        flags.extend(value.map(|value| (name.to_owned(), value)));
    };
    // As typed: the table of the engine's flags reads them, with its own ranges and near values.
    let tp = if starts_vllm(args) { "tensor-parallel-size" } else { "tp" };
    put(tp, args.tp.as_ref().map(|n| json!(n)));
    put("mem-fraction-static", args.mem_fraction_static.as_ref().map(|f| json!(f)));
    put("gpu-memory-utilization", args.gpu_memory_utilization.as_ref().map(|f| json!(f)));
    for text in &args.set {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, json!(value)),
            None => (text.as_str(), json!(true)),
        };
        let name = name.trim_start_matches('-');
        if name.is_empty() {
            return Err(Failure::input(format!(
                "--set {text}: no flag before `=`; write NAME=VALUE or NAME, for example \
                 page-size=64"
            )));
        }
        put(name, Some(value));
    }
    Ok(flags)
}
