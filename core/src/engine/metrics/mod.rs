//! Metrics of a run: throughput, latencies, goodput, and what the pool and the queue went through.
//!
//! [`Metrics`] watches the loop of a server and is asked for its [`MetricsReport`] whenever it is wanted. It
//! knows model time alone, so that every body of a server has the same metrics. Definitions are those of the
//! engines' own benchmark clients; `docs/metrics.md` has each with its source.

mod histogram;
mod life;
mod names;
mod pool;
mod report;
mod slo;
mod summary;
#[cfg(test)]
mod tests;

pub use histogram::Histogram;
pub use names::{METRICS, MetricSpec, Unit};
pub use report::MetricsReport;
pub use slo::Slo;
pub use summary::Summary;

use super::serving::{Arrival, PassSeen, QuietRun, Watcher};
use crate::{
    sched::{Decision, Deferral, Finish, RequestId, Row},
    units::Nanos,
};
use life::{Life, Stage};
use pool::OverTime;

/// Watches a run and measures it.
///
/// A pass costs a few nanoseconds a request, a run of quiet passes as much as one pass and a few nanoseconds
/// a pass more. Memory: about 100 bytes a request.
#[derive(Clone, Debug)]
pub struct Metrics {
    page_size: u64,
    slo: Slo,
    /// By number of the request. A request whose number does not follow that of the one before is not
    /// followed.
    lives: Vec<Life>,
    /// Who was in the latest pass.
    members: Vec<RequestId>,
    over_time: OverTime,
    /// Gaps between tokens.
    gaps: Histogram,
    /// The latest of them, not in the histogram yet.
    latest: Gaps,
    first_arrival: Option<u64>,
    ttft: Vec<u64>,
    tpot: Vec<u64>,
    e2e: Vec<u64>,
    queue_time: Vec<u64>,
    admitted_tokens: u64,
    counts: MetricsReport,
    good: u64,
}

/// Equal gaps in a row. Those of one batch are mostly the same: they are counted together.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    value: u64,
    times: u64,
}

impl Gaps {
    /// One more; others than it go into the histogram first.
    fn add(&mut self, gap: Option<u64>, histogram: &mut Histogram) {
        let Some(gap) = gap else { return };
        if gap != self.value {
            self.flush(histogram);
            self.value = gap;
        }
        self.times += 1;
    }

    fn flush(&mut self, histogram: &mut Histogram) {
        histogram.add(Nanos(self.value), self.times);
        self.times = 0;
    }
}

impl Metrics {
    /// Of a server whose pages hold `page_size` tokens.
    #[must_use]
    pub fn new(page_size: u64, slo: Slo) -> Self {
        Self {
            page_size: page_size.max(1),
            slo,
            lives: Vec::new(),
            members: Vec::new(),
            over_time: OverTime::default(),
            gaps: Histogram::default(),
            latest: Gaps::default(),
            first_arrival: None,
            ttft: Vec::new(),
            tpot: Vec::new(),
            e2e: Vec::new(),
            queue_time: Vec::new(),
            admitted_tokens: 0,
            counts: MetricsReport::default(),
            good: 0,
        }
    }

    fn life(&mut self, request: RequestId) -> Option<&mut Life> {
        self.lives.get_mut(usize::try_from(request.0).ok()?)
    }

    fn admitted(&mut self, request: RequestId, prefix: u64, now: Nanos) {
        let Some(life) = self.life(request).filter(|life| life.stage == Stage::Waits) else {
            return;
        };
        life.stage = Stage::Admitted;
        let (waited, prompt) = (now.0.saturating_sub(life.arrived), life.prompt);
        self.queue_time.push(waited);
        self.admitted_tokens += prompt;
        self.counts.cached_tokens += prefix.min(prompt);
    }

    fn gave_back(&mut self, request: RequestId, outputs: u64) {
        self.counts.retractions += 1;
        if let Some(life) = self.life(request) {
            life.keep(outputs);
        }
    }

    fn finished(&mut self, request: RequestId, outputs: u64, finish: Finish, now: Nanos) {
        let Some(life) = self.life(request) else { return };
        life.keep(outputs);
        life.stage = Stage::Over;
        let gap = life.settle();
        let (arrived, first, last) = (life.arrived, life.first, life.last.min(now.0));
        self.latest.add(gap, &mut self.gaps);
        if finish == Finish::Abort {
            self.counts.aborted += 1;
            return;
        }
        self.counts.finished += 1;
        let e2e = last.saturating_sub(arrived);
        let ttft = first.min(last).saturating_sub(arrived);
        self.good += u64::from(self.slo.keeps(ttft, e2e, outputs));
        self.ttft.push(ttft);
        self.e2e.push(e2e);
        if outputs > 1 {
            self.tpot.push((e2e - ttft) / (outputs - 1));
        }
    }

    /// One row of a pass that ends at `end`.
    fn row(&mut self, row: &Row, end: u64) {
        self.members.push(row.request);
        self.counts.chunks += u64::from(row.more_follows);
        let Some(life) = self.life(row.request) else { return };
        let again = life.compute(row.prefix, row.extend);
        let gap = if row.more_follows { None } else { life.token(end) };
        self.counts.recomputed_tokens += again;
        self.latest.add(gap, &mut self.gaps);
    }

    /// How many members take a page in each pass of a round of as many passes as a page has tokens.
    fn crossings(&self) -> Vec<u64> {
        let page = self.page_size;
        let mut crossings = vec![0; usize::try_from(page).unwrap_or(1)];
        for member in &self.members {
            let life = usize::try_from(member.0).ok().and_then(|at| self.lives.get(at));
            // A sequence that fills its pages takes the next one at once.
            let filled = life.map_or(0, |life| life.computed % page);
            if let Some(count) = crossings.get_mut(((page - filled) % page) as usize) {
                *count += 1;
            }
        }
        crossings
    }

    /// The metrics up to `now`. Requests that are under way count with the tokens that they have by then: a
    /// pass that still runs brings none.
    #[must_use]
    pub fn report(&self, now: Nanos) -> MetricsReport {
        let (mut gaps, mut latest) = (self.gaps.clone(), self.latest);
        let (mut last, mut input_tokens, mut output_tokens) = (0, 0, 0);
        for life in &self.lives {
            let mut life = life.clone();
            if life.stage != Stage::Over {
                life.cut(now.0);
                latest.add(life.open_gap(), &mut gaps);
            }
            if life.tokens > 0 {
                last = life.last.max(last);
                input_tokens += life.prompt;
                output_tokens += life.tokens;
            }
        }
        latest.flush(&mut gaps);
        let ppm = |part: u64, whole: u64| {
            (whole > 0).then(|| summary::rounded(u128::from(part) * 1_000_000, u128::from(whole)))
        };
        MetricsReport {
            arrived: self.lives.len() as u64,
            load_time: last.saturating_sub(self.first_arrival.unwrap_or_default()),
            busy_time: self.over_time.busy,
            input_tokens,
            output_tokens,
            hit_rate_ppm: ppm(self.counts.cached_tokens, self.admitted_tokens),
            good: (!self.slo.is_empty()).then_some(self.good),
            pool_usage_mean_ppm: self.over_time.mean_usage_ppm(),
            pool_usage_peak_ppm: self.over_time.peak_usage_ppm(),
            running_mean_milli: self.over_time.mean_running_milli(),
            running_max: self.over_time.most_running,
            ttft: Summary::of_list(self.ttft.clone()),
            tpot: Summary::of_list(self.tpot.clone()),
            itl: gaps.summary(),
            e2e: Summary::of_list(self.e2e.clone()),
            queue_time: Summary::of_list(self.queue_time.clone()),
            ..self.counts.clone()
        }
    }
}

impl Watcher for Metrics {
    fn arrived(&mut self, arrival: &Arrival) {
        let request = &arrival.request;
        if request.id.0 != self.lives.len() as u64 {
            return;
        }
        self.first_arrival.get_or_insert(arrival.at.0);
        self.lives.push(Life::new(arrival.at.0, request.prompt.len()));
    }

    fn decided(&mut self, decision: &Decision, now: Nanos) {
        match decision {
            Decision::Admitted { request, prefix, .. } => self.admitted(*request, *prefix, now),
            Decision::Deferred { reason, .. } => {
                let at = match reason {
                    Deferral::NoToken => 0,
                    Deferral::Budget => 1,
                    Deferral::RunningFull => 2,
                };
                self.counts.deferrals[at] += 1;
            }
            Decision::Retracted { request, outputs, .. } => self.gave_back(*request, *outputs),
            Decision::Preempted { request, outputs, .. } => {
                self.counts.preemptions += 1;
                self.gave_back(*request, *outputs);
            }
            Decision::Finished { request, outputs, finish } => {
                self.finished(*request, *outputs, *finish, now);
            }
            Decision::Refused { request, .. } => {
                self.counts.refused += 1;
                if let Some(life) = self.life(*request) {
                    life.stage = Stage::Over;
                }
            }
            Decision::Evicted { .. }
            | Decision::BackedUp { .. }
            | Decision::LoadedBack { .. }
            | Decision::EvictedHost { .. }
            | Decision::Ratio { .. }
            | Decision::Lent { .. }
            | Decision::TakenBack { .. }
            | Decision::SlotsTaken { .. }
            | Decision::SlotsFreed { .. } => {}
        }
    }

    fn passed(&mut self, pass: &PassSeen<'_>) {
        let rows = &pass.batch.rows;
        self.over_time.pass(&pass.usage, pass.beside + rows.len() as u64, pass.elapsed);
        let end = pass.at.0.saturating_add(pass.elapsed.0);
        self.members.clear();
        for row in rows {
            self.row(row, end);
        }
    }

    fn repeated(&mut self, run: &QuietRun<'_>) {
        let [first, later @ ..] = run.elapsed else { return };
        let running = self.members.len() as u64;
        if self.page_size == 1 {
            self.over_time.quiet(&run.usage, running, run.elapsed, &[running]);
        } else {
            let crossings = self.crossings();
            self.over_time.quiet(&run.usage, running, run.elapsed, &crossings);
        }
        let first_end = run.at.0.saturating_add(first.0);
        let end = later.iter().fold(first_end, |end, elapsed| end.saturating_add(elapsed.0));
        let passes = run.elapsed.len() as u64;
        let mut second = Gaps::default();
        for member in &self.members {
            let at = usize::try_from(member.0).unwrap_or(usize::MAX);
            let Some(life) = self.lives.get_mut(at) else { continue };
            life.computed += passes;
            self.latest.add(life.token(first_end), &mut self.gaps);
            if let Some(last) = later.last() {
                second.add(life.settle(), &mut self.gaps);
                life.tokens_in_a_row(passes - 1, end - last.0, end);
            }
        }
        second.flush(&mut self.gaps);
        // Between the second pass and the last but one all have the same gaps; the last is not certain yet.
        for elapsed in later.iter().take(later.len().saturating_sub(1)) {
            self.gaps.add(*elapsed, running);
        }
    }
}
