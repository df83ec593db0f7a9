//! From the token ids of a workload, which no vocabulary has, to ids of a model.

use plimsoll_checkpoint::Tokenizer;
use plimsoll_core::{
    kv::Runs,
    sched::{OutputIds, RequestId},
};
use std::collections::BTreeMap;

/// Maps ids. Equal ids stay equal, so that what is shared stays shared; others differ but by chance, token by token:
/// consecutive ids do not become consecutive ones.
pub struct Fold {
    /// What an id may become.
    ids: Vec<u32>,
    /// Tokens that were really made: a conversation goes on with them.
    answers: BTreeMap<RequestId, Vec<u32>>,
}

impl Fold {
    /// Into a model's vocabulary, special tokens left out.
    pub fn of_tokenizer(tokenizer: &Tokenizer) -> Self {
        Self::of(tokenizer.plain_ids())
    }

    /// Into these ids; none is as one of id 0.
    pub fn of(mut ids: Vec<u32>) -> Self {
        if ids.is_empty() {
            ids.push(0);
        }
        Self { ids, answers: BTreeMap::new() }
    }

    /// What an id becomes, whatever was made.
    pub fn plain(&self, id: u64) -> u32 {
        let at = scatter(id) % self.ids.len() as u64;
        self.ids.get(at as usize).copied().unwrap_or_default()
    }

    /// A token that a request really made.
    pub fn made(&mut self, request: RequestId, token: u32) {
        self.answers.entry(request).or_default().push(token);
    }

    /// The ids of a prompt. Where it repeats an answer that is known, it repeats what was made.
    pub fn prompt(&self, prompt: &Runs) -> Vec<u32> {
        let given = OutputIds::default();
        let mut next = None;
        let ids = prompt.values().map(|id| {
            let place = answered(given, id).or(next.filter(|_| id == given.eos));
            next = place.map(|(request, k)| (request, k + 1));
            let made = place.and_then(|(request, k)| self.answers.get(&request)?.get(k).copied());
            made.unwrap_or_else(|| self.plain(id))
        });
        ids.collect()
    }
}

/// Whose output an id stands for, and which.
fn answered(given: OutputIds, id: u64) -> Option<(RequestId, usize)> {
    // Blocks of traces lie above.
    let offset = id.checked_sub(given.first).filter(|_| id < 1 << 62)?;
    Some((RequestId(offset / given.stride), usize::try_from(offset % given.stride).ok()?))
}

/// A number for a number, no two alike (the finalizer of `SplitMix64`, Steele, Lea and Flood, 2014).
const fn scatter(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn equal_ids_stay_equal_and_prompts_of_others_differ_early() {
        let fold = Fold::of((10..210).collect());
        let shared = Runs::of(1 << 60, 64);
        let with = |own: u64| {
            let mut prompt = shared.clone();
            prompt.extend(&Runs::of(own << 32, 8));
            fold.prompt(&prompt)
        };
        let all: BTreeSet<Vec<u32>> = (1..=300).map(with).collect();
        assert_eq!(all.len(), 300, "no two requests are one");
        let first = with(1);
        assert!(all.iter().all(|prompt| prompt[..64] == first[..64]), "the prefix is shared");
        assert!(all.iter().flatten().all(|id| (10..210).contains(id)));
        let next: BTreeSet<Vec<u32>> = all.iter().map(|prompt| prompt[64..66].to_vec()).collect();
        assert!(next.len() > 280, "own parts differ from their first tokens on");
        assert_eq!(Fold::of(Vec::new()).plain(7), 0);
    }

    #[test]
    fn a_conversation_goes_on_with_what_was_made() {
        let mut fold = Fold::of((0..50).collect());
        let given = OutputIds::default();
        [901, 902, 903].iter().for_each(|token| fold.made(RequestId(4), *token));
        let mut prompt = Runs::of(7 << 32, 2);
        prompt.extend(&given.made(RequestId(4), 3, 3));
        prompt.extend(&Runs::of(9 << 32, 1));
        let ids = fold.prompt(&prompt);
        assert_eq!(ids[2..5], [901, 902, 903]);
        assert!(ids[5] < 50);
        // What was not heard of is made up.
        let other = fold.prompt(&given.made(RequestId(5), 3, 9));
        assert!(other.iter().all(|id| *id < 50));
    }
}
