//! What a line of a server log says, as data.

mod other;
mod sglang;
mod system;
mod torch;
mod vllm;

pub use other::{LlamaCpp, Lmdeploy, Ollama, TensorRtLlm, Tgi};
pub use sglang::Sglang;
pub use system::{ExceptionText, Frame, System};
pub use torch::{TorchOom, TorchOomForm};
pub use vllm::{Reached, Refused, Vllm};

use super::Rank;

/// A line that says something that matters, with what it says.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// The file, in the order in which the files were given.
    pub file: u16,
    /// The line in that file, from 1.
    pub line: u64,
    /// Which process wrote it.
    pub rank: Rank,
    /// Which start of a server in the log it belongs to, from 0: a restart begins a new one.
    pub start: u32,
    /// Seconds since the first stamped line of the log, where lines carry stamps.
    pub seconds: Option<u64>,
    /// The line as it stood, undressed (no colours, no prefix of a container's log), redacted, at most
    /// [`Event::TEXT`] bytes of it.
    pub text: Box<str>,
    /// What it says.
    pub kind: Kind,
}

impl Event {
    /// Bytes of a line that are kept for showing.
    pub const TEXT: usize = 320;
}

/// What a line says, by who says it.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// A line that only SGLang writes.
    Sglang(Sglang),
    /// A line that only vLLM writes.
    Vllm(Vllm),
    /// PyTorch's allocator could not get memory (any dialect: CUDA, HIP, NPU, XPU, Metal).
    TorchOom(TorchOom),
    /// The operating system, a driver, the container runtime or Python itself.
    System(System),
    /// llama.cpp and its server.
    LlamaCpp(LlamaCpp),
    /// ollama.
    Ollama(Ollama),
    /// TensorRT-LLM.
    TensorRtLlm(TensorRtLlm),
    /// Text Generation Inference.
    Tgi(Tgi),
    /// LMDeploy (TurboMind and PyTorch engines).
    Lmdeploy(Lmdeploy),
}
