//! What the configuration alone predicts for a start whose readings were solved or fitted.

use crate::start::{Case, Fact, Facts};
use plimsoll_core::{
    figure::{Estimate, FigureValue, Tag},
    units::Bytes,
};

/// A start without its calibrated readings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blind {
    /// Token slots of the pool; `None` when that start does not get so far.
    pub pool_tokens: Option<u64>,
    /// Left after graphs, with its interval; `None` when that start does not get ready.
    pub left: Option<Estimate>,
}

/// The prediction beside a case that rests on calibrated readings; `None` where nothing is calibrated, or
/// where the case cannot start without them.
#[must_use]
pub fn blind(case: &Case) -> Option<Blind> {
    let facts = measured_only(&case.facts);
    if facts == case.facts {
        return None;
    }
    let plan = crate::plan::plan(&Case { facts, ..case.clone() }).ok()?;
    let pool_tokens = match plan.ran.start.figure("max_total_num_tokens").map(|f| &f.value) {
        Some(FigureValue::Count(tokens)) => Some(*tokens),
        _ => None,
    };
    Some(Blind { pool_tokens, left: plan.left })
}

impl Blind {
    /// In one line: `231,792 tokens, 1.90 GiB left after graphs (0.70 to 2.30)`.
    #[must_use]
    pub fn text(&self) -> String {
        let tokens = self.pool_tokens.map_or_else(
            || "no pool".to_owned(),
            |tokens| format!("{} tokens", plimsoll_core::units::group_thousands(tokens)),
        );
        let gib = |bytes: Bytes| bytes.as_gib_f64();
        match self.left {
            None => format!("{tokens}, and the start does not get ready"),
            Some(left) => format!(
                "{tokens}, {:.2} GiB left after graphs ({:.2} to {:.2})",
                gib(left.mid),
                gib(left.low),
                gib(left.high)
            ),
        }
    }
}

/// The facts without those that were solved or fitted.
fn measured_only(facts: &Facts) -> Facts {
    let keep = |fact: &Option<Fact>| fact.clone().filter(|fact| fact.tag != Tag::Calibrated);
    Facts {
        free_before_load: keep(&facts.free_before_load),
        used_by_load: keep(&facts.used_by_load),
        free_after_load: keep(&facts.free_after_load),
        free_after_graphs: keep(&facts.free_after_graphs),
        graph_memory: keep(&facts.graph_memory),
        others: keep(&facts.others),
        total: keep(&facts.total),
        non_torch: keep(&facts.non_torch),
        activation_peak: keep(&facts.activation_peak),
        graph_estimate: keep(&facts.graph_estimate),
        mlx_active: keep(&facts.mlx_active),
        working_set: keep(&facts.working_set),
        host_available: keep(&facts.host_available),
        ..facts.clone()
    }
}
