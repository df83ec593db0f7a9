//! The launch of a scenario: a command as typed, flags by name, or both.

use super::AssembleError;
use crate::scenario::{
    Scenario,
    engine::{EngineName, FlagValue},
};
use plimsoll_ingest::launch::{
    self, Context, Engine, EngineLaunch, Launch, LaunchInput, text_with_flag, text_with_values,
};
use serde_json::{Value, json};

/// Ranks that a launch starts: tensor × pipeline parallel (data parallel replicas of vLLM are
/// servers of their own).
#[must_use]
pub fn ranks_of(engine: &EngineLaunch) -> u32 {
    let (tp, pp) = match engine {
        EngineLaunch::Sglang(args) => (args.tp_size, args.pp_size),
        EngineLaunch::Vllm(args) => (args.tensor_parallel_size, args.pipeline_parallel_size),
    };
    tp.max(1).saturating_mul(pp.max(1))
}

/// Reads the launch of a scenario; its flags win over those of its command.
///
/// # Errors
///
/// Every mistake of the launch, with its place in the command.
pub fn launch_of_scenario(scenario: &Scenario) -> Result<Launch, AssembleError> {
    let engine = &scenario.engine;
    let env: Vec<(String, String)> =
        engine.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let read_file = |path: &str| std::fs::read_to_string(path);
    let ctx = Context { version: Some(engine.version), read_file: Some(&read_file), env: &env };
    let read = match &engine.command {
        Some(command) => {
            let mut text = command.clone();
            for (name, value) in &engine.flags {
                text = with(&text, name, value)?;
            }
            launch::parse_command(LaunchInput::Text(&text), &ctx)
        }
        None => {
            let name = match engine.engine() {
                Some(EngineName::Sglang) => Engine::Sglang,
                Some(EngineName::Vllm) => Engine::Vllm,
                None => return Err(AssembleError::new("engine.name is needed without a command")),
            };
            let mut flags: Vec<(String, Value)> =
                engine.flags.iter().map(|(name, value)| (name.clone(), json_of(value))).collect();
            name_model(scenario, name, &mut flags);
            launch::from_flags(name, Some(engine.version), &flags, &ctx)
        }
    };
    read.map_err(AssembleError::new)
}

/// The engines ask for a model path; a scenario may name its model beside the flags.
fn name_model(scenario: &Scenario, engine: Engine, flags: &mut Vec<(String, Value)>) {
    let named = flags.iter().any(|(name, _)| name == "model-path" || name == "model");
    if named {
        return;
    }
    let model = match scenario.model.as_ref().and_then(|model| model.source.as_ref()) {
        Some(crate::scenario::ModelSource::Catalog(name)) => name.clone(),
        Some(
            crate::scenario::ModelSource::Config(path) | crate::scenario::ModelSource::Gguf(path),
        ) => path.display().to_string(),
        None => "model-of-the-scenario".to_owned(),
    };
    let flag = match engine {
        Engine::Sglang => "model-path",
        Engine::Vllm => "model",
    };
    flags.push((flag.to_owned(), json!(model)));
}

fn with(text: &str, name: &str, value: &FlagValue) -> Result<String, AssembleError> {
    let flag = format!("--{name}");
    let changed = match value {
        FlagValue::Switch(true) => text_with_flag(text, &flag, None),
        FlagValue::Switch(false) => {
            return Err(AssembleError::new(format!(
                "engine.flags.{name} is false beside a command: take the flag out of the command"
            )));
        }
        FlagValue::One(value) | FlagValue::Json(value) => text_with_flag(text, &flag, Some(value)),
        FlagValue::Many(values) => {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            text_with_values(text, &flag, &values)
        }
    };
    changed.ok_or_else(|| {
        AssembleError::new(format!(
            "engine.flags.{name} has no place in engine.command: it starts neither SGLang nor vLLM, or \
             its words come out of a variable or a quoted word; write the flag there"
        ))
    })
}

fn json_of(value: &FlagValue) -> Value {
    match value {
        FlagValue::Switch(on) => json!(on),
        FlagValue::One(text) => json!(text),
        FlagValue::Many(texts) => json!(texts),
        FlagValue::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
    }
}
