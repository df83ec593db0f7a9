//! Recorded workloads: public traces, and what benchmark clients write, as rows of one form.
//!
//! A file is read as a stream, line by line or element by element: reading costs memory by what is kept.
//! Rows that cannot be used are left out and counted, or end the reading, as the caller wants.

mod detect;
mod error;
mod ids;
mod json;
mod jsonl;
mod lines;
mod linked;
mod results;
mod sharegpt;
mod summary;
mod tables;
#[cfg(test)]
mod tests;
mod trace;

pub use error::{BadRow, Dropped, ImportError};
pub use summary::{Distribution, Summary};
pub use trace::{BlockRun, Link, MAX_BLOCK_SIZE, MAX_ROWS, MAX_TOKENS, Row, Trace, Trigger};

use error::Drops;
use std::io::{BufRead, Cursor, Read as _};
use trace::Builder;

/// Formats that can be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Format {
    /// Mooncake: lengths, and chained ids of blocks of 512 tokens; timestamps in milliseconds.
    Mooncake,
    /// Alibaba's Qwen-Bailian: as Mooncake, blocks of 16 tokens, timestamps in seconds.
    Alibaba,
    /// Azure 2023 and 2024: times of day and lengths.
    Azure,
    /// BurstGPT 1 and 2: seconds and lengths, failures among them.
    BurstGpt,
    /// ShareGPT: conversations in words.
    ShareGpt,
    /// vidur: seconds and lengths.
    Vidur,
    /// LLMServingSim: nanoseconds and lengths.
    LlmServingSim,
    /// Mooncake with sessions: a row has what its turn adds.
    MooncakeDelta,
    /// Dynamo's agentic Mooncake: requests that wait for others.
    AgenticMooncake,
    /// Plimsoll's own rows.
    Plimsoll,
    /// What vLLM's `bench serve` saves in detail.
    VllmBench,
    /// What SGLang's `bench_serving` writes with its details.
    SglangBench,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 12] = [
        Self::Mooncake,
        Self::Alibaba,
        Self::Azure,
        Self::BurstGpt,
        Self::ShareGpt,
        Self::Vidur,
        Self::LlmServingSim,
        Self::MooncakeDelta,
        Self::AgenticMooncake,
        Self::Plimsoll,
        Self::VllmBench,
        Self::SglangBench,
    ];

    /// Every name.
    pub const NAMES: [&'static str; 12] = [
        "mooncake",
        "alibaba",
        "azure",
        "burstgpt",
        "sharegpt",
        "vidur",
        "llmservingsim",
        "mooncake-delta",
        "agentic-mooncake",
        "plimsoll",
        "vllm-bench",
        "sglang-bench",
    ];

    /// Its name in scenarios and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The format of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Tokens of a block where the file does not say: as the format's publisher cuts prompts.
    const fn block_size(self) -> Option<u64> {
        match self {
            Self::Mooncake | Self::MooncakeDelta | Self::AgenticMooncake => Some(512),
            Self::Alibaba => Some(16),
            _ => None,
        }
    }
}

/// What becomes of requests that a trace records without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Failures {
    /// They are left out.
    #[default]
    Drop,
    /// They are sent, and answered with one token.
    Keep,
}

/// Which conversations of ShareGPT count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filter {
    /// SGLang's: at least 2 tokens on each side, and no more together than the context where one is given.
    /// Source: SGLang 0.5.23 `sample_sharegpt_requests`.
    #[default]
    Sglang,
    /// vLLM's: at least 4 tokens on each side, a prompt of at most 1024, 2048 together.
    /// Source: vLLM `is_valid_sequence`.
    Vllm,
    /// Every conversation with two turns.
    All,
}

/// How a file is read.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Its format; `None`: as its content shows.
    pub format: Option<Format>,
    /// Tokens of a block; `None`: the format's, or what fits the rows.
    pub block_size: Option<u64>,
    /// Most rows that are kept; what follows is not looked at.
    pub limit: Option<u64>,
    /// Requests without an answer.
    pub failures: Failures,
    /// ShareGPT: characters of a token, where a turn does not say how many tokens it has.
    pub chars_per_token: f64,
    /// ShareGPT: which conversations count.
    pub filter: Filter,
    /// ShareGPT with SGLang's filter: most tokens of a prompt and its answer.
    pub context_length: Option<u64>,
    /// Whether a row that cannot be read ends the reading.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: None,
            block_size: None,
            limit: None,
            failures: Failures::default(),
            chars_per_token: 4.0,
            filter: Filter::default(),
            context_length: None,
            strict: false,
        }
    }
}

/// A workload that was read, and what was done to it.
#[derive(Clone, PartialEq, Debug)]
pub struct Import {
    /// The rows.
    pub trace: Trace,
    /// Rows that were left out.
    pub dropped: Vec<Dropped>,
    /// What else was done or assumed, a sentence each.
    pub notes: Vec<String>,
}

/// Bytes of a file that its format is told by.
const HEAD: u64 = 64 << 10;

/// Reads a workload.
///
/// # Errors
///
/// [`ImportError`]: a format that is not known, a file without a row that can be used, or, where the
/// options say so, the first row that cannot be read.
pub fn import(mut input: impl BufRead, options: &Options) -> Result<Import, ImportError> {
    let mut head = Vec::new();
    (&mut input).take(HEAD).read_to_end(&mut head)?;
    let format = match options.format {
        Some(format) => format,
        None => detect::format(&head).map_err(ImportError::Format)?,
    };
    let mut whole = Cursor::new(head).chain(input);
    let mut reading = Reading::new(format, options);
    match format {
        Format::Azure | Format::BurstGpt | Format::Vidur => tables::read(&mut whole, &mut reading)?,
        Format::ShareGpt => sharegpt::read(&mut whole, &mut reading)?,
        Format::VllmBench | Format::SglangBench => results::read(&mut whole, &mut reading)?,
        Format::Mooncake | Format::Alibaba | Format::LlmServingSim => {
            jsonl::read(&mut whole, &mut reading)?;
        }
        Format::MooncakeDelta | Format::AgenticMooncake | Format::Plimsoll => {
            linked::read(&mut whole, &mut reading)?;
        }
    }
    reading.finish()
}

/// A file that is being read.
struct Reading<'a> {
    format: Format,
    options: &'a Options,
    rows: Builder,
    drops: Drops,
    notes: Vec<String>,
    blocks: ids::BlockSizes,
}

/// Lengths of a row that can be sent.
#[derive(Clone, Copy)]
struct Lengths {
    input: u32,
    output: u32,
}

impl<'a> Reading<'a> {
    fn new(format: Format, options: &'a Options) -> Self {
        Self {
            format,
            options,
            rows: Builder::new(format),
            drops: Drops::new(options.strict),
            notes: Vec::new(),
            blocks: ids::BlockSizes::new(options.block_size.or(format.block_size())),
        }
    }

    /// Whether as many rows are kept as were asked for.
    fn is_full(&self) -> bool {
        let kept = self.rows.len();
        kept >= MAX_ROWS || self.options.limit.is_some_and(|limit| kept as u64 >= limit)
    }

    /// The lengths of a row; `None`: it is not wanted. Longer ones than any engine serves are a mistake.
    fn lengths(
        &mut self,
        line: u64,
        input: u64,
        output: u64,
    ) -> Result<Option<Lengths>, ImportError> {
        for (name, tokens) in [("input tokens", input), ("output tokens", output)] {
            if tokens > MAX_TOKENS {
                let bad = BadRow::new(name, tokens, format!("0 to {MAX_TOKENS} tokens"));
                self.drops.bad(bad.at(line, None))?;
                return Ok(None);
            }
        }
        if input == 0 {
            self.drops.unwanted("they have no prompt", line);
            return Ok(None);
        }
        if output == 0 && self.options.failures == Failures::Drop {
            self.drops.unwanted("they have no answer: they failed", line);
            return Ok(None);
        }
        let fit = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        Ok(Some(Lengths { input: fit(input), output: fit(output.max(1)) }))
    }

    fn finish(mut self) -> Result<Import, ImportError> {
        if self.rows.len() >= MAX_ROWS {
            let note = format!("only the first {MAX_ROWS} rows are kept");
            self.notes.push(note);
        }
        if self.rows.len() == 0 {
            let dropped: Vec<String> =
                self.drops.into_list().iter().map(ToString::to_string).collect();
            let why = match dropped.is_empty() {
                true => "it has none".to_owned(),
                false => dropped.join("; "),
            };
            let name = self.format.name();
            return Err(ImportError::File(format!("no row can be used as `{name}`: {why}")));
        }
        let size = self.blocks.settle(&mut self.notes).map_err(ImportError::File)?;
        self.rows.set_block_size(size);
        let trace = self.rows.finish();
        Ok(Import { trace, dropped: self.drops.into_list(), notes: self.notes })
    }
}
