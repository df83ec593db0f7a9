//! Lines of Text Generation Inference. Templates: releases 0.9 to 3.x.

use super::fields::{after, uint, uint_after};
use super::scan::{Known, read_by, words};
use crate::log::Tgi;

const LINES: &[Known<Tgi>; 7] = &[
    ("Not enough memory to handle ", prefill),
    ("Setting max batch total tokens to ", total),
    ("Setting max_batch_total_tokens to ", total),
    ("Shard process was signaled to shutdown", |_| Some(Tgi::ShardEnded)),
    ("Shard complete standard error output", |_| Some(Tgi::ShardEnded)),
    (" crashed", shard),
    (" failed to start", shard),
];

/// Words of which every line that [`read`] understands holds at least one, in any case.
pub(super) const WORDS: &[&str] = &words(LINES);

/// What one undressed line says; `None` when it is no line of this server.
pub(super) fn read(line: &str) -> Option<Tgi> {
    read_by(LINES, line)
}

/// `Not enough memory to handle 4096 prefill tokens.` or `… 16000 total tokens with 2 prefill tokens.`
fn prefill(line: &str) -> Option<Tgi> {
    let rest = after(line, "to handle ")?;
    let figure = |words: &str| uint(rest.split_once(words)?.0.rsplit(' ').next()?);
    Some(Tgi::PrefillTokens { prefill: figure(" prefill tokens"), total: figure(" total tokens") })
}

fn total(line: &str) -> Option<Tgi> {
    Some(Tgi::TotalTokens { tokens: uint_after(line, "tokens to ")? })
}

/// `Shard 0 crashed`, `Shard 1 failed to start`.
fn shard(line: &str) -> Option<Tgi> {
    let rest = after(line, "Shard ")?;
    (rest.contains("crashed") || rest.contains("failed to start")).then_some(Tgi::ShardEnded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_and_total_tokens() {
        let one = read("Not enough memory to handle 2048 prefill tokens. You need to decrease");
        assert_eq!(one, Some(Tgi::PrefillTokens { prefill: Some(2048), total: None }));
        let both = read("Not enough memory to handle 9000 total tokens with 3 prefill tokens.");
        assert_eq!(both, Some(Tgi::PrefillTokens { prefill: Some(3), total: Some(9000) }));
        assert_eq!(read("the pod crashed"), None);
    }
}
