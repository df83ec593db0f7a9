//! How far predicted times lie from measured ones: as residuals of the fit, and as scores for people.

use crate::{
    CalibrateError, Evidence, Predictor,
    drive::Driven,
    evidence::{PassTime, Sample},
    predict::{Asked, Compared, Predicted, predicted},
};
use plimsoll_core::units::Nanos;
use plimsoll_ingest::measured::{Request, Window};
use plimsoll_replay::profile::{Metric, Part, Residual};

/// Deviations of what is compared: a step's worth of a waiting time is noise, whatever its share is.
const OF_TPOT: f64 = 0.02;
const OF_TTFT: f64 = 0.15;
const SLACK_NANOS: f64 = 1e8;
const OF_PASS: f64 = 0.02;
const OF_WINDOW: f64 = 0.05;
/// Most passes that are fitted: more of them say the same.
const MOST_PASSES: usize = 2000;

/// The runs of every file of requests, up to the last request that is fitted.
pub(crate) fn drive(
    predictor: &Predictor<'_>,
    values: &Asked,
    evidence: &Evidence,
) -> Result<Vec<Driven>, CalibrateError> {
    let run = |sample: &Sample| predictor.times(values, &sample.requests, sample.fitted);
    evidence.samples.iter().map(run).collect()
}

/// The residuals of everything that is fitted, in runs whose passes are what they were.
pub(crate) fn residuals(
    predictor: &Predictor<'_>,
    values: &Asked,
    evidence: &Evidence,
    runs: &[Driven],
) -> Vec<f64> {
    let mut out = Vec::new();
    let model = predictor.model(&values.rates);
    for (sample, run) in evidence.samples.iter().zip(runs) {
        let fitted = sample.fitted.min(sample.requests.len());
        let predicted = predicted(&sample.requests, &run.again(&model));
        for (request, predicted) in sample.requests.iter().zip(predicted).take(fitted) {
            out.push(ratio(predicted.ttft, request.ttft(), SLACK_NANOS) / OF_TTFT);
            if let Some(tpot) = request.tpot() {
                out.push(ratio(predicted.tpot, tpot, 0.0) / OF_TPOT);
            }
        }
    }
    let (fitted, _) = halves(&evidence.passes);
    for pass in fitted {
        out.push(ratio(Some(model.step(&pass.shape)), pass.elapsed, 0.0) / OF_PASS);
    }
    for window in &evidence.windows {
        let step = model.step(&predictor.shape(window));
        out.push(ratio(Some(step), step_of(window), 0.0) / OF_WINDOW);
    }
    out
}

/// Logarithm of predicted over measured; what is not answered at all is far off.
fn ratio(predicted: Option<Nanos>, measured: Nanos, slack: f64) -> f64 {
    let Some(predicted) = predicted else { return 3.0 };
    let of = |nanos: Nanos| nanos.0.max(1) as f64 + slack;
    libm::log(of(predicted) / of(measured))
}

/// Time of a pass of a window: of every request one token.
fn step_of(window: &Window) -> Nanos {
    Nanos((window.running / window.output_per_second * 1e9).round().max(1.0) as u64)
}

/// Every other pass is fitted and the rest held out: both parts then have the same loads.
fn halves(passes: &[PassTime]) -> (Vec<&PassTime>, Vec<&PassTime>) {
    let every = passes.len().div_ceil(MOST_PASSES).max(1);
    let picked: Vec<&PassTime> = passes.iter().step_by(every).collect();
    let fitted = picked.iter().copied().step_by(2).collect();
    let held_out = picked.iter().copied().skip(1).step_by(2).collect();
    (fitted, held_out)
}

/// Scores of a set of coefficients, and requests side by side.
pub(crate) fn scores(
    predictor: &Predictor<'_>,
    values: &Asked,
    evidence: &Evidence,
) -> Result<(Vec<Residual>, Vec<Compared>), CalibrateError> {
    let mut compared = Vec::new();
    for sample in &evidence.samples {
        compared.push(compare(predictor, values, sample)?);
    }
    let mut pairs = Pairs::default();
    for one in &compared {
        for (at, (request, predicted)) in one.rows.iter().enumerate() {
            let part = if at < one.fitted { Part::Fitted } else { Part::HeldOut };
            pairs.add(part, Metric::Ttft, request.ttft(), predicted.ttft);
            if let Some(tpot) = request.tpot() {
                pairs.add(part, Metric::Tpot, tpot, predicted.tpot);
            }
        }
    }
    let model = predictor.model(&values.rates);
    let (fitted, held_out) = halves(&evidence.passes);
    for (part, passes) in [(Part::Fitted, fitted), (Part::HeldOut, held_out)] {
        for pass in passes {
            pairs.add(part, Metric::Pass, pass.elapsed, Some(model.step(&pass.shape)));
        }
    }
    for window in &evidence.windows {
        let step = model.step(&predictor.shape(window));
        // A pass that takes longer makes fewer tokens.
        pairs.add(Part::Fitted, Metric::Throughput, step, Some(step_of(window)));
    }
    Ok((pairs.residuals(), compared))
}

fn compare(
    predictor: &Predictor<'_>,
    values: &Asked,
    sample: &Sample,
) -> Result<Compared, CalibrateError> {
    let all = sample.requests.len();
    let predicted: Vec<Predicted> = predictor.predict(values, &sample.requests, all)?;
    let rows: Vec<(Request, Predicted)> = sample.requests.iter().copied().zip(predicted).collect();
    Ok(Compared { file: sample.file.clone(), fitted: sample.fitted, rows })
}

/// Measured and predicted of each part and metric.
#[derive(Default)]
struct Pairs(std::collections::BTreeMap<(Part, Metric), Vec<(u64, u64)>>);

impl Pairs {
    /// What is not answered counts as nothing: an error of the whole.
    fn add(&mut self, part: Part, metric: Metric, measured: Nanos, predicted: Option<Nanos>) {
        let pair = (measured.0.max(1), predicted.map_or(0, |nanos| nanos.0));
        self.0.entry((part, metric)).or_default().push(pair);
    }

    fn residuals(self) -> Vec<Residual> {
        self.0.into_iter().map(|((part, metric), pairs)| residual(part, metric, &pairs)).collect()
    }
}

fn residual(part: Part, metric: Metric, pairs: &[(u64, u64)]) -> Residual {
    let total = |of: fn(&(u64, u64)) -> u64| pairs.iter().map(|p| u128::from(of(p))).sum::<u128>();
    let (measured, predicted) = (total(|p| p.0).max(1), total(|p| p.1));
    let million =
        |part: u128, whole: u128| i64::try_from(part * 1_000_000 / whole).unwrap_or(i64::MAX);
    let single = |(measured, predicted): &(u64, u64)| {
        let apart = u128::from(measured.abs_diff(*predicted));
        million(apart, u128::from(*measured)).unsigned_abs()
    };
    let sum: u128 = pairs.iter().map(|pair| u128::from(single(pair))).sum();
    let count = pairs.len() as u64;
    Residual {
        part,
        metric,
        count,
        mean_error_ppm: million(predicted, measured).saturating_sub(1_000_000),
        typical_error_ppm: u64::try_from(sum / u128::from(count.max(1))).unwrap_or(u64::MAX),
        worst_error_ppm: pairs.iter().map(single).max().unwrap_or(0),
    }
}
