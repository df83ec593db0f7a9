//! Who wrote a line.

use std::fmt;

/// The process of a server that wrote a line, from its tag: `[… DP0 TP3 EP3]` (SGLang),
/// `(VllmWorker rank=3 pid=…)`, `(Worker_TP3 pid=…)`, `(EngineCore_DP0 pid=…)` (vLLM). Figures of
/// different ranks are never paired. The order is that of the fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank {
    /// Data-parallel rank.
    pub dp: Option<u32>,
    /// Pipeline stage.
    pub pp: Option<u32>,
    /// Tensor-parallel rank.
    pub tp: Option<u32>,
    /// Expert-parallel rank.
    pub ep: Option<u32>,
    /// A worker numbered without saying by what (`rank=3`, `VllmWorkerProcess pid=…` by order of appearance).
    pub worker: Option<u32>,
}

impl Rank {
    /// No tag: the only process, the main process or a pasted line.
    pub const NONE: Self = Self { dp: None, pp: None, tp: None, ep: None, worker: None };

    /// Tensor-parallel rank `n`, nothing else known.
    #[must_use]
    pub const fn tp(n: u32) -> Self {
        Self { tp: Some(n), ..Self::NONE }
    }

    /// Whether the line had no tag.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// `DP0 TP3`; empty without a tag.
impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("DP", self.dp),
            ("PP", self.pp),
            ("TP", self.tp),
            ("EP", self.ep),
            ("rank ", self.worker),
        ];
        let mut gap = "";
        for (name, value) in parts {
            if let Some(value) = value {
                write!(f, "{gap}{name}{value}")?;
                gap = " ";
            }
        }
        Ok(())
    }
}
