//! A dense decoder on the CPU: weights in RAM, a paged KV pool, a planned arena, and the own tape executed
//! over them. A step allocates nothing.
//!
//! Every value is computed in one fixed order, whatever the batch, the chunk, the number of threads or the
//! width of the processor's vectors: a token's logits are the same bits in a batch and alone.

mod attention;
mod dot;
mod generate;
mod held;
mod integer;
mod kv;
mod linear;
mod load;
mod page;
mod panels;
mod sample;
mod span;
mod step;
mod vector;

pub use generate::{GenerateError, Generated, Generator};
pub use held::Keep;
pub use kv::{KvPool, PoolError, system_page};
pub use load::{HostModel, LoadError, ModelMemory, ModelOptions, kept_bytes};
pub use plimsoll_core::policy::plimsoll::KvFormat;
pub use plimsoll_core::tape::own::{Outputs, Sequence};
pub use sample::{Logprob, Sampled, Sampler, Sampling, SamplingError};
pub use step::{Logits, StepError};
