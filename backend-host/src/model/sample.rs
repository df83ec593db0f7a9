//! From logits to a token: penalties, temperature, top-k, top-p, min-p, and one draw from the request's
//! own stream. The same request gives the same tokens, whatever runs beside it.

use plimsoll_core::tape::own::Draw;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::cmp::Ordering;

use fearless_simd::Level;

use super::{
    dot::{LANES, sum, vectors},
    vector::exp,
};

/// How tokens are chosen. The default is greedy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Only the `k` most likely; 0 for all.
    pub top_k: u32,
    /// Only the most likely that together have this probability.
    pub top_p: f32,
    /// Only those at least this part as likely as the most likely.
    pub min_p: f32,
    /// Divides positive logits, multiplies negative ones, of tokens in prompt or output; 1 for none.
    pub repetition_penalty: f32,
    /// Taken off once for a token of the output.
    pub presence_penalty: f32,
    /// Taken off for each time that a token is in the output.
    pub frequency_penalty: f32,
    /// Seed of the request's stream.
    pub seed: u64,
    /// How many of the most likely tokens are reported; `None` for no logprobs.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logprobs: None,
        }
    }
}

/// A value out of its range.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("`{name}` is {value}; allowed: {allowed}")]
pub struct SamplingError {
    /// The field.
    pub name: &'static str,
    /// As given.
    pub value: f32,
    /// What would be right.
    pub allowed: &'static str,
}

impl Sampling {
    /// Whether earlier tokens change the logits.
    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Checks the ranges: those of the `OpenAI` interface and of SGLang.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let fields = [
            ("temperature", self.temperature, 0.0, 2.0, "0 to 2"),
            ("top_p", self.top_p, f32::MIN_POSITIVE, 1.0, "above 0, up to 1"),
            ("min_p", self.min_p, 0.0, 1.0, "0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                f32::MIN_POSITIVE,
                2.0,
                "above 0, up to 2",
            ),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0, "-2 to 2"),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "-2 to 2"),
        ];
        for (name, value, low, high, allowed) in fields {
            if !(low..=high).contains(&value) {
                return Err(SamplingError { name, value, allowed });
            }
        }
        match self.logprobs {
            Some(n) if n > 20 => {
                Err(SamplingError { name: "logprobs", value: n as f32, allowed: "0 to 20" })
            }
            _ => Ok(()),
        }
    }
}

/// A token and the logarithm of its probability by the model: before penalties and temperature.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Logprob {
    /// Id.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

/// What was chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    /// Id.
    pub token: u32,
    /// Its logprob, where logprobs are asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, likeliest first.
    pub top: Vec<Logprob>,
}

/// One request's sampler. What it needs beside the logits is taken with the first token.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Sampling,
    stream: ChaCha8Rng,
    arch: Level,
    /// Ids of the prompt, sorted, each once; none without a repetition penalty.
    prompt: Vec<u32>,
    /// How often each id of the vocabulary is in the output; empty without penalties.
    counts: Vec<u32>,
    /// Ids of the output, each once.
    seen: Vec<u32>,
    /// Logits after penalties; empty without.
    penalised: Vec<f32>,
    /// Logits and ids that are still in the choice; empty for greedy.
    choice: Vec<(f32, u32)>,
}

/// The likelier first; of equals the lower id.
fn order(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

impl Sampler {
    /// A sampler for a request with that prompt.
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn new(options: Sampling, prompt: &[u32]) -> Result<Self, SamplingError> {
        options.check()?;
        let mut prompt =
            if options.repetition_penalty == 1.0 { Vec::new() } else { prompt.to_vec() };
        prompt.sort_unstable();
        prompt.dedup();
        let stream = ChaCha8Rng::seed_from_u64(options.seed);
        let (counts, seen, penalised, choice) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Self { options, stream, arch: Level::new(), prompt, counts, seen, penalised, choice })
    }

    /// The draw of the next token, for who has the logits: with the same logits it gives the token that
    /// [`Sampler::next`] would give, and as that it takes one number of the stream, none at temperature 0.
    /// `None`, and nothing is taken, where penalties or logprobs are asked for: these need the logits here.
    pub fn draw_elsewhere(&mut self) -> Option<Draw> {
        let Sampling { temperature, top_k, top_p, min_p, logprobs, .. } = self.options;
        if logprobs.is_some() || self.options.penalises() {
            return None;
        }
        let unit = if temperature == 0.0 { 0.0 } else { self.unit() };
        Some(Draw { temperature, top_k, top_p, min_p, unit })
    }

    /// Chooses the next token, which counts as output from then on.
    pub fn next(&mut self, logits: &[f32]) -> Sampled {
        let options = self.options;
        let mut penalised = std::mem::take(&mut self.penalised);
        let adjusted = if options.penalises() {
            self.penalise(logits, &mut penalised);
            &penalised
        } else {
            logits
        };
        let token =
            if options.temperature == 0.0 { highest(adjusted).1 } else { self.draw(adjusted) };
        self.penalised = penalised;
        if let Some(count) = self.counts.get_mut(token as usize) {
            if *count == 0 {
                self.seen.push(token);
            }
            *count += 1;
        }
        let (logprob, top) = self.logprobs(logits, token);
        Sampled { token, logprob, top }
    }

    fn penalise(&mut self, logits: &[f32], to: &mut Vec<f32>) {
        let options = self.options;
        if self.counts.len() != logits.len() {
            self.counts.resize(logits.len(), 0);
            self.seen.reserve(logits.len());
        }
        to.clear();
        to.extend_from_slice(logits);
        if options.repetition_penalty != 1.0 {
            let prompt = &self.prompt;
            let new = self.seen.iter().filter(|id| prompt.binary_search(id).is_err());
            for id in prompt.iter().chain(new) {
                if let Some(logit) = to.get_mut(*id as usize) {
                    let factor = options.repetition_penalty;
                    *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
                }
            }
        }
        for id in &self.seen {
            let count = self.counts.get(*id as usize).copied().unwrap_or(0);
            if let Some(logit) = to.get_mut(*id as usize) {
                *logit -= options.presence_penalty + options.frequency_penalty * count as f32;
            }
        }
    }

    /// One draw. The likeliest are taken out and sorted in growing parts, until they are as many as
    /// top-k, or likely enough together.
    fn draw(&mut self, logits: &[f32]) -> u32 {
        let options = self.options;
        let most = highest(logits).0;
        if options.top_k == 0 && options.top_p >= 1.0 && options.min_p <= 0.0 {
            return self.draw_of_all(logits, most);
        }
        self.choice.clear();
        self.choice.extend(logits.iter().copied().zip(0_u32..));
        if options.top_k > 0 && (options.top_k as usize) < self.choice.len() {
            self.choice.select_nth_unstable_by(options.top_k as usize - 1, order);
            self.choice.truncate(options.top_k as usize);
        }
        // All weights are sums of parts in one order: that of the ids, or of likelihood after top-k.
        let total = if options.top_k > 0 {
            self.choice.sort_unstable_by(order);
            self.choice.iter().map(|c| self.weight(c.0 - most)).sum()
        } else {
            weights(self.arch, logits, (most, 1.0 / options.temperature))
        };
        let (kept, sum) = self.likeliest(most, total);
        // Over what is left in the order of ids, so that a device that sorts nothing draws the same.
        self.choice[..kept].sort_unstable_by_key(|choice| choice.1);
        let mut left = self.unit() * sum;
        for (logit, id) in &self.choice[..kept] {
            left -= self.weight(logit - most);
            if left < 0.0 {
                return *id;
            }
        }
        self.choice[..kept].last().map_or(0, |c| c.1)
    }

    /// One draw where every token may come: in the order of the ids, nothing is sorted.
    fn draw_of_all(&mut self, logits: &[f32], most: f32) -> u32 {
        let scale = (most, 1.0 / self.options.temperature);
        let mut left = self.unit() * weights(self.arch, logits, scale);
        for (index, part) in logits.chunks(PART).enumerate() {
            let own = weights(self.arch, part, scale);
            if left >= own {
                left -= own;
                continue;
            }
            for (id, logit) in part.iter().enumerate() {
                left -= f64::from(exp((logit - scale.0) * scale.1));
                if left < 0.0 {
                    return (index * PART + id) as u32;
                }
            }
        }
        // Rounding has left something over.
        highest(logits).1
    }

    /// From 0 to below 1 in 53 bits: every value is as likely.
    fn unit(&mut self) -> f64 {
        (self.stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts those that stay in the choice first, sorted; how many, and the sum of their weights.
    fn likeliest(&mut self, most: f32, total: f64) -> (usize, f64) {
        let options = self.options;
        let (mut sum, mut kept, mut sorted) = (0.0, 0, 0);
        while kept < self.choice.len() {
            if kept == sorted {
                sorted = (sorted * 8).clamp(64, self.choice.len().max(64));
                let rest = &mut self.choice[kept..];
                let part = (sorted - kept).min(rest.len());
                if part < rest.len() {
                    rest.select_nth_unstable_by(part - 1, order);
                }
                rest[..part].sort_unstable_by(order);
                sorted = kept + part;
            }
            let weight = self.weight(self.choice[kept].0 - most);
            // The first is always kept: it has weight 1.
            if kept > 0 && weight < f64::from(options.min_p) {
                break;
            }
            sum += weight;
            kept += 1;
            if sum >= f64::from(options.top_p) * total {
                break;
            }
        }
        (kept, sum)
    }

    /// Of a logit that is so far from the highest: 1 for that one.
    fn weight(&self, apart: f32) -> f64 {
        libm::exp(f64::from(apart) / f64::from(self.options.temperature))
    }

    fn logprobs(&mut self, logits: &[f32], token: u32) -> (Option<f32>, Vec<Logprob>) {
        let Some(count) = self.options.logprobs else { return (None, Vec::new()) };
        let most = highest(logits).0;
        let sum = libm::log(weights(self.arch, logits, (most, 1.0)));
        let of = |logit: f32| (f64::from(logit - most) - sum) as f32;
        // The likeliest so far, sorted.
        let mut top: Vec<(f32, u32)> = Vec::with_capacity(count as usize + 1);
        let mut least = f32::NEG_INFINITY;
        for (logit, id) in logits.iter().copied().zip(0_u32..) {
            if count == 0 || top.len() == count as usize && logit <= least {
                continue;
            }
            let at = top.partition_point(|other| order(other, &(logit, id)) == Ordering::Less);
            top.insert(at, (logit, id));
            top.truncate(count as usize);
            least = top.last().map_or(least, |last| last.0);
        }
        let top = top.iter().map(|(logit, id)| Logprob { token: *id, logprob: of(*logit) });
        (logits.get(token as usize).map(|logit| of(*logit)), top.collect())
    }
}

/// Logits that are looked at together.
const PART: usize = 256;

/// The highest logit and its id; the lowest id of equals.
fn highest(logits: &[f32]) -> (f32, u32) {
    let (mut most, mut at) = (f32::NEG_INFINITY, 0);
    for (index, part) in logits.chunks(PART).enumerate() {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (groups, rest) = part.as_chunks::<LANES>();
        for group in groups {
            for (lane, logit) in lanes.iter_mut().zip(group) {
                *lane = if *logit > *lane { *logit } else { *lane };
            }
        }
        let own =
            lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        if own > most {
            (most, at) = (own, index * PART);
        }
    }
    let part = logits.get(at..).unwrap_or_default();
    let inside = part.iter().take(PART).position(|logit| *logit == most).unwrap_or(0);
    (most, (at + inside) as u32)
}

/// The sum of e^((logit - most) * factor): floats within a part, doubles over the parts.
fn weights(arch: Level, logits: &[f32], (most, factor): (f32, f32)) -> f64 {
    let mut total = 0.0;
    vectors(
        arch,
        #[inline(always)]
        || {
            for part in logits.chunks(PART) {
                let mut lanes = [0.0_f32; LANES];
                let (groups, rest) = part.as_chunks::<LANES>();
                for group in groups {
                    for (lane, logit) in lanes.iter_mut().zip(group) {
                        *lane += exp((logit - most) * factor);
                    }
                }
                for (lane, logit) in lanes.iter_mut().zip(rest) {
                    *lane += exp((logit - most) * factor);
                }
                total += f64::from(sum(&lanes));
            }
        },
    );
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(options: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options, &[1]).unwrap();
        (0..count).map(|_| sampler.next(logits).token).collect()
    }

    #[test]
    fn draws_follow_the_distribution() {
        // Probabilities 0.6, 0.3, 0.1.
        let logits = [0.6_f32.ln(), 0.3_f32.ln(), 0.1_f32.ln()];
        let options = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
        let drawn = tokens(options, &logits, 20_000);
        for (id, part) in [(0, 0.6), (1, 0.3), (2, 0.1)] {
            let found = drawn.iter().filter(|t| **t == id).count() as f64 / 20_000.0;
            // Four standard deviations of a count.
            assert!((found - part).abs() < 0.014, "{id}: {found}");
        }
        assert_eq!(drawn[..50], tokens(options, &logits, 50));
        assert_ne!(drawn[..50], tokens(Sampling { seed: 4, ..options }, &logits, 50));
        let cut = |options| tokens(options, &logits, 500).into_iter().max();
        assert_eq!(cut(Sampling { top_k: 2, ..options }), Some(1));
        assert_eq!(cut(Sampling { top_p: 0.85, ..options }), Some(1));
        assert_eq!(cut(Sampling { top_p: 0.91, ..options }), Some(2));
        assert_eq!(cut(Sampling { min_p: 0.4, ..options }), Some(1));
        assert_eq!(cut(Sampling { min_p: 0.6, ..options }), Some(0));
    }

    #[test]
    fn penalties_by_hand() {
        let logits = [2.0, 1.0, -1.0];
        let greedy = Sampling::default();
        assert_eq!(tokens(greedy, &logits, 3), [0, 0, 0]);
        // 2, then 2 - 1.5; 1 and 1 - 1.5; 0.5 again.
        let presence = Sampling { presence_penalty: 1.5, ..greedy };
        assert_eq!(tokens(presence, &logits, 4), [0, 1, 0, 0]);
        let frequency = Sampling { frequency_penalty: 0.8, ..greedy };
        assert_eq!(tokens(frequency, &logits, 4), [0, 0, 1, 0]);
        // The prompt holds token 1: 1 / 2; then 0 has 2 / 2.
        let repetition = Sampling { repetition_penalty: 2.0, ..greedy };
        assert_eq!(tokens(repetition, &[0.9, 1.0, -1.0], 2), [0, 1]);
    }

    #[test]
    fn logprobs_are_the_models() {
        let options =
            Sampling { temperature: 0.7, top_k: 1, logprobs: Some(2), ..Sampling::default() };
        let logits = [0.1_f32.ln(), 0.6_f32.ln(), 0.3_f32.ln()];
        let sampled = Sampler::new(options, &[]).unwrap().next(&logits);
        assert_eq!(sampled.token, 1);
        assert!((sampled.logprob.unwrap() - 0.6_f32.ln()).abs() < 1e-6);
        assert_eq!(sampled.top.iter().map(|t| t.token).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn values_out_of_range_are_errors() {
        let wrong = Sampling { top_p: 0.0, ..Sampling::default() };
        let error = Sampler::new(wrong, &[]).unwrap_err().to_string();
        assert_eq!(error, "`top_p` is 0; allowed: above 0, up to 1");
        assert!(Sampling { temperature: f32::NAN, ..Sampling::default() }.check().is_err());
    }

    proptest! {
        #[test]
        fn what_is_drawn_is_among_the_likely(
            logits in prop::collection::vec(-8.0_f32..8.0, 1..60), seed: u64,
            temperature in 0.1_f32..2.0, top_k in 0_u32..10, top_p in 0.05_f32..1.0,
            min_p in 0.0_f32..0.5,
        ) {
            let options =
                Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
            let token = tokens(options, &logits, 1)[0];
            let own = logits[token as usize];
            let higher = logits.iter().filter(|l| **l > own).count();
            prop_assert!(top_k == 0 || higher < top_k as usize);
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            let ratio = f64::from((own - most) / temperature).exp();
            prop_assert!(ratio >= f64::from(min_p) * 0.9999);
        }
    }
}
