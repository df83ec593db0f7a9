//! The launch command of a diagnosis: after `--`, from `--command`, or as the log shows it.

use crate::{args::DiagnoseArgs, exit::Failure};
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_ingest::{
    launch::{self, Context, Launch, LaunchInput, text_with_flag, with_flag},
    log::Log,
};

/// A command as typed.
pub enum Typed {
    /// Words, after `--`.
    Words(Vec<String>),
    /// One text: a command, a script, a Compose file.
    Text(String),
}

impl Typed {
    /// The same command with a flag set; `None` where it cannot be put in.
    pub fn changed(&self, flag: &str, value: Option<&str>) -> Option<Self> {
        match self {
            Self::Words(words) => with_flag(words, flag, value).map(Self::Words),
            Self::Text(text) => text_with_flag(text, flag, value).map(Self::Text),
        }
    }

    /// As it would be typed.
    pub fn text(&self) -> String {
        match self {
            Self::Words(words) => launch::render(words),
            Self::Text(text) => text.trim().to_owned(),
        }
    }
}

/// The command that was given beside the log.
pub fn typed(args: &DiagnoseArgs) -> Result<Option<Typed>, Failure> {
    match &args.command {
        Some(text) => command_text(text).map(|text| Some(Typed::Text(text))),
        None => Ok(match &args.launch[..] {
            [] => None,
            [text] if text.contains(char::is_whitespace) => Some(Typed::Text(text.clone())),
            words => Some(Typed::Words(words.to_vec())),
        }),
    }
}

/// The text itself, or what stands in the file behind `@`.
fn command_text(text: &str) -> Result<String, Failure> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("--command @{path}: {error}")))
}

/// The release that was asked for.
pub fn version(args: &DiagnoseArgs) -> Result<Option<Version>, Failure> {
    let text = args.engine_version.as_ref();
    text.map(|text| text.parse().map_err(|e| Failure::input(format!("--engine-version: {e}"))))
        .transpose()
}

/// Reads a command; the release is the one asked for, else the one that the log prints, else its own.
pub fn read(typed: &Typed, version: Option<Version>, log: &Log) -> Result<Launch, Failure> {
    // A build from source prints 0.0.0: no release that any rule goes by.
    let released = |version: &Version| *version >= Version::new(0, 1, 0);
    let printed = || log.version.as_ref()?.0.parse().ok().filter(released);
    let read_file = |path: &str| std::fs::read_to_string(path);
    let ctx = Context { version: version.or_else(printed), read_file: Some(&read_file), env: &[] };
    let input = match typed {
        Typed::Words(words) => LaunchInput::Argv(words),
        Typed::Text(text) => LaunchInput::Text(text),
    };
    launch::parse_command(input, &ctx).map_err(Failure::input)
}
