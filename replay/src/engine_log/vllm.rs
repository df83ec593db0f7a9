//! What vLLM's statistics logger prints while it serves.

use super::Lines;
use plimsoll_core::{
    engine::serving::{Arrival, PassSeen, QuietRun},
    sched::{Decision, RequestId, Row, Usage},
    units::Nanos,
};
use std::collections::VecDeque;

/// Time between two lines. Source: vLLM `VLLM_LOG_STATS_INTERVAL`.
const INTERVAL: u64 = 10_000_000_000;
/// Requests that the hit rate looks back at. Source: vLLM `CachingMetrics`.
const RECENT: usize = 1_000;

/// Writes a line every ten seconds; a line of nothing after one of nothing is left out.
///
/// Source: vLLM `LoggingStatLogger`. Within a run of quiet decode passes the use of the pool is taken to
/// grow on a straight line.
#[derive(Clone, Debug)]
pub(super) struct VllmLines {
    next: u64,
    /// Prompt and output tokens since the latest line.
    tokens: [u64; 2],
    latest_was_idle: bool,
    usage: Usage,
    running: u64,
    /// Prompt tokens by request, until its first token comes.
    prompts: Vec<Option<u64>>,
    admitted: Vec<bool>,
    /// Prompt tokens and hits of the latest requests.
    recent: VecDeque<(u64, u64)>,
}

impl VllmLines {
    pub(super) const fn new() -> Self {
        Self {
            next: INTERVAL,
            tokens: [0; 2],
            latest_was_idle: false,
            usage: Usage {
                pool: 0,
                available: 0,
                evictable: 0,
                window: None,
                running: 0,
                waiting: 0,
            },
            running: 0,
            prompts: Vec::new(),
            admitted: Vec::new(),
            recent: VecDeque::new(),
        }
    }

    pub(super) fn arrived(&mut self, arrival: &Arrival) {
        if arrival.request.id.0 == self.prompts.len() as u64 {
            self.prompts.push(Some(arrival.request.prompt.len()));
            self.admitted.push(false);
        }
    }

    pub(super) fn decided(&mut self, decision: &Decision) {
        let Decision::Admitted { request, prefix, .. } = decision else { return };
        let at = index(*request);
        let first = self.admitted.get_mut(at).filter(|admitted| !**admitted);
        let (Some(first), Some(Some(prompt))) = (first, self.prompts.get(at)) else { return };
        *first = true;
        self.recent.push_back((*prompt, (*prefix).min(*prompt)));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    pub(super) fn passed(&mut self, pass: &PassSeen<'_>, out: &mut Lines) {
        let end = pass.at.0.saturating_add(pass.elapsed.0);
        self.tell_until(end, out);
        self.usage = pass.usage;
        self.running = pass.usage.running.max(pass.batch.rows.len() as u64);
        for row in pass.batch.rows.iter().filter(|row| !row.more_follows) {
            self.token(row);
        }
    }

    fn token(&mut self, row: &Row) {
        let prompt = self.prompts.get_mut(index(row.request)).and_then(Option::take);
        self.tokens[0] += prompt.unwrap_or_default();
        self.tokens[1] += 1;
    }

    pub(super) fn repeated(&mut self, run: &QuietRun<'_>, out: &mut Lines) {
        let (before, after) = (self.usage, run.usage);
        let whole = run.elapsed.len() as i128;
        let mut end = run.at.0;
        for (done, elapsed) in (1..).zip(run.elapsed) {
            end = end.saturating_add(elapsed.0);
            self.tell_until(end, out);
            let growth = i128::from(before.available) - i128::from(after.available);
            let available = i128::from(before.available) - growth * done / whole.max(1);
            let available = u64::try_from(available).unwrap_or_default();
            self.usage = Usage { available, ..after };
            self.tokens[1] += run.requests;
        }
    }

    /// Writes the lines that are due before `now`.
    fn tell_until(&mut self, now: u64, out: &mut Lines) {
        while self.next <= now {
            let at = Nanos(self.next);
            self.next += INTERVAL;
            let tokens = std::mem::take(&mut self.tokens);
            let idle = tokens == [0; 2];
            if !(idle && self.latest_was_idle) {
                out.say(at, &self.line(tokens));
            }
            self.latest_was_idle = idle;
        }
    }

    fn line(&self, [prompt, generated]: [u64; 2]) -> String {
        let per_second = |tokens: u64| tokens as f64 / (INTERVAL as f64 / 1e9);
        let sum = |of: fn(&(u64, u64)) -> u64| self.recent.iter().map(of).sum::<u64>();
        let percent = |part: u64, whole: u64| part as f64 / whole.max(1) as f64 * 100.0;
        format!(
            "Engine 000: Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {:.1} \
             tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1}%, Prefix cache \
             hit rate: {:.1}%",
            per_second(prompt),
            per_second(generated),
            self.running,
            self.usage.waiting,
            percent(self.usage.used(), self.usage.pool),
            percent(sum(|one| one.1), sum(|one| one.0)),
        )
    }

    /// The last line, where tokens are not told yet.
    pub(super) fn ended(&mut self, usage: Usage, out: &mut Lines) {
        let (now, usage_then) = (self.next, self.usage);
        if self.tokens != [0; 2] {
            self.usage = Usage { pool: usage_then.pool, ..usage };
            self.running = usage.running;
            self.tell_until(now, out);
        }
    }
}

fn index(request: RequestId) -> usize {
    usize::try_from(request.0).unwrap_or(usize::MAX)
}
