//! Servers whose rules are not modelled: what their lines say, with the figures that they print. Nothing is
//! computed for another setting, so levers carry a value only where a line gives it.

mod allocation;
mod llama_cpp;
mod lmdeploy;
mod ollama;
mod tensorrt_llm;
mod tgi;

use super::Rule;
use crate::Finding;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    llama_cpp::prompt_cache,
    llama_cpp::buffer_refused,
    llama_cpp::checkpoints,
    llama_cpp::context_exceeded,
    ollama::system_memory,
    ollama::runner_ended,
    tensorrt_llm::out_of_memory,
    tensorrt_llm::pool,
    tgi::prefill,
    lmdeploy::pool,
    lmdeploy::out_of_memory,
    allocation::torch,
    allocation::driver,
];

/// What every finding of this family says of itself.
fn not_modelled(finding: Finding, server: &str) -> Finding {
    let because = if finding.because.is_empty() {
        format!("{server}'s memory rules are not modelled here: figures are as printed.")
    } else {
        format!(
            "{} {server}'s memory rules are not modelled here: figures are as printed.",
            finding.because
        )
    };
    finding.because(because)
}
