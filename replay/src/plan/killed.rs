//! The smallest mix of requests that would kill a given start.

use super::passes::{Death, Passes, SHORT_PROMPT, decode, prefill};
use plimsoll_core::{
    engine::serving::Pass,
    units::{Bytes, group_thousands},
};

/// Kinds of mixes, in the order of asking: what clients do every day first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MixKind {
    /// One prompt.
    OnePrompt,
    /// Short prompts that arrive together.
    ShortPrompts,
    /// One prompt over a cached prefix.
    CachedPrefix,
    /// Requests that sample by temperature at once.
    Sampling,
    /// One prompt whose logprobs are asked for.
    InputLogprobs,
}

impl MixKind {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnePrompt => "one_prompt",
            Self::ShortPrompts => "short_prompts",
            Self::CachedPrefix => "cached_prefix",
            Self::Sampling => "sampling",
            Self::InputLogprobs => "input_logprobs",
        }
    }
}

/// A mix of requests, and how the server dies of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KilledBy {
    /// Kind.
    pub kind: MixKind,
    /// Requests.
    pub requests: u64,
    /// New tokens of all of them.
    pub tokens: u64,
    /// Cached tokens before them.
    pub prefix_tokens: u64,
    /// The refused request.
    pub death: Death,
}

impl KilledBy {
    /// The verb that [`Self::words`] asks for.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        match self.kind {
            MixKind::ShortPrompts | MixKind::Sampling => "are enough",
            MixKind::OnePrompt | MixKind::CachedPrefix | MixKind::InputLogprobs => "is enough",
        }
    }

    /// Whether prompts alone do it, without many requests that sample at once.
    #[must_use]
    pub fn is_prompts(&self) -> bool {
        self.kind < MixKind::Sampling
    }

    /// The mix in words, the subject of [`Self::verb`].
    #[must_use]
    pub fn words(&self) -> String {
        let (requests, tokens) = (group_thousands(self.requests), group_thousands(self.tokens));
        match self.kind {
            MixKind::OnePrompt if self.prefix_tokens > 0 => {
                let whole = group_thousands(self.tokens.saturating_add(self.prefix_tokens));
                format!("a single prompt of {whole} tokens")
            }
            MixKind::OnePrompt => format!("a single prompt of {tokens} tokens"),
            MixKind::ShortPrompts => {
                format!("{requests} prompts of {SHORT_PROMPT} tokens together")
            }
            MixKind::CachedPrefix => {
                let prefix = group_thousands(self.prefix_tokens);
                format!("a prompt of {tokens} tokens over a cached prefix of {prefix}")
            }
            MixKind::Sampling => format!("{requests} requests sampling at once"),
            MixKind::InputLogprobs => format!("a prompt of {tokens} tokens with input logprobs"),
        }
    }
}

/// What kills a start, by kinds of requests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kills {
    /// The first kind of plain requests that does.
    pub plain: Option<KilledBy>,
    /// A prompt with input logprobs, which requests must ask for.
    pub on_demand: Option<KilledBy>,
}

/// Looks for the smallest mix of each kind within the server's limits; the first plain kind that kills
/// is the answer.
pub(super) fn find(passes: &mut Passes, left: Bytes) -> Kills {
    let plain =
        [MixKind::OnePrompt, MixKind::ShortPrompts, MixKind::CachedPrefix, MixKind::Sampling];
    let plain = plain.into_iter().find_map(|kind| smallest(passes, left, kind));
    Kills { plain, on_demand: smallest(passes, left, MixKind::InputLogprobs) }
}

/// The pass that size `n` of a kind makes, and the largest size.
fn pass(passes: &Passes, kind: MixKind, n: u64) -> Pass {
    match kind {
        MixKind::OnePrompt => {
            let chunk = passes.limits.chunk;
            // Longer prompts come in chunks; the last full one has all others before it.
            if n <= chunk { prefill(n, 1, 0) } else { prefill(chunk, 1, n - chunk) }
        }
        MixKind::ShortPrompts => prefill(n.saturating_mul(SHORT_PROMPT), n, 0),
        MixKind::CachedPrefix => prefill(passes.limits.chunk.min(CACHED_NEW), 1, n),
        MixKind::Sampling => decode(n),
        MixKind::InputLogprobs => Pass { logprob_rows: n, ..prefill(n, 1, 0) },
    }
}

/// New tokens of a prompt whose prefix is cached: a turn of a conversation, assumed.
const CACHED_NEW: u64 = 512;

fn most(passes: &Passes, kind: MixKind) -> u64 {
    let limits = passes.limits;
    match kind {
        MixKind::OnePrompt => limits.context.min(limits.pool),
        MixKind::ShortPrompts => (limits.chunk / SHORT_PROMPT).min(limits.running),
        MixKind::CachedPrefix => {
            limits.context.min(limits.pool).saturating_sub(limits.chunk.min(CACHED_NEW))
        }
        MixKind::Sampling => limits.running,
        MixKind::InputLogprobs => limits.chunk,
    }
}

/// The smallest size of a kind that dies. Chunks first: a prompt that dies in its first chunk is not
/// looked for among longer ones.
pub(super) fn smallest(passes: &mut Passes, left: Bytes, kind: MixKind) -> Option<KilledBy> {
    let mut high = most(passes, kind);
    if high == 0 {
        return None;
    }
    let first_chunk = high.min(passes.limits.chunk);
    if kind == MixKind::OnePrompt && passes.dies(&pass(passes, kind, first_chunk), left).is_some() {
        high = first_chunk;
    }
    let mut death = passes.dies(&pass(passes, kind, high), left)?;
    let mut low = 0;
    while high - low > 1 {
        let middle = low.midpoint(high);
        match passes.dies(&pass(passes, kind, middle), left) {
            Some(died) => (high, death) = (middle, died),
            None => low = middle,
        }
    }
    let found = pass(passes, kind, high);
    Some(KilledBy {
        kind,
        requests: found.requests,
        tokens: found.tokens,
        prefix_tokens: found.prefix_tokens.min(match kind {
            MixKind::Sampling => 0,
            _ => u64::MAX,
        }),
        death,
    })
}
