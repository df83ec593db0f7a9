//! Where in a start memory is taken, and the way out when it is not there.

use super::Remedy;
use crate::estimate::Engine;

/// What a start is doing when it takes memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Taking {
    /// Context, code and communicators.
    Context,
    /// Weights, with the copies that loading makes beside them.
    Load,
    /// Weights of a draft model.
    DraftLoad,
    /// The pools and the request table.
    Pool,
    /// The draft's pool, where it follows the target's graphs.
    DraftPool,
    /// Workspaces of libraries.
    Workspaces,
    /// Kernels under tuning.
    Autotune,
    /// Capture of graphs.
    Graphs,
    /// Capture of the draft's graphs.
    DraftGraphs,
    /// The host's cache pool.
    HostPool,
    /// What a measurement shows and nothing explains.
    Unaccounted,
}

impl Taking {
    /// Name in the decision log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Load => "load",
            Self::DraftLoad => "draft_load",
            Self::Pool => "pool",
            Self::DraftPool => "draft_pool",
            Self::Workspaces => "workspaces",
            Self::Autotune => "autotune",
            Self::Graphs => "graph_capture",
            Self::DraftGraphs => "draft_graph_capture",
            Self::HostPool => "host_pool",
            Self::Unaccounted => "unaccounted",
        }
    }

    /// In a sentence: "the start dies …".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Context => "before loading",
            Self::Load => "while weights load",
            Self::DraftLoad => "while the draft model loads",
            Self::Pool => "at the pool",
            Self::DraftPool => "at the draft's pool",
            Self::Workspaces => "at the workspaces",
            Self::Autotune => "while kernels are tuned",
            Self::Graphs => "while graphs are captured",
            Self::DraftGraphs => "while the draft's graphs are captured",
            Self::HostPool => "at the host pool",
            Self::Unaccounted => "after the pool",
        }
    }

    /// Ways out of running out of memory there, the first one first.
    ///
    /// Source: the remedies that maintainers give in public reports of each phase.
    #[must_use]
    pub fn remedies(self, engine: Engine) -> Vec<Remedy> {
        let remedy = |flag: &str, direction, effect: &str| Remedy {
            flag: flag.to_owned(),
            direction,
            value: None,
            effect: effect.to_owned(),
        };
        let [card, fraction, tp, autotune, graphs] = flags(engine);
        let lower = remedy(fraction, "lower", "leaves more outside the pool");
        match self {
            Self::Context => vec![remedy(card, "set", "a card with more free memory")],
            Self::Load => vec![
                remedy(tp, "raise", "a smaller part of every tensor on each card"),
                remedy("--quantization", "remove", "no conversion, with a checkpoint made for it"),
            ],
            Self::DraftLoad
            | Self::Workspaces
            | Self::Unaccounted
            | Self::Pool
            | Self::DraftPool => vec![lower],
            Self::Autotune => vec![remedy(autotune, "set", "kernels run untuned"), lower],
            Self::Graphs | Self::DraftGraphs => {
                vec![remedy(graphs, "lower", "fewer and smaller graphs"), lower]
            }
            Self::HostPool => vec![remedy("--hicache-size", "lower", "a smaller host pool")],
        }
    }
}

/// Flags of the remedies: card, fraction, tensor parallelism, autotuning, largest graph.
const fn flags(engine: Engine) -> [&'static str; 5] {
    match engine {
        Engine::Sglang => [
            "--base-gpu-id",
            "--mem-fraction-static",
            "--tp",
            "--disable-flashinfer-autotune",
            "--cuda-graph-max-bs",
        ],
        Engine::Vllm => [
            "CUDA_VISIBLE_DEVICES",
            "--gpu-memory-utilization",
            "--tensor-parallel-size",
            "--no-enable-flashinfer-autotune",
            "--max-cudagraph-capture-size",
        ],
    }
}
