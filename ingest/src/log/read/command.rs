//! A launch command that was pasted into the log, with its continued lines.

/// Words of which the first line of a command holds one.
pub(super) const WORDS: &[&str] = &[
    "sglang.launch_server",
    "sglang serve",
    "vllm serve",
    "vllm.entrypoints",
    "llama-server ",
    "sglang.bench",
];

/// Bytes of a command that are kept.
const COMMAND: usize = 8192;

/// A command being read.
#[derive(Default)]
pub(super) struct Command {
    text: String,
    continued: bool,
}

impl Command {
    /// Whether the next line belongs to it.
    pub(super) fn is_open(&self) -> bool {
        self.continued
    }

    /// Takes a line in; the whole command when it is complete.
    pub(super) fn take(&mut self, line: &str) -> Option<String> {
        let part = if self.continued { line.trim() } else { start(line)? };
        let (part, more) = match part.trim_end().strip_suffix('\\') {
            Some(part) => (part.trim_end(), true),
            None => (part.trim_end(), false),
        };
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(part);
        self.continued = more && self.text.len() < COMMAND;
        if self.continued {
            return None;
        }
        Some(std::mem::take(&mut self.text))
    }

    /// What was read of a command that the text broke off.
    pub(super) fn rest(&mut self) -> Option<String> {
        self.continued = false;
        Some(std::mem::take(&mut self.text)).filter(|text| !text.is_empty())
    }
}

/// Where the command begins in the line; `None` when the words stand in something else (a warning, a file name).
fn start(line: &str) -> Option<&str> {
    let direct = ["sglang serve ", "vllm serve ", "llama-server "];
    let module = ["-m sglang.launch_server", "-m vllm.entrypoints"];
    let at = match module.iter().find_map(|words| line.find(words)) {
        Some(at) => line.get(..at)?.rfind("python").unwrap_or(at),
        None => direct.iter().find_map(|words| line.find(words))?,
    };
    let before = line.get(..at)?;
    // Variables and containers before it are part of the command; prose is not.
    let first = before.split_whitespace().next().unwrap_or("");
    let runs =
        ["docker", "podman", "CMD", "exec", "nohup", "srun", "torchrun", "uv", "sudo", "env"];
    let whole = first.is_empty()
        || runs.contains(&first)
        || before.split_whitespace().all(|word| word.contains('=') && !word.contains(':'));
    let text = if whole { line.trim_start() } else { line.get(at..)? };
    text.contains(" --").then_some(text.trim_start_matches(['$', '#', ' ']))
}
