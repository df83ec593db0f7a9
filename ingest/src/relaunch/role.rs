//! Which process and which segment belongs to a server, by the names that the servers give them.
//!
//! Names: SGLang sets `sglang::scheduler…`, `sglang::detokenizer…`, vLLM `VLLM::EngineCore…`, `VLLM::Worker…`; Ray
//! `ray::…`. The kernel keeps 15 bytes of a name, and of a zombie nothing else.

use super::ProcessFacts;

/// What a process is to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Role {
    /// A name that holds no path, argument or secret.
    pub name: String,
    /// Which end of the server.
    pub part: Part,
}

/// Which end of a server a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The process that was started; the others end with it, if all is well.
    Front,
    /// One that the front started: without it, it is an orphan.
    Child,
}

/// Titles that servers set, and what they are.
const TITLES: &[(&str, Part)] = &[
    ("sglang::launch_server", Part::Front),
    ("sglang::router", Part::Front),
    ("sglang::", Part::Child),
    ("VLLM::APIServer", Part::Child),
    ("VLLM::", Part::Child),
    ("ray::", Part::Child),
];

/// Programs and subcommands that start a server.
const PROGRAMS: &[(&str, Option<&str>, Part)] = &[
    ("sglang", Some("serve"), Part::Front),
    ("vllm", Some("serve"), Part::Front),
    ("trtllm-serve", None, Part::Front),
    ("tritonserver", None, Part::Front),
    ("text-generation-launcher", None, Part::Front),
    ("text-generation-server", None, Part::Child),
    ("lmdeploy", Some("serve"), Part::Front),
    ("llama-server", None, Part::Front),
    ("llama_server", None, Part::Front),
    ("ollama", Some("runner"), Part::Child),
    ("ollama", Some("serve"), Part::Front),
    ("raylet", None, Part::Front),
    ("gcs_server", None, Part::Front),
];

/// Modules behind `python -m`.
const MODULES: &[&str] = &[
    "sglang.launch_server",
    "sglang_router.launch_server",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.api_server",
    "mlx_lm.server",
    "llama_cpp.server",
    "tensorrt_llm.commands.serve",
];

/// Longest part of a title that is shown.
const LONGEST: usize = 48;

/// The role of a process; `None` when it is none of a server's.
#[must_use]
pub fn role(process: &ProcessFacts) -> Option<Role> {
    let first = process.command.first().map_or(process.name.as_str(), String::as_str);
    for title in [first, process.name.as_str()] {
        if let Some((_, part)) = TITLES.iter().find(|(start, _)| title.starts_with(start)) {
            let word = title.split([' ', '\t']).next().unwrap_or_default();
            let plain = |c: &char| c.is_ascii_alphanumeric() || "_:-.()=".contains(*c);
            let name = word.chars().filter(plain).take(LONGEST).collect();
            return Some(Role { name, part: *part });
        }
    }
    let words: Vec<&str> = match process.command.is_empty() {
        true => vec![process.name.as_str()],
        false => process.command.iter().map(String::as_str).collect(),
    };
    by_module(&words).or_else(|| by_program(&words))
}

fn by_module(words: &[&str]) -> Option<Role> {
    let at = words.iter().position(|word| *word == "-m")?;
    let module = words.get(at + 1)?;
    let known = MODULES.iter().find(|known| *known == module)?;
    Some(Role { name: format!("python -m {known}"), part: Part::Front })
}

/// A program by its own name, or by that of the script which an interpreter runs.
fn by_program(words: &[&str]) -> Option<Role> {
    for (at, word) in words.iter().enumerate().take(3) {
        let file = word.rsplit('/').next().unwrap_or_default();
        let next = words.get(at + 1).copied();
        let found = PROGRAMS
            .iter()
            .find(|(program, verb, _)| *program == file && (verb.is_none() || *verb == next));
        if let Some((program, verb, part)) = found {
            let name =
                verb.map_or_else(|| (*program).to_owned(), |verb| format!("{program} {verb}"));
            return Some(Role { name, part: *part });
        }
        // What comes before a script is an interpreter or its option.
        let interpreter = file.starts_with("python") || word.starts_with('-');
        if !interpreter {
            return None;
        }
    }
    None
}

/// Whose segment a name of `/dev/shm` is; `None` for names that others give.
///
/// Names: Python's `SharedMemory` (`psm_`) and semaphores (`sem.mp-`), PyTorch (`torch_`), NCCL and RCCL (`nccl-`,
/// `rccl-`), UCX, and the engines' own.
#[must_use]
pub fn segment_role(name: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 11] = [
        ("psm_", "Python shared memory"),
        ("wnsm_", "Python shared memory"),
        ("torch_", "PyTorch"),
        ("nccl-", "NCCL"),
        ("rccl-", "RCCL"),
        ("sem.mp-", "a Python semaphore"),
        ("sem.loky-", "a Python semaphore"),
        ("sglang", "SGLang"),
        ("vllm", "vLLM"),
        ("VLLM", "vLLM"),
        ("ucx_shm", "UCX"),
    ];
    NAMES.iter().find(|(start, _)| name.starts_with(start)).map(|(_, whose)| *whose)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relaunch::{Owner, Port};
    use plimsoll_core::units::Bytes;
    use std::collections::BTreeSet;

    fn named(name: &str, command: &str) -> Option<(String, Part)> {
        let process = ProcessFacts {
            pid: 1,
            parent: 1,
            state: 'S',
            name: name.to_owned(),
            command: command.split_whitespace().map(str::to_owned).collect(),
            owner: Owner::Own,
            resident: Bytes::ZERO,
            locked: Bytes::ZERO,
            device_files: None,
            segments: BTreeSet::new(),
            port: Port::Free,
        };
        role(&process).map(|role| (role.name, role.part))
    }

    #[test]
    fn servers_are_known_by_their_titles_modules_and_programs() {
        for (name, command, role, part) in [
            ("sglang::schedul", "sglang::scheduler_TP0", "sglang::scheduler_TP0", Part::Child),
            ("sglang::schedul", "", "sglang::schedul", Part::Child),
            ("VLLM::EngineCor", "VLLM::EngineCore_DP0", "VLLM::EngineCore_DP0", Part::Child),
            (
                "python3",
                "/opt/venv/bin/python3 -u -m sglang.launch_server --api-key sk-1",
                "python -m sglang.launch_server",
                Part::Front,
            ),
            ("vllm", "/opt/bin/python /opt/bin/vllm serve org/m", "vllm serve", Part::Front),
            (
                "ollama",
                "/usr/local/bin/ollama runner --model /home/x",
                "ollama runner",
                Part::Child,
            ),
            ("llama-server", "./llama-server -m /data/m.gguf", "llama-server", Part::Front),
            (
                "ray::RayWorkerW",
                "ray::RayWorkerWrapper.execute",
                "ray::RayWorkerWrapper.execute",
                Part::Child,
            ),
        ] {
            assert_eq!(named(name, command), Some((role.to_owned(), part)), "{command}");
        }
        for (name, command) in [
            ("vim", "vim /opt/bin/vllm serve"),
            ("python3", "python3 -m http.server"),
            ("vllm", "vllm bench serve"),
            ("grep", "grep sglang::scheduler"),
            ("kworker/0:1", ""),
        ] {
            assert_eq!(named(name, command), None, "{command}");
        }
    }

    #[test]
    fn segments_are_known_by_their_names() {
        assert_eq!(segment_role("psm_1a2b"), Some("Python shared memory"));
        assert_eq!(segment_role("nccl-Xy12"), Some("NCCL"));
        assert_eq!(segment_role("pulse-shm-1"), None);
    }
}
