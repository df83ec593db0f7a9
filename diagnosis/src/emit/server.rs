//! The server and the machine of an emitted file: from the command, the log, and what the user adds.

use super::{
    Given, Missing, MissingFact,
    death::{Death, How},
    draft::{Draft, Entry, LaunchText, quoted},
};
use crate::Case;
use plimsoll_core::policy::sglang::{args::Platform, version::Version};
use plimsoll_ingest::{
    launch::{self, Context, Engine, EngineLaunch, Launch, LaunchInput, VersionSource},
    log::Server,
};
use plimsoll_replay::assemble::{self, AssembleErrorKind, ModelAsk};
use serde_json::{Value, json};

/// The launch with everything that is taken from outside the command.
pub(super) struct Known {
    pub launch: Launch,
    pub text: LaunchText,
    pub version: Version,
    /// Where the release is from, in words.
    pub version_from: String,
    pub release: Release,
    /// Variables that the server had and the text does not set.
    pub environment: Vec<(String, String)>,
}

/// Whether something names the release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Release {
    Named,
    Assumed,
}

impl Known {
    pub(super) fn tp(&self) -> u32 {
        match &self.launch.engine {
            EngineLaunch::Sglang(args) => args.tp_size,
            EngineLaunch::Vllm(args) => args.tensor_parallel_size,
        }
    }

    pub(super) fn ranks(&self) -> usize {
        assemble::ranks_of(&self.launch.engine) as usize
    }

    pub(super) fn engine(&self) -> Engine {
        self.launch.engine.engine()
    }

    pub(super) fn mlx(&self) -> bool {
        matches!(&self.launch.engine, EngineLaunch::Sglang(args) if args.platform == Platform::Mlx)
    }
}

/// Reads the launch: the user's text, the command in the log, the arguments that the server printed.
pub(super) fn launch_of(case: &Case, given: &Given<'_>) -> Result<Known, Missing> {
    let engine = match case.server() {
        None | Some(Server::Sglang) => Engine::Sglang,
        Some(Server::Vllm) => Engine::Vllm,
        Some(_) => return Err(Missing::server()),
    };
    let printed = case.version();
    let command = given.command.or(case.log.command.as_deref());
    let environment = environment(case, engine, command.unwrap_or_default());
    let read = |version| {
        let ctx = Context { version, read_file: None, env: &environment };
        match command {
            Some(text) => from_text(text, &ctx),
            None => from_arguments(case, engine, &ctx),
        }
    };
    let (mut launch, mut text) = read(given.version.or(printed))?;
    let assumed = matches!(launch.version, VersionSource::Default { .. });
    let worded = case.worded_version().filter(|_| assumed);
    if worded.is_some() {
        (launch, text) = read(worded)?;
    }
    let version = launch.engine.version();
    let version_from = match (&launch.version, given.version, printed) {
        _ if worded.is_some() => {
            format!("not in the log; {version} is the newest that words its lines so")
        }
        (VersionSource::Given, Some(_), _) => "as given".to_owned(),
        (VersionSource::Given, None, _) => format!("{version} as the log prints it"),
        (VersionSource::Default { .. }, ..) => {
            format!("not in the log; the rules of {version} are assumed")
        }
        _ => "from the command".to_owned(),
    };
    let release = match assumed {
        true => Release::Assumed,
        false => Release::Named,
    };
    Ok(Known { launch, text, version, version_from, release, environment })
}

fn from_text(text: &str, ctx: &Context<'_>) -> Result<(Launch, LaunchText), Missing> {
    let launch = launch::parse_command(LaunchInput::Text(text), ctx).map_err(|errors| {
        Missing::one("a launch command that can be read", "--command", errors.to_string())
    })?;
    Ok((launch, LaunchText::Command(without_secrets(text))))
}

/// A key or token in a command is no part of a file that people pass on.
fn without_secrets(text: &str) -> String {
    let mut out = String::new();
    let mut hide = false;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        let end = piece.get(word.len()..).unwrap_or_default();
        let lower = word.to_lowercase();
        let name = lower.split('=').next().unwrap_or_default();
        let secret = ["api-key", "api_key", "token", "secret", "password"]
            .iter()
            .any(|part| name.ends_with(part));
        match (hide && !word.is_empty(), secret, word.split_once('=')) {
            (true, ..) => out.push_str("REDACTED"),
            (false, true, Some((left, _))) => out.push_str(&format!("{left}=REDACTED")),
            _ => out.push_str(word),
        }
        hide =
            (hide && word.is_empty()) || (secret && word.starts_with("--") && !word.contains('='));
        out.push_str(end);
    }
    out
}

/// Arguments of which the value is the engine's business and no part of a launch, or which name people and
/// places.
const LEFT_OUT: [&str; 8] = [
    "host",
    "port",
    "served_model_name",
    "api_key",
    "admin_api_key",
    "tokenizer_path",
    "log_level",
    "random_seed",
];

/// From `server_args=ServerArgs(…)` or `non-default args: {…}`.
fn from_arguments(
    case: &Case,
    engine: Engine,
    ctx: &Context<'_>,
) -> Result<(Launch, LaunchText), Missing> {
    let mut flags: Vec<(String, Value)> = Vec::new();
    for (name, printed) in &case.log.args {
        if LEFT_OUT.contains(&name.as_ref()) {
            continue;
        }
        let Some(value) = python_value(printed) else { continue };
        let flag = (name.replace('_', "-"), value);
        // What the table does not know or does not take is no flag of this release.
        if modelled(engine, ctx.version, &flag) {
            flags.push(flag);
        }
    }
    let model = if engine == Engine::Sglang { "model-path" } else { "model" };
    if !flags.iter().any(|(name, _)| name == model) {
        return Err(Missing::one("the launch command", "--command", no_command(case)));
    }
    let launch = launch::from_flags(engine, ctx.version, &flags, ctx)
        .map_err(|e| Missing::one("the launch command", "--command", e.to_string()))?;
    let name = if engine == Engine::Sglang { "sglang" } else { "vllm" };
    let text = flags.into_iter().map(|(name, value)| (name, yaml_of(&value))).collect();
    Ok((launch, LaunchText::Flags(name, text)))
}

fn no_command(case: &Case) -> String {
    match case.log.args.is_empty() {
        true => "the log prints neither a command nor the server's arguments".to_owned(),
        false => "the arguments in the log do not name the model".to_owned(),
    }
}

fn modelled(engine: Engine, version: Option<Version>, flag: &(String, Value)) -> bool {
    let model = if engine == Engine::Sglang { "model-path" } else { "model" };
    let mut flags = vec![flag.clone()];
    if flag.0 != model {
        flags.insert(0, (model.to_owned(), json!("m")));
    }
    let read = launch::from_flags(engine, version, &flags, &Context::default());
    read.is_ok_and(|launch| launch.unknown.is_empty() && launch.not_modelled.is_empty())
}

/// A value as Python prints it; `None` for what is not given.
fn python_value(text: &str) -> Option<Value> {
    let text = text.trim();
    match text {
        "" | "None" | "False" | "[]" | "{}" => None,
        "True" => Some(json!(true)),
        _ => Some(list(text).or_else(|| number(text)).unwrap_or_else(|| json!(text))),
    }
}

fn number(text: &str) -> Option<Value> {
    let whole = text.parse::<i64>().ok().map(|n| json!(n));
    whole.or_else(|| text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| json!(x)))
}

fn list(text: &str) -> Option<Value> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let part = |part: &str| {
        let part = part.trim().trim_matches(['\'', '"']);
        number(part).unwrap_or_else(|| json!(part))
    };
    Some(Value::Array(inner.split(',').map(part).collect()))
}

fn yaml_of(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(yaml_of).collect();
            format!("[{}]", values.join(", "))
        }
        other => other.to_string(),
    }
}

/// Variables that decide how the server is sized and that a log shows without a command.
fn environment(case: &Case, engine: Engine, command: &str) -> Vec<(String, String)> {
    let mlx =
        case.sglang().any(|(_, line)| matches!(line, plimsoll_ingest::log::Sglang::MlxPool { .. }));
    match engine == Engine::Sglang && mlx && !command.contains("SGLANG_USE_MLX") {
        true => vec![("SGLANG_USE_MLX".to_owned(), "1".to_owned())],
        false => Vec::new(),
    }
}

/// The model's part: nothing where the launch's own name is known; the user's name; for a start on which
/// the size of a cell has no bearing, a stand-in.
pub(super) fn model(
    known: &Known,
    given: &Given<'_>,
    death: &Death,
) -> Result<Option<Entry>, Missing> {
    let places = given.places;
    if let Some(name) = given.model {
        let wanted =
            ModelAsk { name: Some(name.to_owned()), ..ModelAsk::of_launch(&known.launch.engine) };
        return match assemble::find_model(&wanted, &known.launch.engine, places) {
            Ok(_) => Ok(Some(Entry::new("model", quoted(name), "as given"))),
            Err(error) => Err(Missing::one("the model", "--model", error.message)),
        };
    }
    let asked = ModelAsk::of_launch(&known.launch.engine);
    match assemble::find_model(&asked, &known.launch.engine, places) {
        Ok(_) => Ok(None),
        Err(error) if error.kind == AssembleErrorKind::Input => {
            Err(Missing::one("the model", "--model", error.message))
        }
        Err(error) => match death.how {
            // Nothing is left for the pool, whatever a token takes.
            How::WeightsTooLarge { .. } | How::FreeBelow | How::NoBlocks => Ok(Some(stand_in())),
            _ => Err(Missing {
                facts: vec![MissingFact {
                    what: "the model".to_owned(),
                    give: "--model",
                    why: error.message,
                }],
            }),
        },
    }
}

fn stand_in() -> Entry {
    let note =
        "stands in for a model that is not in the catalog: nothing is left, whatever a token takes";
    Entry::new("model", "{ kv_bytes_per_token: 65536 B }", note)
}

/// The file before any figure of the log stands in it.
pub(super) fn draft(known: &Known, device: Entry, model: Option<Entry>) -> Draft {
    let text = &known.text;
    Draft {
        name: "from-log/crash".to_owned(),
        why: String::new(),
        source: format!("server log; release {}", known.version_from),
        differs: Vec::new(),
        machine: vec![device],
        readings: Vec::new(),
        version: known.version,
        environment: known.environment.clone(),
        launch: text.clone(),
        flags: Vec::new(),
        model,
        workload: Vec::new(),
        start_events: Vec::new(),
        events: Vec::new(),
        expect: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_get_into_a_file() {
        let text = "HF_TOKEN=hf_abc vllm serve m --api-key  s3cret --tokenizer t --api-key=x";
        let want =
            "HF_TOKEN=REDACTED vllm serve m --api-key  REDACTED --tokenizer t --api-key=REDACTED";
        assert_eq!(without_secrets(text), want);
    }

    #[test]
    fn python_values_become_flags() {
        assert_eq!(python_value("None"), None);
        assert_eq!(python_value("0.93"), Some(json!(0.93)));
        assert_eq!(python_value("[1, 2, 8]"), Some(json!([1, 2, 8])));
        assert_eq!(yaml_of(&json!(["a", 1])), r#"["a", 1]"#);
    }
}
