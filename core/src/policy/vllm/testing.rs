//! Settings and layers for the tests of this module.

use super::{
    args::EngineArgs,
    defaults::{Device, MemoryKind, Usage},
    settings::{self, AttentionKind, ModelFacts, Settings, StateKind},
    spec::{Heads, Kind, LayerSpec},
};
use crate::{
    policy::sglang::version::Version,
    units::{Bytes, Tokens},
};

/// An 80 GiB device.
pub(super) fn device() -> Device {
    Device {
        name: "NVIDIA H100 80GB HBM3".into(),
        total: Bytes::gib(80),
        memory: MemoryKind::Discrete,
        compute_capability: Some((9, 0)),
    }
}

/// Settings of release `0.minor` for requests of `len` tokens.
pub(super) fn settings(minor: u16, len: u64, edit: impl FnOnce(&mut EngineArgs)) -> Settings {
    let mut args = EngineArgs::new(Version::new(0, minor, 0), "m");
    edit(&mut args);
    let model = ModelFacts {
        context_len: Tokens(len),
        attention: AttentionKind::Heads,
        state: StateKind::Absent,
    };
    settings::resolve(&args, &device(), Usage::Server, model).unwrap()
}

/// `count` layers of 8 heads of 128 in 16 bits: 4096 B a token.
pub(super) fn layers(kind: Kind, count: usize, block_size: u64) -> Vec<LayerSpec> {
    let heads = Heads { kv_heads: 8, head_size: 128, head_size_v: 128, element: 2 };
    vec![LayerSpec::heads(kind, heads, block_size); count]
}
