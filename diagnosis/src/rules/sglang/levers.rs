//! Flags with values and what they give, from the figures of the log itself.

use plimsoll_core::plan::Advice;
use plimsoll_core::units::{GIB, group_thousands};
use plimsoll_ingest::log::Amount;

use super::settings::Settings;
use super::start::Start;
use crate::oom::size;
use crate::reconstruct::{WhatIf, known_fraction};
use crate::study::Study;
use crate::{Case, Lever, Move, Planned};

/// The flag of the fraction.
pub(super) const FRACTION: &str = "--mem-fraction-static";

/// Below this a lower fraction is not tried: the release's smallest automatic value is near it.
const LEAST_STEP: f64 = 0.02;

/// What the fraction is a fraction of and what it was, as far as the log says.
#[derive(Clone, Debug, Default)]
pub(super) struct Scale {
    /// The fraction in force.
    pub(super) fraction: Option<f64>,
    /// Free memory before the weights; the capacity where no line gives it.
    pub(super) base: Option<Amount>,
    /// Bytes of a token slot.
    pub(super) cell: Option<i64>,
    /// What other fractions would give, where the start printed enough.
    what_if: Option<WhatIf>,
    /// The fraction that the plan advises, where model and device are known.
    pub(super) planned: Option<f64>,
}

impl Scale {
    /// Of a start, with the capacity of a failure's text as the second choice.
    pub(super) fn of(
        case: &Case,
        settings: &Settings,
        start: Option<&Start<'_>>,
        capacity: Option<Amount>,
    ) -> Self {
        let base = start.and_then(Start::base).or(capacity).filter(|base| base.bytes > 0);
        let cell = start.and_then(|start| {
            let bytes = start.pool_bytes()?;
            let (_, tokens, _) = *start.pools.first()?;
            let tokens = i64::try_from(tokens?).ok().filter(|t| *t > 0)?;
            Some(bytes.bytes / tokens).filter(|cell| *cell > 0)
        });
        let study = Study::of(case);
        let what_if = study.what_if();
        let solved = || what_if.filter(|w| w.fraction_half < 0.005).map(|w| w.fraction);
        let known = || known_fraction(case).map(|fraction| fraction.value);
        let fraction = settings.fraction.or_else(known).or_else(solved);
        Self { fraction, base, cell, what_if, planned: planned(&study) }
    }

    /// Lower the fraction so that `missing` is free outside the pool, in steps of 0.01 and by 0.02 at least.
    pub(super) fn lower(&self, missing: Option<Amount>) -> Lever {
        let lever = Lever::new(FRACTION, Move::Lower);
        let Some(base) = self.base else {
            return lever.gives(
                "every 0.01 frees a hundredth of what was free before the weights; the log has no such line",
            );
        };
        let total = base.bytes as f64;
        let need = missing.map_or(0.0, |missing| missing.most().max(0) as f64 / total);
        let step = ((need * 100.0).ceil() / 100.0).max(LEAST_STEP);
        let frees = Amount::exact((step * total) as i64);
        let tokens = self.tokens(frees);
        match self.fraction {
            Some(fraction) if fraction - step > 0.0 => {
                // What was missing says what this pass needed; the plan, what the heaviest one does.
                let value = self.planned.unwrap_or(1.0).min(fraction - step);
                let value = ((value + 1e-9) * 100.0).floor() / 100.0;
                let frees = Amount::exact(((fraction - value) * total) as i64);
                let tokens = self.tokens(frees).or(tokens);
                let at = self.what_if.map(|what_if| what_if.at_fraction(value));
                let rest = match (at.filter(|at| at.tokens.is_some()), tokens) {
                    (Some(at), _) => format!(": {}", at.words()),
                    (None, Some(tokens)) => format!(", {tokens} tokens fewer"),
                    (None, None) => String::new(),
                };
                lever
                    .to(format!("{value:.2}"))
                    .gives(format!("{} more outside the pool{rest}", size(frees)))
            }
            _ => {
                let loss = tokens.map_or(String::new(), |t| format!(" and takes {t} tokens"));
                lever.gives(format!(
                    "by {step:.2} below the value in force, which frees {}{loss}; the log does not print that value",
                    size(frees)
                ))
            }
        }
    }

    /// Raise it above a floor: the next step of 0.01 that leaves at least a fiftieth for the pool, below 1.
    pub(super) fn raise_above(&self, floor: f64) -> Lever {
        let value = (((floor + 0.02) * 100.0).ceil() / 100.0).min(0.99);
        let lever = Lever::new(FRACTION, Move::Raise).to(format!("{value:.2}"));
        match self.base {
            Some(base) => {
                let pool = Amount::exact(((value - floor) * base.bytes as f64) as i64);
                let outside = Amount::exact(((1.0 - value) * base.bytes as f64) as i64);
                let tokens = self.tokens(pool).map_or(String::new(), |t| format!(" ({t} tokens)"));
                lever.gives(format!(
                    "{} for the pools{tokens}; {} stay outside for graphs and activations",
                    size(pool),
                    size(outside)
                ))
            }
            None => lever.gives(format!(
                "{:.1} % of what was free before the weights for the pools",
                (value - floor) * 100.0
            )),
        }
    }

    fn tokens(&self, bytes: Amount) -> Option<String> {
        let tokens = u64::try_from(bytes.bytes / self.cell?).ok().filter(|t| *t > 0)?;
        Some(group_thousands(tokens))
    }
}

/// What the plan of the rank that decides advises below the fraction in force; of several devices that it may be, the
/// lowest, where all advise to lower it.
fn planned(study: &Study<'_>) -> Option<f64> {
    let lower = |planned: &Planned| match planned.plan.advice {
        Some(Advice::Lower { to }) => Some(to),
        _ => None,
    };
    let values: Option<Vec<f64>> = study.plans.iter().map(lower).collect();
    values?.into_iter().min_by(f64::total_cmp)
}

/// `0.9` as `0.9`, `0.8714` as `0.8714`: no more digits than it has.
pub(super) fn fraction_text(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
}

/// Decimal gigabytes, which SGLang's lines of host memory print.
pub(super) fn decimal_gb(amount: Amount) -> String {
    format!("{:.2} GB", amount.bytes as f64 / 1e9)
}

/// An amount of `gib` GiB.
pub(super) const fn gib(gib: i64) -> i64 {
    gib * GIB as i64
}
