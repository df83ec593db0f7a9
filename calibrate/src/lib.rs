//! Fits the time model and the memory remainders of a profile to what was measured.
//!
//! Files become evidence ([`evidence`]): requests with times, passes, windows of a log, amounts of memory. The
//! engine's own scheduler is driven with the requests as they came ([`drive`]); how far its times lie from
//! the measured ones decides the coefficients ([`fit`]). What the data do not move keeps its assumed value.

pub mod drive;
pub mod evidence;
pub mod fit;
mod memory;
mod passes;
pub mod predict;
mod score;

pub use evidence::{Evidence, EvidenceError, File};
pub use predict::{Asked, Compared, Predicted, Predictor};

use fit::{Fitted, Parameter, Unknown};
use plimsoll_core::estimate::coefficients::{Coefficient, Coefficients};
use plimsoll_replay::{
    profile::{Basis, HoldsFor, Profile, Rate, Remainder, RemainderName, SCHEMA},
    serve::ServeError,
    start::{self, Case, CaseError},
};
use std::rc::Rc;

/// Why nothing can be fitted.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A file.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// The start of the case.
    #[error("{0}")]
    Case(#[from] CaseError),
    /// The server of the case.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// The case does not get to the requests, or never ends.
    #[error("{0}")]
    Run(String),
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Requests of each file that are fitted, in the order of their arrival; the rest is held out. `None`:
    /// half of them.
    pub fit_first: Option<usize>,
}

/// A profile, and what is said about it.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile.
    pub profile: Profile,
    /// Predicted beside measured, a list for each file of requests.
    pub compared: Vec<Compared>,
    /// Times that the simulator ran for the fit.
    pub runs: usize,
    /// The pool.
    pub pool: Pool,
    /// What was assumed of the coefficients.
    pub assumed: Coefficients,
    /// What was left out or assumed, a sentence each.
    pub notes: Vec<String>,
}

/// Tokens of the pool of the case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    /// By the rules, and by the memory that the files show.
    pub predicted: u64,
    /// Between which it lies by the rules, where the files do not show it.
    pub interval: Option<(u64, u64)>,
    /// What the times say, where they say anything of it.
    pub fitted: Option<u64>,
}

/// Fits a profile of a case to what was measured of it.
///
/// # Errors
///
/// [`CalibrateError`]: a file that cannot be read, or a case that does not serve.
pub fn calibrate(
    case: &Case,
    files: &[File<'_>],
    options: Options,
) -> Result<Calibration, CalibrateError> {
    let mut evidence = Evidence::read(files, options.fit_first)?;
    let mut case = Case { facts: case.facts.clone(), ..case.clone() };
    case.facts.profile = None;
    let holds_for = HoldsFor::of(&case);
    let mut memory = memory::remainders(&case, &evidence)?;
    memory.iter().for_each(|remainder| memory::put(&mut case, remainder));
    let ran = start::run(&case)?;
    let predictor = Predictor::new(&case, &ran)?;
    evidence.windows.retain(|window| predictor.context(window).is_some());
    let fitted = match evidence.has_times() {
        true => fit::fit(&parameters(&predictor), evidence.alike(), &|values| {
            let runs = score::drive(&predictor, &asked(&predictor, values), &evidence)?;
            let (predictor, evidence) = (&predictor, &evidence);
            Ok(Rc::new(move |values| {
                score::residuals(predictor, &asked(predictor, values), evidence, &runs)
            }))
        })?,
        false => Fitted::assumed(&parameters(&predictor)),
    };
    let found: Vec<(Unknown, u64)> =
        fitted.estimates.iter().map(|one| (one.which, fit::value(one.log))).collect();
    let values = asked(&predictor, &found);
    let (residual, compared) = score::scores(&predictor, &values, &evidence)?;
    memory.extend(fitted_pool(&predictor, &fitted, &evidence));
    let profile = Profile {
        schema: SCHEMA.to_owned(),
        plimsoll: env!("CARGO_PKG_VERSION").to_owned(),
        holds_for,
        time: rates(&values, &fitted),
        memory,
        sources: evidence.sources.clone(),
        residual,
    };
    let pool = Pool {
        predicted: predictor.pool_tokens(),
        interval: predictor.pool_interval(),
        fitted: values.pool.filter(|pool| *pool != predictor.pool_tokens()),
    };
    let assumed = predictor.assumed();
    Ok(Calibration { profile, compared, runs: fitted.runs, pool, assumed, notes: evidence.notes })
}

/// The values of a fit; what it leaves out is assumed.
fn asked(predictor: &Predictor<'_>, found: &[(Unknown, u64)]) -> Asked {
    let mut asked = Asked { rates: predictor.assumed(), pool: None };
    for (unknown, value) in found {
        match unknown {
            Unknown::Rate(which) => asked.rates = asked.rates.with(*which, *value),
            Unknown::Pool { .. } => asked.pool = Some(*value),
        }
    }
    asked
}

fn rates(values: &Asked, fitted: &Fitted) -> Vec<Rate> {
    let rate = |one: &fit::Estimate| {
        let Unknown::Rate(which) = one.which else { return None };
        Some(Rate {
            name: which.name().to_owned(),
            value: values.rates.get(which),
            basis: if one.moved { Basis::Fitted } else { Basis::Assumed },
            deviation_ppm: (one.deviation * 1e6).round().clamp(0.0, 1e12) as u64,
        })
    };
    fitted.estimates.iter().filter_map(rate).collect()
}

/// A pool that the times say, as what the profile run must have taken.
fn fitted_pool(
    predictor: &Predictor<'_>,
    fitted: &Fitted,
    evidence: &Evidence,
) -> Option<Remainder> {
    let pool = |one: &&fit::Estimate| matches!(one.which, Unknown::Pool { .. }) && one.moved;
    let one = fitted.estimates.iter().find(pool)?;
    let files: Vec<&str> = evidence.samples.iter().map(|sample| sample.file.as_str()).collect();
    Some(Remainder {
        name: RemainderName::ActivationPeak,
        measured_bytes: predictor.peak_with_pool(fit::value(one.log)).0,
        predicted_bytes: predictor.peak().0,
        place: format!("fitted on the times of {}", files.join(", ")),
    })
}

/// What the case's time model depends on, with how much each assumption is believed: one deviation of its
/// logarithm.
fn parameters(predictor: &Predictor<'_>) -> Vec<Parameter> {
    let used = |which: &Coefficient| match which {
        Coefficient::Experts => predictor.has_experts(),
        Coefficient::Link | Coefficient::Collective => predictor.has_links(),
        _ => true,
    };
    let doubt = |which| match which {
        Coefficient::WeightBandwidth => 0.12,
        Coefficient::KvBandwidth => 0.25,
        Coefficient::Matmul => 0.3,
        Coefficient::Step | Coefficient::Link => 0.5,
        Coefficient::Request
        | Coefficient::Attention
        | Coefficient::Experts
        | Coefficient::Collective => 0.7,
    };
    let assumed = predictor.assumed();
    let parameter = |which| Parameter {
        which: Unknown::Rate(which),
        assumed: assumed.get(which),
        doubt: doubt(which),
    };
    let mut all: Vec<Parameter> =
        Coefficient::ALL.into_iter().filter(used).map(parameter).collect();
    if let Some((least, most)) = predictor.pool_interval() {
        let which = Unknown::Pool { least, most };
        all.push(Parameter { which, assumed: predictor.pool_tokens(), doubt: 0.1 });
    }
    all
}
