//! How the engines divide a model over ranks: tensor, expert and pipeline parallelism, DP attention.

use std::ops::Range;

/// Whose rules divide and load the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loader {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

/// A division that the engine refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParallelError {
    /// A size is zero or beyond 65,536.
    #[error("{what} is {value}; allowed: 1 to 65536")]
    Size {
        /// Which size.
        what: &'static str,
        /// As given.
        value: u64,
    },
    /// One size must divide another.
    #[error("{whole_name} ({whole}) is not divisible by {part_name} ({part})")]
    NotDivisible {
        /// What is divided.
        whole_name: &'static str,
        /// Its size.
        whole: u64,
        /// What divides it.
        part_name: &'static str,
        /// Its size.
        part: u64,
    },
    /// More stages than layers, or a stage that does not exist.
    #[error("pipeline stage {stage} of {pp} does not fit {layers} layers")]
    Stage {
        /// Stage asked for, from 0.
        stage: u64,
        /// Stages.
        pp: u64,
        /// Layers of the model.
        layers: u64,
    },
}

/// Into how many parts each kind of weight is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parallel {
    /// Attention and linear attention.
    pub attention: u64,
    /// Dense feed-forward parts.
    pub dense: u64,
    /// Shared experts.
    pub shared: u64,
    /// Width of each routed expert.
    pub expert_tp: u64,
    /// Number of routed experts.
    pub expert_ep: u64,
    /// Input embedding.
    pub embedding: u64,
    /// Output head.
    pub head: u64,
    /// Pipeline stages.
    pub pp: u64,
}

impl Parallel {
    /// One rank.
    pub const ONE: Self = Self {
        attention: 1,
        dense: 1,
        shared: 1,
        expert_tp: 1,
        expert_ep: 1,
        embedding: 1,
        head: 1,
        pp: 1,
    };

    /// SGLang: `--tp`, `--pp-size`, `--ep-size` and, under `--enable-dp-attention`, `--dp-size`
    /// (else 1). Attention and embedding are divided by tp / dp, experts by ep and tp / ep,
    /// everything else by tp. Source: `layers/dp_attention.py`, `layers/moe/fused_moe_triton`.
    ///
    /// # Errors
    /// Sizes out of range, tp not divisible by dp or ep.
    pub fn sglang(tp: u64, pp: u64, ep: u64, dp_attention: u64) -> Result<Self, ParallelError> {
        for (what, value) in [("tp", tp), ("pp", pp), ("ep", ep), ("dp", dp_attention)] {
            in_range(what, value)?;
        }
        divides(("tp", tp), ("dp", dp_attention))?;
        divides(("tp", tp), ("ep", ep))?;
        let attention = tp / dp_attention;
        Ok(Self {
            attention,
            dense: tp,
            shared: tp,
            expert_tp: tp / ep,
            expert_ep: ep,
            embedding: attention,
            head: tp,
            pp,
        })
    }

    /// vLLM: `--tensor-parallel-size`, `--pipeline-parallel-size`, `--data-parallel-size`; with
    /// `--enable-expert-parallel` experts are divided whole by tp times dp, else by width over the
    /// same ranks. Source: `model_executor/layers/fused_moe/config.py`, `FusedMoEParallelConfig`.
    ///
    /// # Errors
    /// Sizes out of range.
    pub fn vllm(tp: u64, pp: u64, dp: u64, experts: ExpertSplit) -> Result<Self, ParallelError> {
        for (what, value) in [("tp", tp), ("pp", pp), ("dp", dp)] {
            in_range(what, value)?;
        }
        let all = tp * dp;
        in_range("tp times dp", all)?;
        let (expert_tp, expert_ep) = match experts {
            ExpertSplit::Width => (all, 1),
            ExpertSplit::Whole => (1, all),
        };
        let (attention, dense, shared) = (tp, tp, tp);
        Ok(Self { attention, dense, shared, expert_tp, expert_ep, embedding: tp, head: tp, pp })
    }
}

/// How vLLM divides routed experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpertSplit {
    /// Every expert on every rank, a slice of it each.
    Width,
    /// Whole experts, some on each rank (`--enable-expert-parallel`).
    Whole,
}

fn in_range(what: &'static str, value: u64) -> Result<(), ParallelError> {
    if (1..=65_536).contains(&value) { Ok(()) } else { Err(ParallelError::Size { what, value }) }
}

pub(crate) fn divides(
    whole: (&'static str, u64),
    part: (&'static str, u64),
) -> Result<(), ParallelError> {
    if whole.1.is_multiple_of(part.1.max(1)) {
        return Ok(());
    }
    Err(ParallelError::NotDivisible {
        whole_name: whole.0,
        whole: whole.1,
        part_name: part.0,
        part: part.1,
    })
}

/// Layers of stage `stage` of `pp`. A rest goes to the last stages one each in SGLang
/// (`distributed/utils.py` `get_pp_indices`), to the stages before the last one, from the back, in
/// vLLM (the function of the same name).
///
/// # Errors
/// `Stage` when there is no such stage or it would be empty.
pub fn stage_layers(
    loader: Loader,
    layers: u64,
    pp: u64,
    stage: u64,
) -> Result<Range<u64>, ParallelError> {
    if pp == 0 || stage >= pp || layers < pp {
        return Err(ParallelError::Stage { stage, pp, layers });
    }
    let (each, rest) = (layers / pp, layers % pp);
    let size = |s: u64| match loader {
        Loader::Sglang => each + u64::from(s >= pp - rest),
        Loader::Vllm => each + u64::from(s + 1 < pp && s + 1 + rest >= pp),
    };
    let start: u64 = (0..stage).map(size).sum();
    Ok(start..start + size(stage))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(loader: Loader, layers: u64, pp: u64) -> Vec<u64> {
        (0..pp)
            .map(|s| stage_layers(loader, layers, pp, s).map_or(0, |r| r.end - r.start))
            .collect()
    }

    #[test]
    fn stages_take_the_rest_where_the_engines_put_it() {
        assert_eq!(sizes(Loader::Sglang, 61, 4), [15, 15, 15, 16]);
        assert_eq!(sizes(Loader::Vllm, 61, 4), [15, 15, 16, 15]);
        assert_eq!(sizes(Loader::Vllm, 35, 4), [9, 9, 9, 8]);
        assert_eq!(sizes(Loader::Sglang, 35, 4), [8, 9, 9, 9]);
        assert!(stage_layers(Loader::Vllm, 3, 4, 0).is_err());
    }

    #[test]
    fn divisions_that_do_not_go_up_are_refused() {
        assert!(Parallel::sglang(8, 1, 3, 1).is_err());
        assert!(Parallel::sglang(8, 1, 8, 3).is_err());
        assert!(Parallel::sglang(0, 1, 1, 1).is_err());
        let p = Parallel::sglang(16, 1, 16, 16).unwrap();
        assert_eq!((p.attention, p.expert_ep, p.expert_tp, p.head), (1, 16, 1, 16));
    }
}
