//! Passes whose outcome in memory is known: played before, on allocators as they are now, they took nothing
//! from the device and left everything as it was. They need not be played again.

use super::pass::Pass;
use crate::units::Bytes;

/// What such a pass does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Play {
    /// Most that an allocator has live in it, and what it has reserved; the worst rank of each.
    pub(super) peak: Bytes,
    pub(super) reserved: Bytes,
    /// Largest request to an allocator.
    pub(super) largest: Bytes,
    /// Whether the allocators are as before.
    pub(super) settles: bool,
}

/// Most passes that are remembered.
const MOST: usize = 1 << 15;
/// Places at the beginning; as many as there may be are a power of two.
const FEW: usize = 1 << 6;

/// Passes by what their tapes depend on. All were played in the state that the allocators are in.
///
/// A table with open addresses: a pass lies in the first free place from the one that its fields are mixed
/// to, and at least every second place is free. A run looks here once a pass, so it is worth more than a map.
#[derive(Debug, Default)]
pub(super) struct Known {
    places: Vec<Option<(Pass, Play)>>,
    count: usize,
}

impl Known {
    pub(super) fn get(&self, key: &Pass) -> Option<Play> {
        let at = self.place(key)?;
        self.places.get(at).copied().flatten().map(|(_, play)| play)
    }

    /// Notes a pass that was played; one that changed an allocator makes all others unknown.
    pub(super) fn note(&mut self, key: Pass, play: Play) {
        if !play.settles || self.count >= MOST {
            self.places.clear();
            self.count = 0;
        }
        if !play.settles {
            return;
        }
        if self.places.len() < 2 * (self.count + 1) {
            let larger = vec![None; (2 * self.places.len()).max(FEW)];
            let before = std::mem::replace(&mut self.places, larger);
            before.into_iter().flatten().for_each(|(key, play)| self.put(key, play));
        }
        self.put(key, play);
        self.count += 1;
    }

    fn put(&mut self, key: Pass, play: Play) {
        let place = self.place(&key).and_then(|at| self.places.get_mut(at));
        if let Some(place) = place {
            *place = Some((key, play));
        }
    }

    /// Where a pass lies, or would.
    fn place(&self, key: &Pass) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = mixed(key) as usize & mask;
        while let Some(Some((other, _))) = self.places.get(at)
            && other != key
        {
            at = (at + 1) & mask;
        }
        Some(at)
    }
}

/// A number that differs between passes that differ, nearly always.
fn mixed(key: &Pass) -> u64 {
    let sampling = key.sampling;
    let few = (key.mode as u64)
        | (sampling.choice as u64) << 8
        | u64::from(sampling.output_logprobs) << 16
        | u64::from(sampling.penalties) << 17;
    let fields = [
        few,
        key.tokens,
        key.requests,
        key.prefix_tokens,
        key.longest,
        key.sampled,
        key.logprob_rows,
    ];
    // An odd number without a pattern: 2^64 / golden ratio.
    let mixed = fields
        .into_iter()
        .fold(0_u64, |mix, field| (mix.rotate_left(5) ^ field).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::serving::Sampling, sched::Mode};
    use std::collections::BTreeMap;

    fn pass(tokens: u64, requests: u64) -> Pass {
        let (mode, sampling) = (Mode::Prefill, Sampling::default());
        let (prefix_tokens, longest, sampled, logprob_rows) = (0, 0, requests, 0);
        Pass { mode, tokens, requests, prefix_tokens, longest, sampled, logprob_rows, sampling }
    }

    fn play(peak: u64, settles: bool) -> Play {
        Play { peak: Bytes(peak), reserved: Bytes(1), largest: Bytes(2), settles }
    }

    #[test]
    fn a_table_answers_as_a_map() {
        let (mut known, mut map) = (Known::default(), BTreeMap::new());
        assert_eq!(known.get(&pass(1, 1)), None);
        for at in 0..5000 {
            let key = pass(at % 97 * 64, at / 97);
            assert_eq!(known.get(&key), map.get(&key).copied());
            known.note(key, play(at, true));
            map.insert(key, play(at, true));
        }
        assert!(map.iter().all(|(key, play)| known.get(key) == Some(*play)));
        assert_eq!(known.get(&pass(1, 0)), None);
        known.note(pass(7, 7), play(7, false));
        assert_eq!((known.get(&pass(0, 0)), known.get(&pass(7, 7))), (None, None));
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let mut known = Known::default();
        (0..=MOST as u64).for_each(|at| known.note(pass(at, 1), play(at, true)));
        assert_eq!(known.get(&pass(0, 1)), None);
        assert_eq!(known.get(&pass(MOST as u64, 1)), Some(play(MOST as u64, true)));
    }
}
