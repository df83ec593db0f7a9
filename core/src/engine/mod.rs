//! Joins policy and backend: the only place that drives a machine by an engine's rules.

pub mod live;
pub mod metrics;
mod mlx_passes;
mod mlx_start;
mod refused;
pub mod serving;
mod sglang_passes;
mod sglang_start;
pub mod startup;
mod vllm_passes;
mod vllm_start;

pub use mlx_passes::MlxPasses;
pub use mlx_start::{MlxShape, MlxStart};
pub use sglang_passes::{SamplingBackend, SglangPassInputs, SglangPasses};
pub use sglang_start::{HostFacts, KnownCell, SglangModel, SglangStart};
pub use vllm_passes::{TopKTopP, VllmPassInputs, VllmPasses};
pub use vllm_start::{VllmDevice, VllmModel, VllmStart};
