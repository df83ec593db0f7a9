//! Which lines are worth reading: those that hold a telling word of some parser.

use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use memchr::memmem::Finder;

use super::{
    clues, command, devices, frequent, llama_cpp, lmdeploy, ollama, sglang, system, tensorrt_llm,
    tgi, torch, traceback, version, vllm,
};

/// A set of parsers that a line may be for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Readers(u16);

impl Readers {
    pub(super) const SGLANG: Self = Self(1 << 1);
    pub(super) const TORCH: Self = Self(1 << 2);
    pub(super) const SYSTEM: Self = Self(1 << 3);
    pub(super) const TRACEBACK: Self = Self(1 << 4);
    pub(super) const VLLM: Self = Self(1 << 5);
    pub(super) const LLAMA_CPP: Self = Self(1 << 6);
    pub(super) const OLLAMA: Self = Self(1 << 7);
    pub(super) const TENSORRT_LLM: Self = Self(1 << 8);
    pub(super) const TGI: Self = Self(1 << 9);
    pub(super) const LMDEPLOY: Self = Self(1 << 10);
    pub(super) const VERSION: Self = Self(1 << 11);
    pub(super) const COMMAND: Self = Self(1 << 12);
    pub(super) const DEVICES: Self = Self(1 << 13);

    /// Whether the set holds all of `other`.
    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The automaton over every parser's words.
pub(super) struct Filter {
    frequent: Vec<Finder<'static>>,
    words: AhoCorasick,
    readers: Vec<Readers>,
}

impl Filter {
    /// The one filter of the process; `None` only if the automaton could not be built.
    pub(super) fn shared() -> Option<&'static Self> {
        static FILTER: OnceLock<Option<Filter>> = OnceLock::new();
        FILTER.get_or_init(Self::build).as_ref()
    }

    fn build() -> Option<Self> {
        let tables: [(Readers, &[&str]); 14] = [
            (Readers::SGLANG, sglang::WORDS),
            (Readers::TORCH, torch::WORDS),
            (Readers::SYSTEM, system::WORDS),
            (Readers::TRACEBACK, traceback::WORDS),
            (Readers::VLLM, vllm::WORDS),
            (Readers::LLAMA_CPP, llama_cpp::WORDS),
            (Readers::OLLAMA, ollama::WORDS),
            (Readers::TENSORRT_LLM, tensorrt_llm::WORDS),
            (Readers::TGI, tgi::WORDS),
            (Readers::LMDEPLOY, lmdeploy::WORDS),
            (Readers::VERSION, version::WORDS),
            (Readers::SGLANG, clues::WORDS),
            (Readers::COMMAND, command::WORDS),
            (Readers::DEVICES, devices::WORDS),
        ];
        let mut patterns = Vec::new();
        let mut readers = Vec::new();
        for (reader, words) in tables {
            for word in words.iter().filter(|word| !word.is_empty()) {
                patterns.push(*word);
                readers.push(reader);
            }
        }
        let words = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::DFA))
            .ascii_case_insensitive(true)
            .build(patterns)
            .ok()?;
        let frequent = frequent::WORDS.iter().map(Finder::new).collect();
        Some(Self { frequent, words, readers })
    }

    /// Whether the line is one of those that a serving server writes all the time; most lines of a long log are.
    /// That a word of them stands in the line is no proof.
    pub(super) fn is_frequent(&self, line: &[u8]) -> bool {
        self.frequent.iter().any(|word| word.find(line).is_some())
    }

    /// Whether any parser wants the line.
    pub(super) fn wants(&self, line: &[u8]) -> bool {
        self.is_frequent(line) || self.words.is_match(line)
    }

    /// Every parser of which a word stands in the line.
    pub(super) fn readers(&self, line: &[u8]) -> Readers {
        let mut found = Readers::default();
        for hit in self.words.find_overlapping_iter(line) {
            if let Some(reader) = self.readers.get(hit.pattern().as_usize()) {
                found = found.with(*reader);
            }
        }
        found
    }
}
