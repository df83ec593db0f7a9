//! Launch commands: what a user typed to start SGLang or vLLM, read into the engine's arguments.
//!
//! Nothing is dropped: a flag is read into the arguments, named as not modelled, or named as unknown.
//! All mistakes are reported together, each with its place.

mod argv;
mod edit;
mod env;
mod error;
mod fill;
mod mapping;
mod place;
mod program;
mod sglang;
mod shell;
mod table;
mod value;
mod vllm;
mod yaml;

use std::{fmt, io};

use plimsoll_core::policy::sglang::args::ServerArgs;
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_core::policy::vllm::args::EngineArgs;

pub use edit::{text_with_flag, text_with_values, with_flag};
pub use env::EnvVar;
pub use error::{ErrorCode, LaunchError, LaunchErrors};
pub use place::{Place, Warning};
pub use shell::{quote, render};
pub use table::Effect;
pub(crate) use table::arguments_known;
pub(crate) use table::nearest;

use argv::Parsed;
use place::Word;
use program::{Found, Requirement};

/// The engine a command starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Engine {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sglang => "SGLang",
            Self::Vllm => "vLLM",
        })
    }
}

/// The release whose rules apply when a command does not say one: the newest whose rules are known.
#[must_use]
pub const fn default_version(engine: Engine) -> Version {
    match engine {
        Engine::Sglang => Version::new(0, 5, 23),
        Engine::Vllm => Version::new(0, 33, 0),
    }
}

/// Whether some release of an engine has this flag, by any spelling in full, dashes included.
#[must_use]
pub fn has_flag(engine: Engine, flag: &str) -> bool {
    matches!(
        table::Table::of(engine).look_up(flag, default_version(engine)),
        table::Lookup::Exact(..)
    )
}

/// Whether a flag of an engine stands without a value.
#[must_use]
pub fn is_switch(engine: Engine, flag: &str) -> bool {
    match table::Table::of(engine).look_up(flag, default_version(engine)) {
        table::Lookup::Exact(row, _) => {
            matches!(row.arity, table::Arity::None | table::Arity::Optional)
        }
        _ => false,
    }
}

/// Whether an environment variable is known: to an engine, to PyTorch, or to a driver.
#[must_use]
pub fn has_variable(name: &str) -> bool {
    env::known(name)
}

/// What the user gave.
#[derive(Clone, Copy, Debug)]
pub enum LaunchInput<'a> {
    /// Words that a shell has already split.
    Argv(&'a [String]),
    /// A text as pasted: one command or a script.
    Text(&'a str),
}

/// Reads the text of a file named in the command.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<String>;

/// What the command does not say itself.
#[derive(Clone, Copy, Default)]
pub struct Context<'a> {
    /// The release, stronger than what the command says.
    pub version: Option<Version>,
    /// Reads `--config` files; without it such a file is an error.
    pub read_file: Option<ReadFile<'a>>,
    /// Variables set for the server besides those in the command, which win.
    pub env: &'a [(String, String)],
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("version", &self.version).field("env", &self.env).finish()
    }
}

/// The engine with the arguments that reach memory.
#[derive(Clone, PartialEq, Debug)]
pub enum EngineLaunch {
    /// SGLang.
    Sglang(Box<ServerArgs>),
    /// vLLM.
    Vllm(Box<EngineArgs>),
}

impl EngineLaunch {
    /// Which engine.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        match self {
            Self::Sglang(_) => Engine::Sglang,
            Self::Vllm(_) => Engine::Vllm,
        }
    }

    /// The release whose rules apply.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::Sglang(args) => args.version,
            Self::Vllm(args) => args.version,
        }
    }
}

/// Where the release comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VersionSource {
    /// The caller gave it.
    Given,
    /// A requirement such as `sglang==0.5.8` in the text.
    Requirement {
        /// As typed.
        text: String,
        /// Where.
        place: Place,
    },
    /// The tag of a container image.
    Image {
        /// Name and tag.
        image: String,
        /// Where.
        place: Place,
    },
    /// Nothing says it: [`default_version`].
    Default {
        /// One sentence for the user.
        note: String,
    },
}

/// A flag that is known and not read into the arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFlag {
    /// Its first name in the engine; `--flag.key` for a part of a JSON value.
    pub name: String,
    /// Its words as typed.
    pub values: Vec<String>,
    /// Whether it may move memory.
    pub effect: Effect,
    /// Where.
    pub place: Place,
}

/// A flag, or a stray word, that no release known here takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFlag {
    /// As typed.
    pub name: String,
    /// The words that follow it and are no flags.
    pub values: Vec<String>,
    /// Known names near it, nearest first.
    pub near: Vec<String>,
    /// Where.
    pub place: Place,
}

/// A launch command, read.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// The engine and its arguments.
    pub engine: EngineLaunch,
    /// Where the release comes from.
    pub version: VersionSource,
    /// Container image, name and tag.
    pub image: Option<String>,
    /// Every variable set for the server.
    pub env: Vec<EnvVar>,
    /// Flags that are known and not modelled.
    pub not_modelled: Vec<NamedFlag>,
    /// Flags that are not known.
    pub unknown: Vec<UnknownFlag>,
    /// What was read leniently or is worth saying.
    pub warnings: Vec<Warning>,
    /// Devices the server sees, where the command says it.
    pub devices: Option<u32>,
    /// Wrappers and program: `docker > bash > python3 -m sglang.launch_server`.
    pub program: String,
}

/// Reads a launch command.
///
/// # Errors
///
/// [`LaunchErrors`] with every mistake found: no server in the text, an open quote, a value of the wrong
/// type or outside its range, an ambiguous abbreviation, values that the engine refuses together, an
/// unreadable `--config` file. An unknown flag is no error; it is kept in [`Launch::unknown`].
pub fn parse_command(input: LaunchInput<'_>, ctx: &Context<'_>) -> Result<Launch, LaunchErrors> {
    let mut found = match input {
        LaunchInput::Argv(words) => program::search_argv(words)?,
        LaunchInput::Text(text) => match yaml::search(text)? {
            Some(found) => found,
            None => program::search_text(text)?,
        },
    };
    if found.servers.is_empty() {
        let what = "starts neither SGLang nor vLLM; expected `python -m sglang.launch_server …`, \
                    `sglang serve …`, `vllm serve MODEL …` or \
                    `python -m vllm.entrypoints.openai.api_server …`, also inside docker, kubectl, srun, bash -c or a compose file";
        return Err(LaunchErrors::one(LaunchError::new(ErrorCode::NoServer, what, Place::Whole)));
    }
    let server = found.servers.remove(0);
    for other in &found.servers {
        let message =
            format!("another server starts here ({}); only the first is read", other.program);
        found.warnings.push(Warning::new(message, other.place.clone()));
    }
    let mut errors = Vec::new();
    let (version, source) = version_of(server.engine, &mut found, ctx, &mut errors);
    let words = with_config(server.engine, version, server.args, ctx, &mut found, &mut errors);
    let frame = Frame { engine: server.engine, version, source, program: server.program };
    assemble(frame, &words, found, ctx, errors)
}

/// Reads flags given as a mapping, as scenario files give them: `("mem_fraction_static", 0.93)`.
/// Keys may be written with dashes or underscores, with or without leading dashes; `null` is "not given",
/// `false` the negation of a flag that has one. The same table and checks as for a command.
///
/// # Errors
///
/// As [`parse_command`]; places are keys.
pub fn from_flags(
    engine: Engine,
    version: Option<Version>,
    flags: &[(String, serde_json::Value)],
    ctx: &Context<'_>,
) -> Result<Launch, LaunchErrors> {
    let ctx = Context { version: version.or(ctx.version), ..*ctx };
    let mut found = Found::default();
    let mut errors = Vec::new();
    let (version, source) = version_of(engine, &mut found, &ctx, &mut errors);
    let mut words = Vec::new();
    for (key, value) in flags {
        let place = Place::Key { key: key.clone() };
        words.extend(mapping::words(engine, version, key, value, &place));
    }
    let words = with_config(engine, version, words, &ctx, &mut found, &mut errors);
    let program = "flags of a mapping".to_owned();
    assemble(Frame { engine, version, source, program }, &words, found, &ctx, errors)
}

/// What is known before the flags are read.
struct Frame {
    engine: Engine,
    version: Version,
    source: VersionSource,
    program: String,
}

/// The release: the caller's, a requirement in the text, the image's tag, the default.
fn version_of(
    engine: Engine,
    found: &mut Found,
    ctx: &Context<'_>,
    errors: &mut Vec<LaunchError>,
) -> (Version, VersionSource) {
    if let Some(version) = ctx.version {
        return (version, VersionSource::Given);
    }
    let required = found.requirements.iter().rev().find(|r| r.engine == engine);
    if let Some(Requirement { text, version, place, .. }) = required {
        let (text, place) = (text.clone(), place.clone());
        match release(version) {
            Some(version) => return (version, VersionSource::Requirement { text, place }),
            None => {
                let what = "names no release; write for example `==0.5.8`";
                errors.push(LaunchError::new(ErrorCode::BadVersion, what, place).value(text));
            }
        }
    }
    let default = default_version(engine);
    let mut note = format!("the command names no release; {engine} {default} is assumed");
    if let Some((image, place)) = &found.image {
        let tag = program::image_of(image).filter(|(e, ..)| *e == engine).and_then(|(.., tag)| tag);
        if let Some(version) = tag.and_then(tag_release) {
            let source = VersionSource::Image { image: image.clone(), place: place.clone() };
            return (version, source);
        }
        note = format!("the image `{image}` names no release; {engine} {default} is assumed");
    }
    (default, VersionSource::Default { note })
}

/// `0.5.8.post1`, `v0.11.0rc1`, `0.11` (for `0.11.0`).
fn release(text: &str) -> Option<Version> {
    let text = text.trim_start_matches('v');
    text.parse().ok().or_else(|| {
        let mut parts = text.split('.').map(|part| part.parse::<u16>().ok());
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Some(major)), Some(Some(minor)), None) => Some(Version::new(major, minor, 0)),
            _ => None,
        }
    })
}

/// The release in an image tag: the first part that is one, as in `v0.5.8-cu126`,
/// `rocm6.4.1_vllm_0.10.1_20250909`.
fn tag_release(tag: &str) -> Option<Version> {
    let is_release = |part: &&str| {
        let body = part.trim_start_matches('v');
        body.starts_with(|c: char| c.is_ascii_digit()) && body.split('.').count() >= 3
    };
    tag.split(['-', '_', '+']).filter(is_release).find_map(|part| part.parse().ok())
}

/// Puts the words of a `--config` file before the others, which therefore win.
fn with_config(
    engine: Engine,
    version: Version,
    words: Vec<Word>,
    ctx: &Context<'_>,
    found: &mut Found,
    errors: &mut Vec<LaunchError>,
) -> Vec<Word> {
    let at = words.iter().position(|w| w.text == "--config" || w.text.starts_with("--config="));
    let Some(at) = at else { return words };
    let (flag, path) = match words[at].text.split_once('=') {
        Some((_, path)) => (&words[at], Some(path.to_owned())),
        None => (&words[at], words.get(at + 1).map(|w| w.text.clone())),
    };
    let Some(path) = path else { return words };
    let Some(read) = ctx.read_file else {
        let what = "cannot be read here: files are not read in this place";
        let error = LaunchError::new(ErrorCode::ConfigFile, what, flag.place.clone());
        errors.push(error.flag("--config").value(path));
        return words;
    };
    match mapping::file_words(engine, version, &path, read, &mut found.warnings) {
        Ok(mut from_file) => {
            // A positional model comes first either way.
            let positional = words.first().is_some_and(|w| !argv::is_flag(&w.text));
            let split = usize::from(positional);
            let mut all = words.get(..split).unwrap_or_default().to_vec();
            all.append(&mut from_file);
            all.extend(words.into_iter().skip(split));
            all
        }
        Err(mut error) => {
            // A file as a whole is best found at the flag that names it.
            if matches!(&error.place, Place::File { line: None, .. }) {
                error.place = flag.place.clone();
            }
            errors.push(*error);
            words
        }
    }
}

/// Parses the words, fills the arguments, gathers what remains.
fn assemble(
    frame: Frame,
    words: &[Word],
    found: Found,
    ctx: &Context<'_>,
    mut errors: Vec<LaunchError>,
) -> Result<Launch, LaunchErrors> {
    let Frame { engine, version, source, program } = frame;
    let mut parsed = argv::parse(engine, version, words);
    errors.append(&mut parsed.errors);
    let model = model_of(engine, &mut parsed);
    let mut launch = start(engine, version, model, source);
    launch.program = program;
    launch.devices = visible_devices(&found);
    launch.image = found.image.map(|(image, _)| image);
    launch.env = found.env;
    for (name, value) in ctx.env {
        if !launch.env.iter().any(|v| v.name == *name) {
            launch.env.push(EnvVar::new(name, value, Place::Key { key: name.clone() }));
        }
    }
    launch
        .env
        .iter_mut()
        .filter(|v| v.effect.is_none())
        .take(argv::NEAR_LIMIT)
        .for_each(EnvVar::find_near);
    launch.warnings = found.warnings;
    launch.warnings.append(&mut parsed.warnings);
    launch.not_modelled = fill::not_modelled(&parsed);
    launch.unknown = std::mem::take(&mut parsed.unknown);
    stray(&mut launch, &parsed.positional);
    let mut flags = fill::Flags::new(&parsed.given);
    match launch.engine.clone() {
        EngineLaunch::Sglang(args) => sglang::fill(*args, &mut flags, &mut launch),
        EngineLaunch::Vllm(args) => vllm::fill(*args, &mut flags, &mut launch),
    }
    launch.not_modelled.append(&mut flags.parts);
    errors.append(&mut flags.errors);
    errors.iter_mut().for_each(sglang::near_fraction);
    errors.sort_by(|a, b| a.place.cmp(&b.place));
    if errors.is_empty() { Ok(launch) } else { Err(LaunchErrors { errors }) }
}

fn start(engine: Engine, version: Version, model: String, source: VersionSource) -> Launch {
    let engine = match engine {
        Engine::Sglang => EngineLaunch::Sglang(Box::new(ServerArgs::new(version, model))),
        Engine::Vllm => EngineLaunch::Vllm(Box::new(EngineArgs::new(version, model))),
    };
    Launch {
        engine,
        version: source,
        image: None,
        env: Vec::new(),
        not_modelled: Vec::new(),
        unknown: Vec::new(),
        warnings: Vec::new(),
        devices: None,
        program: String::new(),
    }
}

/// The flag for the model, else the first positional word.
fn model_of(engine: Engine, parsed: &mut Parsed) -> String {
    let name = match engine {
        Engine::Sglang => "--model-path",
        Engine::Vllm => "--model",
    };
    let flag = parsed.given.iter().find(|g| g.row.name == name);
    let flag = flag.and_then(|g| g.words.first()).cloned();
    let first = parsed.positional.first().map(|w| w.text.clone());
    // vLLM lets the positional model win over one of a config file.
    match (flag, first) {
        (Some(model), None) => model,
        (Some(model), Some(_)) if engine == Engine::Sglang => model,
        (_, Some(model)) => {
            parsed.positional.remove(0);
            model
        }
        (None, None) => String::new(),
    }
}

/// Words that belong to no flag.
fn stray(launch: &mut Launch, words: &[Word]) {
    for word in words {
        launch.unknown.push(UnknownFlag {
            name: word.text.clone(),
            values: Vec::new(),
            near: Vec::new(),
            place: word.place.clone(),
        });
    }
}

/// Devices by the strongest of: visible devices of the program, of the container, devices asked for.
fn visible_devices(found: &Found) -> Option<u32> {
    let lists = [
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    ];
    let listed = lists.iter().find_map(|name| found.var(name));
    listed.and_then(|v| env::listed_devices(&v.value)).or(found.devices)
}
