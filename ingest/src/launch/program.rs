//! Finds the server in a command or a script: through wrappers, containers and nested shells, with
//! the variables, the image, the devices and the versions that stand around it.

use super::Engine;
use super::env::{self, EnvVar, assignment, is_name, listed_devices};
use super::error::{ErrorCode, LaunchError, LaunchErrors};
use super::place::{Lines, Place, Warning, Word};
use super::shell::{Lexer, ShellError, Vars, WORD_BREAK};

/// Deepest `bash -c "bash -c …"`.
const NESTING_LIMIT: usize = 4;
/// Longest text, bytes.
pub(crate) const TEXT_LIMIT: usize = 1 << 18;
/// Most words of one command.
const WORD_LIMIT: usize = 4096;

/// Programs that run another one and say so by being named.
const WRAPPERS: [&str; 34] = [
    "env",
    "sudo",
    "nohup",
    "numactl",
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "srun",
    "torchrun",
    "uv",
    "uvx",
    "bash",
    "sh",
    "zsh",
    "ssh",
    "tmux",
    "screen",
    "singularity",
    "apptainer",
    "enroot",
    "nsys",
    "ncu",
    "time",
    "timeout",
    "taskset",
    "mpirun",
    "ray",
    "exec",
    "nice",
    "ionice",
    "stdbuf",
    "conda",
    "helm",
];

/// A server found.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub engine: Engine,
    /// Wrappers and program, as `docker > python3 -m sglang.launch_server`.
    pub program: String,
    /// The words after the program.
    pub args: Vec<Word>,
    pub place: Place,
    /// Whether it stands inside a quoted word.
    pub nested: bool,
}

/// `sglang==0.5.8` and the like.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub engine: Engine,
    pub text: String,
    pub version: String,
    pub place: Place,
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub servers: Vec<Server>,
    pub env: Vec<EnvVar>,
    pub image: Option<(String, Place)>,
    pub requirements: Vec<Requirement>,
    /// Devices that a container or a scheduler was asked for.
    pub devices: Option<u32>,
    pub warnings: Vec<Warning>,
    vars: Vars,
}

impl Found {
    /// The last value of a variable.
    pub(crate) fn var(&self, name: &str) -> Option<&EnvVar> {
        self.env.iter().find(|v| v.name == name)
    }

    fn set_env(&mut self, name: &str, value: &str, place: Place) {
        self.env.retain(|v| v.name != name);
        self.env.push(EnvVar::new(name, value, place));
    }
}

/// Searches an argument vector, which a shell has already split.
pub(crate) fn search_argv(words: &[String]) -> Result<Found, LaunchErrors> {
    let mut found = Found::default();
    let place = |index| Place::Token { index };
    let words: Vec<Word> =
        words.iter().enumerate().map(|(i, w)| Word::new(w.as_str(), place(i))).collect();
    let bytes: usize = words.iter().map(|w| w.text.len()).sum();
    if bytes > TEXT_LIMIT {
        return Err(too_long(Place::Whole));
    }
    command(&words, &|_| Place::Whole, &mut found, 0)?;
    Ok(found)
}

/// Searches a text of one or more commands.
pub(crate) fn search_text(text: &str) -> Result<Found, LaunchErrors> {
    let mut found = Found::default();
    if text.len() > TEXT_LIMIT {
        return Err(too_long(Place::Whole));
    }
    let lines = Lines::new(text);
    script(text, &|at| lines.place(at), &mut found, 0)?;
    Ok(found)
}

/// Searches the words of one container: its variables, its image, its command.
pub(crate) fn search_container(words: &[Word], found: &mut Found) -> Result<(), LaunchErrors> {
    command(words, &|_| Place::Whole, found, 0)
}

fn too_long(place: Place) -> LaunchErrors {
    let allowed = format!("a command has at most {WORD_LIMIT} words and {TEXT_LIMIT} bytes");
    LaunchErrors::one(LaunchError::new(ErrorCode::TooLong, allowed, place))
}

fn script(
    text: &str,
    place_of: &dyn Fn(usize) -> Place,
    found: &mut Found,
    depth: usize,
) -> Result<(), LaunchErrors> {
    let mut lexer = Lexer::new(text, place_of);
    loop {
        let next = lexer.next_command(&found.vars).map_err(|error| match error {
            ShellError::OpenQuote { quote, place } => {
                let what =
                    format!("this {quote} has no end; close the quote or escape it with `\\`");
                LaunchErrors::one(LaunchError::new(ErrorCode::OpenQuote, what, place))
            }
            ShellError::TooLong { place } => too_long(place),
        })?;
        let Some(words) = next else { break };
        command(&words, place_of, found, depth)?;
    }
    found.warnings.append(&mut lexer.warnings);
    Ok(())
}

/// One simple command.
fn command(
    words: &[Word],
    place_of: &dyn Fn(usize) -> Place,
    found: &mut Found,
    depth: usize,
) -> Result<(), LaunchErrors> {
    if words.len() > WORD_LIMIT {
        return Err(too_long(words.first().map_or(Place::Whole, |w| w.place.clone())));
    }
    let words = &without_prompt(words);
    if assignments(words, found) {
        return Ok(());
    }
    requirements(words, found);
    let image = words.iter().position(|w| image_of(&w.text).is_some());
    let start = start_of(words).or_else(|| image.and_then(|at| start_in_image(words, at)));
    if let Some((engine, args_at, entry)) = start {
        let (prefix, args) = words.split_at(args_at.min(words.len()));
        around(prefix, found);
        let place = prefix.first().or(args.first()).map_or(Place::Whole, |w| w.place.clone());
        let program = program(prefix, &entry);
        found.servers.push(Server { engine, program, args: args.to_vec(), place, nested: false });
        return Ok(());
    }
    let nested = words.iter().position(|w| {
        w.text.contains(char::is_whitespace)
            && (w.text.contains("sglang") || w.text.contains("vllm"))
    });
    let Some(at) = nested.filter(|_| depth < NESTING_LIMIT) else { return Ok(()) };
    let (prefix, word) = (&words[..at], &words[at]);
    let before = found.servers.len();
    let place_in = |byte: usize| match word.map.get(byte) {
        Some(outer) => place_of(*outer as usize),
        None => word.place.clone(),
    };
    script(&word.text, &place_in, found, depth + 1)?;
    if found.servers.len() > before {
        around(prefix, found);
        let outer = program(prefix, "");
        for server in found.servers.iter_mut().skip(before) {
            if !outer.is_empty() {
                server.program = format!("{outer} > {}", server.program);
            }
            server.nested = true;
            server.args.iter_mut().for_each(|arg| arg.lift(word));
        }
    }
    Ok(())
}

/// `$ python …`, `> vllm …`, `!vllm …` of terminals and notebooks.
fn without_prompt(words: &[Word]) -> Vec<Word> {
    let mut words = words.to_vec();
    if words.first().is_some_and(|w| matches!(w.text.as_str(), "$" | "%" | "%%bash" | "!")) {
        words.remove(0);
    }
    if let Some(first) = words.first_mut()
        && first.text.starts_with('!')
    {
        first.text.remove(0);
        first.map.clear();
    }
    words
}

/// Whether the command only sets variables (`A=b`, `export A=b`); they are kept.
fn assignments(words: &[Word], found: &mut Found) -> bool {
    let exports = words.first().is_some_and(|w| matches!(w.text.as_str(), "export" | "declare"));
    let items = if exports { &words[1..] } else { words };
    let items: Vec<&Word> =
        items.iter().filter(|w| !(exports && w.text.starts_with('-'))).collect();
    let is_set = |w: &&Word| {
        let name = w.text.split('=').next().unwrap_or_default();
        is_name(name.trim_end_matches('+')) && (w.text.contains('=') || exports)
    };
    if items.is_empty() || !items.iter().all(is_set) {
        return false;
    }
    for word in items {
        let (name, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
        let appends = name.ends_with('+');
        let name = name.trim_end_matches('+');
        let values = value.split(WORD_BREAK).map(str::to_owned);
        if appends {
            found.vars.entry(name.to_owned()).or_default().extend(values);
        } else if word.text.contains('=') {
            found.vars.insert(name.to_owned(), values.collect());
        }
        if exports {
            let value = found.vars.get(name).map(|v| v.join(" ")).unwrap_or_default();
            found.set_env(name, &value, word.place.clone());
        } else if name != "PATH" && env::known(name) {
            let message = format!("`{name}` is set but not exported: the server does not see it");
            found.warnings.push(Warning::new(message, word.place.clone()));
        }
    }
    true
}

/// `sglang==0.5.8`, `vllm[audio]>=0.11`, `vllm@0.11.0`.
fn requirements(words: &[Word], found: &mut Found) {
    for word in words {
        let text = word.text.trim_start_matches("--with=");
        let text = text.rsplit_once('/').map_or(text, |(_, last)| last);
        let engine = match text {
            t if t.starts_with("sglang") => Engine::Sglang,
            t if t.starts_with("vllm") => Engine::Vllm,
            _ => continue,
        };
        let rest = text.trim_start_matches("sglang").trim_start_matches("vllm");
        let rest = match rest.strip_prefix('[') {
            Some(extras) => extras.split_once(']').map_or("", |(_, rest)| rest),
            None => rest,
        };
        let version = rest.trim_start_matches(['=', '>', '~', '@', ' ']);
        let marked = rest.starts_with("==")
            || rest.starts_with(">=")
            || rest.starts_with("~=")
            || rest.starts_with('@');
        if marked && version.starts_with(|c: char| c.is_ascii_digit() || c == 'v') {
            found.requirements.push(Requirement {
                engine,
                text: word.text.clone(),
                version: version.split([',', ';', ' ']).next().unwrap_or_default().to_owned(),
                place: word.place.clone(),
            });
        }
    }
}

/// Engine, index of the first argument, and entry point.
fn start_of(words: &[Word]) -> Option<(Engine, usize, String)> {
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).map(|w| w.text.as_str());
        let after = words.get(at + 2).map(|w| w.text.as_str());
        let text = word.text.as_str();
        if let Some(module) = text.strip_prefix("-m") {
            let (module, sub, used) = if module.is_empty() {
                (next.unwrap_or_default(), after, 2)
            } else {
                (module, next, 1)
            };
            if let Some((engine, extra)) = module_of(module, sub) {
                let python = at.checked_sub(1).and_then(|i| words.get(i));
                let python = python.map_or("python", |w| w.base_name());
                let python = if python.starts_with("python") { python } else { "python" };
                let sub = if extra == 1 {
                    format!(" {}", sub.unwrap_or_default())
                } else {
                    String::new()
                };
                return Some((engine, at + used + extra, format!("{python} -m {module}{sub}")));
            }
        }
        let base = word.base_name();
        let program = base.split('@').next().unwrap_or(base);
        let engine = match (program, next) {
            ("vllm", Some("serve")) => Some(Engine::Vllm),
            ("sglang", Some("serve" | "launch_server")) => Some(Engine::Sglang),
            _ => None,
        };
        if let (Some(engine), Some(next)) = (engine, next) {
            return Some((engine, at + 2, format!("{program} {next}")));
        }
        let script = match text {
            t if t.ends_with("sglang/launch_server.py") => Some(Engine::Sglang),
            t if t.ends_with("vllm/entrypoints/openai/api_server.py") => Some(Engine::Vllm),
            _ => None,
        };
        if let Some(engine) = script {
            return Some((engine, at + 1, base.to_owned()));
        }
    }
    None
}

/// The engine of a module, and how many words of its own follow it.
fn module_of(module: &str, next: Option<&str>) -> Option<(Engine, usize)> {
    match (module, next) {
        ("sglang.launch_server" | "sglang_router.launch_server", _) => Some((Engine::Sglang, 0)),
        ("sglang" | "sglang.cli.main", Some("serve")) => Some((Engine::Sglang, 1)),
        ("vllm.entrypoints.openai.api_server" | "vllm.entrypoints.api_server", _) => {
            Some((Engine::Vllm, 0))
        }
        ("vllm" | "vllm.entrypoints.cli.main", Some("serve")) => Some((Engine::Vllm, 1)),
        _ => None,
    }
}

/// `--image=NAME`, `docker://NAME`: the name.
fn without_flag(text: &str) -> &str {
    let value = text.split_once('=').filter(|(flag, _)| flag.starts_with("--"));
    value.map_or(text, |(_, value)| value).trim_start_matches("docker://")
}

/// The name and tag of a container image of one of the engines.
pub(crate) fn image_of(text: &str) -> Option<(Engine, &str, Option<&str>)> {
    let text = without_flag(text);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@#".contains(c);
    if text.starts_with(['/', '.', '-', '~', '$']) || !text.chars().all(plain) {
        return None;
    }
    let (name, tag) = match text.split_once('@') {
        Some((name, _digest)) => (name, None),
        None => match text.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (text, None),
        },
    };
    let last = name.rsplit('/').next().unwrap_or(name);
    let engine = match last {
        l if l.contains("vllm") => Engine::Vllm,
        l if l.contains("sglang") || l.starts_with("sgl-") => Engine::Sglang,
        _ => return None,
    };
    let known =
        matches!(name, "lmsysorg/sglang" | "vllm/vllm-openai" | "rocm/vllm" | "rocm/sgl-dev");
    let named = name.contains('/') && (tag.is_some() || text.contains("@sha256:"));
    let tagged = tag.is_some_and(|t| t.starts_with('v') || t == "latest" || t == "nightly");
    (known || named || tagged).then_some((engine, name, tag))
}

/// An image whose entry point is the server, so that only flags follow it.
fn start_in_image(words: &[Word], image: usize) -> Option<(Engine, usize, String)> {
    let (engine, name, _) = image_of(&words.get(image)?.text)?;
    let mut at = image + 1;
    if words.get(image)?.text.starts_with("--") {
        let dashes = words.iter().skip(at).position(|w| w.text == "--")?;
        at += dashes + 1;
    } else if words.get(at).is_some_and(|w| w.text == "--") {
        at += 1;
    }
    if words.get(at).is_some_and(|w| w.text == "serve") {
        at += 1;
    }
    let openai = engine == Engine::Vllm && name.contains("vllm-openai");
    openai.then(|| (engine, at, "entry point".to_owned()))
}

/// Variables, image and devices among the words before the program.
fn around(prefix: &[Word], found: &mut Found) {
    for (at, word) in prefix.iter().enumerate() {
        let next = prefix.get(at + 1);
        let text = word.text.as_str();
        let bare = text
            .strip_prefix("--env=")
            .or_else(|| text.strip_prefix("-e").filter(|r| assignment(r).is_some()))
            .unwrap_or(text);
        if let Some(list) = text.strip_prefix("--export=") {
            for (name, value) in list.split(',').filter_map(assignment) {
                found.set_env(name, value, word.place.clone());
            }
        } else if let Some((name, value)) = assignment(bare)
            && name.chars().all(|c| !c.is_ascii_lowercase())
        {
            found.set_env(name, value, word.place.clone());
        }
        if found.image.is_none() && image_of(text).is_some() {
            found.image = Some((without_flag(text).to_owned(), word.place.clone()));
        }
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (text, next.map(|w| w.text.as_str())),
        };
        asked_devices(flag, value, word, found);
        if matches!(flag, "--env-file" | "--memory") {
            let value = value.unwrap_or_default();
            let message = format!("{flag} {value} of the container is not read");
            found.warnings.push(Warning::new(message, word.place.clone()));
        }
    }
}

/// `--gpus 2`, `--gpus '"device=0,1"'`, `--gres=gpu:h100:8`, `--gpus-per-node=8`.
fn asked_devices(flag: &str, value: Option<&str>, word: &Word, found: &mut Found) {
    let Some(value) = value else { return };
    let count = match flag {
        "--gpus" if value.contains("device=") => listed_devices(value),
        "--gpus" | "--gpus-per-node" | "--gpus-per-task" => {
            value.rsplit(':').next().and_then(|n| n.parse().ok())
        }
        "--gres" if value.starts_with("gpu") => {
            value.rsplit(':').next().and_then(|n| n.parse().ok())
        }
        _ => return,
    };
    match count {
        Some(count) => found.devices = Some(count),
        None if value == "all" => {}
        None => {
            let message = format!("{flag} {value} does not say how many devices");
            found.warnings.push(Warning::new(message, word.place.clone()));
        }
    }
}

/// `sudo > docker lmsysorg/sglang:v0.5.8 > python3 -m sglang.launch_server`.
fn program(prefix: &[Word], entry: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for word in prefix {
        if image_of(&word.text).is_some() && !entry.contains(&word.text) {
            parts.push(without_flag(&word.text).to_owned());
        } else if WRAPPERS.contains(&word.base_name()) {
            parts.push(word.base_name().to_owned());
        }
    }
    if !entry.is_empty() {
        parts.push(entry.to_owned());
    }
    parts.join(" > ")
}
