//! Samples → what a watch saw. Takes a line at a time and keeps only what it answers.

use super::{
    DeviceFree, Ending, Header, Line, MemoryPlace, RankFigures, RankId, Sample, ServerKind,
};
use plimsoll_core::units::Bytes;
use std::collections::BTreeMap;

/// A pool counts as full from this share on. Samples fall between passes, so the very peak is seldom seen.
pub const FULL: f64 = 0.9;

/// One reading of free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Device.
    pub device: u32,
    /// Free memory.
    pub free: Bytes,
    /// Its place.
    pub low: Low,
}

/// Where in the watch a reading stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Low {
    /// The how-manieth line behind the header of the recording, from 1.
    pub sample: u64,
    /// Milliseconds since the watch began.
    pub at_ms: u64,
}

/// Free memory of one device over the watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSummary {
    /// At the first reading.
    pub first: Bytes,
    /// The least.
    pub least: Reading,
    /// At the last reading.
    pub last: Bytes,
}

/// Readings below the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undercut {
    /// The first of them.
    pub first: Reading,
    /// The least.
    pub least: Reading,
    /// Lines with one.
    pub samples: u64,
}

/// By which counter prefill is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PrefillBy {
    /// Prompt tokens of requests: SGLang counts them when a request ends, vLLM at its first output, both with
    /// those that the cache had.
    Prompts,
    /// Tokens that prefill passes computed.
    Computed,
}

/// The time between two neighbouring samples in which a rank took most new prefill tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heaviest {
    /// Rank.
    pub rank: RankId,
    /// By which counter.
    pub by: PrefillBy,
    /// New tokens.
    pub tokens: u64,
    /// Time of the sample before, milliseconds.
    pub from_ms: u64,
    /// Time of the sample after.
    pub to_ms: u64,
    /// The least free memory of any device at either sample.
    pub least: Option<Reading>,
}

/// One rank over the watch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RankSummary {
    /// Its last figures.
    pub last: RankFigures,
    /// Size of the pool, tokens.
    pub capacity_tokens: Option<u64>,
    /// The largest share of the pool that was held.
    pub peak_usage: Option<f64>,
    /// The most tokens that were held.
    pub peak_held_tokens: Option<u64>,
    /// The most requests that ran.
    pub most_running: Option<u64>,
    /// The most requests that waited.
    pub most_queued: Option<u64>,
    /// Requests whose slots were taken back during the watch. Where the server has the older gauge alone, the sum
    /// of its rises from sample to sample: a lower bound.
    pub retractions: Option<u64>,
    /// New prefill tokens, by the better of its counters.
    pub prefill_tokens: Option<u64>,
    /// New output tokens.
    pub output_tokens: Option<u64>,
    /// Share of prompt tokens that the prefix cache had: over the watch (vLLM), or as last told (SGLang).
    pub cache_hit_rate: Option<f64>,
    /// The sample that it was last part of.
    seen_in: u64,
    query_tokens: u64,
    hit_tokens: u64,
}

/// What a watch saw.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// Which server.
    pub server: ServerKind,
    /// Where free memory was read.
    pub memory: MemoryPlace,
    /// The line below which free memory must not fall.
    pub min_free: Option<Bytes>,
    /// Samples.
    pub samples: u64,
    /// Moments without an answer.
    pub missed: u64,
    /// Milliseconds from the first line to the last.
    pub span_ms: u64,
    /// By rank.
    pub ranks: BTreeMap<RankId, RankSummary>,
    /// By device.
    pub devices: BTreeMap<u32, DeviceSummary>,
    /// The heaviest prefill, of ranks whose counter tells most.
    pub heaviest: Option<Heaviest>,
    /// Readings below the line.
    pub undercut: Option<Undercut>,
    /// Times that counters fell: the server was started anew.
    pub restarts: u64,
    /// How the watch ended; `None` when the recording was cut off.
    pub ending: Option<Ending>,
    lines: u64,
    /// The sample before, unless one was missed since.
    before: Option<Before>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Before {
    at_ms: u64,
    least: Option<Reading>,
}

impl Summary {
    /// An empty summary of a watch with this header. `min_free` replaces the header's line.
    #[must_use]
    pub fn new(header: &Header, min_free: Option<Bytes>) -> Self {
        Self {
            server: header.server,
            memory: header.memory,
            min_free: min_free.or(header.min_free),
            samples: 0,
            missed: 0,
            span_ms: 0,
            ranks: BTreeMap::new(),
            devices: BTreeMap::new(),
            heaviest: None,
            undercut: None,
            restarts: 0,
            ending: None,
            lines: 0,
            before: None,
        }
    }

    /// Takes one line in.
    pub fn push(&mut self, line: &Line) {
        self.lines += 1;
        match line {
            Line::Sample(sample) => self.sample(sample),
            Line::Missed(missed) => {
                self.missed += 1;
                self.span_ms = self.span_ms.max(missed.at_ms);
                self.memory(missed.at_ms, &missed.devices);
                self.before = None;
            }
            Line::End(end) => {
                self.span_ms = self.span_ms.max(end.at_ms);
                self.ending = Some(end.why);
            }
            Line::Other => {}
        }
    }

    /// The least free memory of all devices.
    #[must_use]
    pub fn least(&self) -> Option<Reading> {
        self.devices.values().map(|device| device.least).min_by_key(|least| least.free)
    }

    /// The rank whose pool was fullest.
    #[must_use]
    pub fn fullest(&self) -> Option<(&RankId, &RankSummary)> {
        let with = self.ranks.iter().filter(|(_, rank)| rank.peak_usage.is_some());
        let usage = |rank: &RankSummary| rank.peak_usage.unwrap_or(0.0);
        with.reduce(|a, b| if usage(b.1) > usage(a.1) { b } else { a })
    }

    /// Retractions of all ranks; `None` when no rank tells.
    #[must_use]
    pub fn retractions(&self) -> Option<u64> {
        self.ranks.values().filter_map(|rank| rank.retractions).reduce(|a, b| a.saturating_add(b))
    }

    fn sample(&mut self, sample: &Sample) {
        self.samples += 1;
        self.span_ms = self.span_ms.max(sample.at_ms);
        let least = self.memory(sample.at_ms, &sample.devices);
        let before = self.before.replace(Before { at_ms: sample.at_ms, least });
        let mut restarted = false;
        for (id, now) in &sample.ranks {
            let is_new = !self.ranks.contains_key(id);
            let rank = self.ranks.entry(*id).or_default();
            // What grew while a rank was not told of grew nobody knows when.
            let is_neighbour = rank.seen_in + 1 == self.samples;
            rank.seen_in = self.samples;
            let grown = rank.take(now, is_new);
            restarted |= grown.restarted;
            let before = before.filter(|_| is_neighbour && !grown.restarted);
            let Some(((by, tokens), before)) = grown.prefill.zip(before) else { continue };
            let least = [before.least, least].into_iter().flatten().min_by_key(|r| r.free);
            let (from_ms, to_ms) = (before.at_ms, sample.at_ms);
            let found = Heaviest { rank: *id, by, tokens, from_ms, to_ms, least };
            let heavier = self.heaviest.is_none_or(|old| (by, tokens) > (old.by, old.tokens));
            if tokens > 0 && heavier {
                self.heaviest = Some(found);
            }
        }
        self.restarts += u64::from(restarted);
    }

    /// Takes the free memory of a moment; answers the least.
    fn memory(&mut self, at_ms: u64, devices: &[DeviceFree]) -> Option<Reading> {
        let low = Low { sample: self.lines, at_ms };
        let mut least: Option<Reading> = None;
        for device in devices {
            let reading = Reading { device: device.index, free: device.free, low };
            let entry = self.devices.entry(device.index).or_insert(DeviceSummary {
                first: device.free,
                least: reading,
                last: device.free,
            });
            entry.last = device.free;
            if device.free < entry.least.free {
                entry.least = reading;
            }
            if least.is_none_or(|least| device.free < least.free) {
                least = Some(reading);
            }
        }
        if let (Some(least), Some(line)) = (least, self.min_free)
            && least.free < line
        {
            let undercut =
                self.undercut.get_or_insert(Undercut { first: least, least, samples: 0 });
            undercut.samples += 1;
            if least.free < undercut.least.free {
                undercut.least = least;
            }
        }
        least
    }
}

/// What grew since the rank's last figures.
struct Grown {
    prefill: Option<(PrefillBy, u64)>,
    restarted: bool,
}

impl RankSummary {
    fn take(&mut self, now: &RankFigures, is_new: bool) -> Grown {
        let last = std::mem::replace(&mut self.last, now.clone());
        self.capacity_tokens = now.pool_capacity_tokens.or(self.capacity_tokens);
        raise(&mut self.most_running, now.running_requests);
        raise(&mut self.most_queued, now.queued_requests);
        raise(&mut self.peak_held_tokens, now.pool_held_tokens);
        if let Some(usage) = now.pool_usage
            && self.peak_usage.is_none_or(|peak| usage > peak)
        {
            self.peak_usage = Some(usage);
        }
        let mut restarted = false;
        // The first sample is where counting begins.
        let mut grown = |before: Option<u64>, now: Option<u64>| match (before, now) {
            (Some(before), Some(now)) if now < before => {
                restarted = true;
                Some(now)
            }
            (Some(before), Some(now)) => Some(now - before),
            (None, Some(now)) => Some(if is_new { 0 } else { now }),
            (_, None) => None,
        };
        let retractions = grown(last.retractions_total, now.retractions_total);
        let output = grown(last.output_tokens_total, now.output_tokens_total);
        let queries = grown(last.cache_query_tokens_total, now.cache_query_tokens_total);
        let hits = grown(last.cache_hit_tokens_total, now.cache_hit_tokens_total);
        let computed = grown(last.prefill_tokens_total, now.prefill_tokens_total);
        let prompts = grown(last.prompt_tokens_total, now.prompt_tokens_total);
        let prefill = computed
            .map(|tokens| (PrefillBy::Computed, tokens))
            .or(prompts.map(|tokens| (PrefillBy::Prompts, tokens)));
        add(&mut self.retractions, retractions.or_else(|| by_gauge(&last, now)));
        add(&mut self.output_tokens, output);
        add(&mut self.prefill_tokens, prefill.map(|(_, tokens)| tokens));
        self.query_tokens += queries.unwrap_or(0);
        self.hit_tokens += hits.unwrap_or(0);
        self.cache_hit_rate = match self.query_tokens {
            0 => now.cache_hit_rate.or(self.cache_hit_rate),
            queries => Some(self.hit_tokens as f64 / queries as f64),
        };
        Grown { prefill, restarted }
    }
}

/// Retractions by the gauge of the last one: what it shows beyond the sample before.
fn by_gauge(last: &RankFigures, now: &RankFigures) -> Option<u64> {
    let now = now.retracting_requests?;
    Some(now.saturating_sub(last.retracting_requests.unwrap_or(0)))
}

fn raise(most: &mut Option<u64>, now: Option<u64>) {
    if let Some(now) = now {
        *most = Some(most.map_or(now, |most| most.max(now)));
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}
