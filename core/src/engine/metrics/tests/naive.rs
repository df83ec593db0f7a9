//! Metrics recomputed from lists of everything.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct One {
    arrived: u64,
    prompt: u64,
    admitted: Option<(u64, u64)>,
    tokens: Vec<u64>,
    computed: BTreeSet<u64>,
    answered: bool,
}

/// Everything, by request and by pass.
#[derive(Default)]
pub(super) struct Naive {
    requests: BTreeMap<u64, One>,
    /// Used, pool, running, elapsed.
    passes: Vec<(u64, u64, u64, u64)>,
    counts: MetricsReport,
}

impl Naive {
    pub(super) fn of(told: &[Told]) -> Self {
        let mut naive = Self::default();
        for one in told {
            match one {
                Told::Arrived(arrival) => {
                    let (arrived, prompt) = (arrival.at.0, arrival.request.prompt.len());
                    let one = One { arrived, prompt, ..One::default() };
                    naive.requests.insert(arrival.request.id.0, one);
                }
                Told::Decided(decision, now) => naive.decided(decision, now.0),
                Told::Passed { batch, at, elapsed, usage, beside } => {
                    let running = beside + batch.rows.len() as u64;
                    naive.passes.push((usage.used(), usage.pool, running, elapsed.0));
                    naive.passed(batch, at.0 + elapsed.0);
                }
            }
        }
        naive
    }

    fn of_request(&mut self, request: RequestId) -> &mut One {
        self.requests.get_mut(&request.0).unwrap()
    }

    fn decided(&mut self, decision: &Decision, now: u64) {
        let kept = |outputs: &u64| usize::try_from(*outputs).unwrap();
        match decision {
            Decision::Admitted { request, prefix, .. } => {
                self.of_request(*request).admitted.get_or_insert((now, *prefix));
            }
            Decision::Deferred { reason, .. } => {
                let reasons = [Deferral::NoToken, Deferral::Budget, Deferral::RunningFull];
                let at = reasons.iter().position(|one| one == reason).unwrap();
                self.counts.deferrals[at] += 1;
            }
            Decision::Retracted { request, outputs, .. } => {
                self.counts.retractions += 1;
                self.of_request(*request).tokens.truncate(kept(outputs));
            }
            Decision::Finished { request, outputs, finish } => {
                let one = self.of_request(*request);
                one.tokens.truncate(kept(outputs));
                assert_eq!(one.tokens.len(), kept(outputs), "every token came in a pass");
                one.answered = *finish != Finish::Abort;
                let answered = u64::from(one.answered);
                self.counts.finished += answered;
                self.counts.aborted += 1 - answered;
            }
            Decision::Refused { .. } => self.counts.refused += 1,
            _ => {}
        }
    }

    fn passed(&mut self, batch: &Batch, end: u64) {
        for row in &batch.rows {
            let one = self.of_request(row.request);
            let positions = row.prefix..row.prefix + row.extend;
            let again = positions.filter(|position| !one.computed.insert(*position)).count();
            if !row.more_follows {
                one.tokens.push(end);
            }
            // What stood in the cache is computed as far as this request can tell.
            one.computed.extend(0..row.prefix);
            self.counts.recomputed_tokens += again as u64;
            self.counts.chunks += u64::from(row.more_follows);
        }
    }

    pub(super) fn report(&self, slo: Slo) -> MetricsReport {
        let all = || self.requests.values();
        let answered = || all().filter(|one| one.answered);
        let ttft = |one: &One| one.tokens[0] - one.arrived;
        let e2e = |one: &One| one.tokens[one.tokens.len() - 1] - one.arrived;
        let gaps = |one: &One| one.tokens.len() as u64 - 1;
        let tpot = |one: &One| (gaps(one) > 0).then(|| (e2e(one) - ttft(one)) / gaps(one));
        let good = |one: &&One| {
            ttft(one) <= slo.ttft.unwrap().0
                && e2e(one) - ttft(one) <= slo.tpot.unwrap().0 * gaps(one)
        };
        let itl = all().flat_map(|one| one.tokens.windows(2).map(|two| two[1] - two[0]));
        let list = |values: Vec<u64>| Summary::of_list(values);
        let tokens = || all().filter(|one| !one.tokens.is_empty());
        let last = tokens().flat_map(|one| one.tokens.last().copied()).max().unwrap_or(0);
        let first = all().map(|one| one.arrived).min().unwrap_or(0);
        let admitted: Vec<&One> = all().filter(|one| one.admitted.is_some()).collect();
        let prompts: u64 = admitted.iter().map(|one| one.prompt).sum();
        let cached = admitted.iter().filter_map(|one| one.admitted).map(|(_, prefix)| prefix).sum();
        let busy: u64 = self.passes.iter().map(|pass| pass.3).sum();
        let over_time = |value: fn(&(u64, u64, u64, u64)) -> u64, scale: u128, whole: u64| {
            let sum: u128 =
                self.passes.iter().map(|p| u128::from(value(p)) * u128::from(p.3)).sum();
            summary::rounded(sum * scale, u128::from(whole))
        };
        let pool = self.passes.first().map_or(0, |pass| pass.1);
        let peak = self.passes.iter().map(|pass| pass.0).max().unwrap_or(0);
        let ppm = |part: u64, whole: u64| {
            (whole > 0).then(|| summary::rounded(u128::from(part) * 1_000_000, u128::from(whole)))
        };
        MetricsReport {
            arrived: self.requests.len() as u64,
            load_time: last.saturating_sub(first),
            busy_time: busy,
            input_tokens: tokens().map(|one| one.prompt).sum(),
            output_tokens: all().map(|one| one.tokens.len() as u64).sum(),
            cached_tokens: cached,
            hit_rate_ppm: ppm(cached, prompts),
            good: Some(answered().filter(good).count() as u64),
            pool_usage_mean_ppm: over_time(|pass| pass.0, 1_000_000, pool * busy),
            pool_usage_peak_ppm: ppm(peak, pool).unwrap_or(0),
            running_mean_milli: over_time(|pass| pass.2, 1_000, busy),
            running_max: self.passes.iter().map(|pass| pass.2).max().unwrap_or(0),
            ttft: list(answered().map(ttft).collect()),
            tpot: list(answered().filter_map(tpot).collect()),
            itl: list(itl.collect()),
            e2e: list(answered().map(e2e).collect()),
            queue_time: list(
                admitted.iter().filter_map(|one| Some(one.admitted?.0 - one.arrived)).collect(),
            ),
            ..self.counts.clone()
        }
    }
}
