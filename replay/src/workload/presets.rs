//! Workloads by name. The figures are those of public traces and benchmarks; `docs/workloads.md` says whose.

use crate::scenario::Group;

/// A workload with a name.
#[derive(Clone, PartialEq, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is like, and whose figures it has.
    pub about: &'static str,
    /// Its requests.
    pub group: Group,
}

/// Name, what it is, its group as a scenario would write it.
type Written = (&'static str, &'static str, &'static str);

const WRITTEN: [Written; 9] = [
    (
        "chat-short",
        "Short chats at 8 a second, with lengths like those of ShareGPT's first turns: 167 tokens in and 337 out \
         on average.",
        "{requests: 1000, rate: 8 /s, ignore_eos: true,
          prompt_tokens: {lognormal: {median: 101.49, sigma: 1.0, min: 4, max: 2048}},
          output_tokens: {lognormal: {median: 249.64, sigma: 0.85, min: 4, max: 1024}}}",
    ),
    (
        "chat-azure",
        "Azure's conversations of 2023: 5.53 a second with a gap CV of 1.09 (Patel et al., ISCA 2024; CC-BY 4.0).",
        "{requests: 2000, rate: 5.53 /s, arrivals: gamma, burstiness: 0.842,
          prompt_tokens: {lognormal: {median: 757.48, sigma: 0.99, min: 3, max: 14050}},
          output_tokens: {lognormal: {median: 151.41, sigma: 0.86, min: 7, max: 1000}}}",
    ),
    (
        "code-azure",
        "Azure's code completion of 2023: 2.57 a second in bursts, gap CV 13.15; long prompts, short answers \
         (Patel et al., ISCA 2024; CC-BY 4.0).",
        "{requests: 2000, rate: 2.57 /s, arrivals: gamma, burstiness: 0.00578,
          prompt_tokens: {lognormal: {median: 1096.6, sigma: 1.36, min: 3, max: 7437}},
          output_tokens: {lognormal: {median: 16.28, sigma: 0.85, min: 6, max: 1899}}}",
    ),
    (
        "long-chat",
        "Mooncake's conversations: 12,000 tokens in on average, at 3.4 a second, behind one system prompt \
         (Qin et al., FAST 2025; Apache-2.0).",
        "{requests: 1000, rate: 3.4 /s, shared_prefix: {tokens: 512},
          prompt_tokens: {lognormal: {median: 6247.9, sigma: 1.20, min: 300, max: 125683}},
          output_tokens: {lognormal: {median: 208.5, sigma: 1.36, min: 1, max: 2000}}}",
    ),
    (
        "agent",
        "Agents with tools: conversations of six turns behind one of 16 tool prompts, 8,600 tokens in and 182 out \
         on average, as in Mooncake's toolagent trace (Qin et al., FAST 2025; Apache-2.0).",
        "{requests: 200, rate: 1.1 /s, turns: {count: 6, think_time: 2 s, prompt_tokens: 1400},
          shared_prefix: {tokens: 3000, groups: 16}, prompt_tokens: 1650,
          output_tokens: {lognormal: {median: 120, sigma: 0.9, min: 8, max: 2000}}}",
    ),
    (
        "rag-8k",
        "Retrieval: 8,192 tokens in, half of them one of 32 shared documents, 256 out.",
        "{requests: 500, rate: 2 /s, ignore_eos: true, shared_prefix: {tokens: 4096, groups: 32},
          prompt_tokens: 4096, output_tokens: 256}",
    ),
    (
        "reasoning",
        "Questions of 1,000 tokens and long thoughts: nine answers of ten within 12,000 tokens.",
        "{requests: 300, rate: 1 /s, prompt_tokens: 1000, max_tokens: 32768,
          output_tokens: {lognormal: {median: 4303, sigma: 0.8, min: 64, max: 32768}}}",
    ),
    (
        "batch-offline",
        "An offline job: 150 requests are there at once, and go through 32 connections.",
        "{requests: 150, at: 0 s, concurrency: 32, ignore_eos: true,
          prompt_tokens: {uniform: [100, 900]}, output_tokens: {uniform: [64, 384]}}",
    ),
    (
        "bench-32",
        "A benchmark with 32 connections: 512 tokens in, 128 out.",
        "{requests: 320, concurrency: 32, ignore_eos: true, prompt_tokens: 512, output_tokens: 128}",
    ),
];

/// Every name.
pub const NAMES: &[&str] = &{
    let mut names = [""; WRITTEN.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = WRITTEN[at].0;
        at += 1;
    }
    names
};

/// Every name.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied()
}

/// The preset of that name; its group has the name too.
#[must_use]
pub fn named(name: &str) -> Option<Preset> {
    let (name, about, text) = WRITTEN.into_iter().find(|(other, ..)| *other == name)?;
    let mut group = crate::scenario::group_of(text)?;
    group.name = name.to_owned();
    Some(Preset { name, about, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_group() {
        for name in names() {
            let preset = named(name).unwrap_or_else(|| panic!("{name} cannot be read"));
            assert_eq!(preset.group.name, name);
        }
        assert_eq!(named("chat"), None);
    }
}
