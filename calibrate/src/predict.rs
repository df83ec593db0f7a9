//! A case asked for its times under given coefficients.

use crate::{
    CalibrateError,
    drive::{self, Driven, Times},
    memory, passes,
};
use plimsoll_core::{
    estimate::{
        Figure,
        coefficients::{Coefficient, Coefficients},
        roofline::{StepShape, TimeModel},
        time_inputs::TimeBasis,
    },
    figure::{Estimate, Tag},
    sched::Scheduler,
    units::{Bytes, Nanos},
};
use plimsoll_ingest::measured::{Request, Window};
use plimsoll_replay::{
    serve::{self, ServeError},
    start::{self, Case, CaseLaunch, Fact, Policy, Ran},
};

/// Under what a case is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The coefficients of its time.
    pub rates: Coefficients,
    /// Tokens of its pool; `None`: as the start sized it.
    pub pool: Option<u64>,
}

/// A started case that can be asked.
pub struct Predictor<'a> {
    case: &'a Case,
    ran: &'a Ran,
    /// What is assumed of its times.
    basis: TimeBasis,
    layers: u64,
    pool: u64,
    /// Data-parallel ranks, each with a scheduler of its own.
    ranks: u32,
}

/// Predicted beside measured, for one file of requests.
#[derive(Clone, PartialEq, Debug)]
pub struct Compared {
    /// The file.
    pub file: String,
    /// Requests that were fitted.
    pub fitted: usize,
    /// Measured and predicted, in the order of arrival.
    pub rows: Vec<(Request, Predicted)>,
}

/// Predicted times of a request; `None` where it is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predicted {
    /// To the first token, counted from where the measurement counts.
    pub ttft: Option<Nanos>,
    /// Of a token after the first.
    pub tpot: Option<Nanos>,
    /// From where the first is counted to the last token.
    pub latency: Option<Nanos>,
}

impl<'a> Predictor<'a> {
    /// Asks a started case.
    ///
    /// # Errors
    ///
    /// [`ServeError`]: it did not start, or cannot serve.
    pub fn new(case: &'a Case, ran: &'a Ran) -> Result<Self, ServeError> {
        let timed = serve::timed(case, ran)?;
        let ranks = match &case.launch {
            CaseLaunch::Vllm(args) => args.data_parallel_size.max(1),
            // SGLang's data-parallel attention divides one batch.
            CaseLaunch::Sglang(_) => 1,
        };
        let (layers, pool) = (serve::layers(case), memory::pool(ran).0);
        Ok(Self { case, ran, basis: timed.time, layers, pool, ranks })
    }

    /// What is assumed.
    #[must_use]
    pub const fn assumed(&self) -> Coefficients {
        Coefficients::assumed(self.case.device.link)
    }

    /// Whether the model has routed experts.
    #[must_use]
    pub const fn has_experts(&self) -> bool {
        self.basis.model.experts.bytes > 0
    }

    /// Whether its ranks speak to each other in every layer.
    #[must_use]
    pub const fn has_links(&self) -> bool {
        self.basis.model.link_bytes_per_token > 0
    }

    /// Tokens of the pool.
    #[must_use]
    pub const fn pool_tokens(&self) -> u64 {
        self.pool
    }

    /// The time model.
    #[must_use]
    pub fn model(&self, values: &Coefficients) -> TimeModel {
        let mut basis = TimeBasis { model: self.basis.model, figures: Vec::new() };
        let evidence = |_: Coefficient| (Tag::Calibrated, String::new());
        basis.calibrate(&self.case.device, self.layers, values, &evidence);
        basis.model
    }

    /// Serves the requests until the first `until` are over.
    ///
    /// # Errors
    ///
    /// [`CalibrateError`]: the scheduler dies or does not end.
    pub fn times(
        &self,
        values: &Asked,
        requests: &[Request],
        until: usize,
    ) -> Result<Driven, CalibrateError> {
        let schedulers = match values.pool.filter(|pool| *pool != self.pool) {
            None => self.schedulers(self.case, self.ran)?,
            Some(pool) => {
                let case = self.with_pool(pool);
                self.schedulers(&case, &start::run(&case)?)?
            }
        };
        let model = self.model(&values.rates);
        drive::drive(schedulers, &model, requests, until).map_err(CalibrateError::Run)
    }

    fn schedulers(&self, case: &Case, ran: &Ran) -> Result<Vec<Box<dyn Scheduler>>, ServeError> {
        (0..self.ranks).map(|_| Ok(serve::timed(case, ran)?.scheduler)).collect()
    }

    /// The tokens between which the pool lies, where that is not known: the rules leave an interval for what
    /// vLLM's profile run takes.
    #[must_use]
    pub fn pool_interval(&self) -> Option<(u64, u64)> {
        let CaseLaunch::Vllm(args) = &self.case.launch else { return None };
        let given = args.kv_cache_memory_bytes.is_some()
            || args.num_gpu_blocks_override.is_some()
            || self.case.facts.activation_peak.is_some();
        let per_token = self.bytes_per_token().filter(|_| !given)?;
        let spread = |estimate: &Figure| {
            let Estimate { low, mid, high } = estimate.value;
            (mid.0.saturating_sub(low.0) / per_token, high.0.saturating_sub(mid.0) / per_token)
        };
        let (more, fewer) = self
            .ran
            .basis
            .charged
            .iter()
            .map(spread)
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Some((self.pool.saturating_sub(fewer).max(self.pool / 4).max(1), self.pool + more))
    }

    /// Memory for the pool over its tokens.
    fn bytes_per_token(&self) -> Option<u64> {
        let Policy::Vllm(start) = &self.ran.policy else { return None };
        let available = start.ranks().iter().map(|rank| rank.available).min()?;
        u64::try_from(available).ok()?.checked_div(self.pool).filter(|bytes| *bytes > 0)
    }

    /// What the profile run takes where the pool has so many tokens.
    #[must_use]
    pub fn peak_with_pool(&self, pool: u64) -> Bytes {
        let per_token = self.bytes_per_token().unwrap_or_default();
        let peak = self.ran.basis.transient.value.mid.0;
        let less = self.pool.saturating_sub(pool).saturating_mul(per_token);
        let more = pool.saturating_sub(self.pool).saturating_mul(per_token);
        Bytes(peak.saturating_add(less).saturating_sub(more))
    }

    /// What the rules say the profile run takes.
    #[must_use]
    pub const fn peak(&self) -> Bytes {
        self.ran.basis.transient.value.mid
    }

    fn with_pool(&self, pool: u64) -> Case {
        let mut case = self.case.clone();
        let peak = Fact::all(self.peak_with_pool(pool), Tag::Calibrated, "fitted on times");
        case.facts.activation_peak = Some(peak);
        case
    }

    /// The same as times of requests, counted as the measurement counts.
    ///
    /// # Errors
    ///
    /// As [`Self::times`].
    pub fn predict(
        &self,
        values: &Asked,
        requests: &[Request],
        until: usize,
    ) -> Result<Vec<Predicted>, CalibrateError> {
        Ok(predicted(requests, &self.times(values, requests, until)?.times))
    }

    /// Tokens that a window's requests hold.
    #[must_use]
    pub fn context(&self, window: &Window) -> Option<f64> {
        let of_usage = || Some(window.usage? * self.pool as f64);
        window.held_tokens.or_else(of_usage).filter(|held| *held >= window.running)
    }

    /// The pass of a window.
    #[must_use]
    pub fn shape(&self, window: &Window) -> StepShape {
        let context = self.context(window).unwrap_or(window.running);
        passes::decode(window.running.round() as u64, context.round() as u64)
    }
}

/// Times of requests, counted as the measurement counts.
#[must_use]
pub fn predicted(requests: &[Request], times: &[Times]) -> Vec<Predicted> {
    let each = |(request, times): (&Request, &Times)| {
        let from = match request.queued {
            Some(_) => times.taken,
            None => request.arrival,
        };
        let since = |at: Nanos, from: Nanos| Nanos(at.0.saturating_sub(from.0));
        let gaps = request.output.saturating_sub(1);
        let both = times.first.zip(times.last).filter(|_| gaps > 0);
        Predicted {
            // A request that the run did not get to is not answered.
            ttft: times.first.map(|first| since(first, from)),
            tpot: both.map(|(first, last)| Nanos(since(last, first).0 / gaps)),
            latency: times.last.map(|last| since(last, from)),
        }
    };
    requests.iter().zip(times).map(each).collect()
}
