//! The rows of the plan.

use crate::{figure::Why, memory::ledger::Account, units::Bytes};

/// Who holds memory of the process. The order is the order of printing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// The process before anything is loaded: code, libraries, what starting took.
    Process,
    /// Weights in the form in which they are kept.
    Weights,
    /// Cosines and sines of every position.
    Rotary,
    /// Activations of the largest step.
    Arena,
    /// Spans of attention that are not merged yet, and the rows of a step.
    Scratch,
    /// Tables of requests: sampler, scheduler, ids, text that is held back.
    Requests,
    /// Stacks of the threads, as far as they are used.
    Stacks,
    /// Vocabulary, merges, chat template.
    Tokenizer,
    /// Connections, bodies, streams.
    Http,
    /// Buffers of the recording.
    Recording,
    /// Queues and scratch of libraries.
    Library,
    /// The kernel's tables for all of this.
    PageTables,
    /// Left free: growth of others between two looks, and what the plan has wrong.
    Margin,
    /// Pages of the KV pool.
    KvPool,
    /// Less than a page of the pool, or more than it may have.
    Rest,
}

impl Part {
    /// Every part, in printing order.
    pub const ALL: [Self; 15] = [
        Self::Process,
        Self::Weights,
        Self::Rotary,
        Self::Arena,
        Self::Scratch,
        Self::Requests,
        Self::Stacks,
        Self::Tokenizer,
        Self::Http,
        Self::Recording,
        Self::Library,
        Self::PageTables,
        Self::Margin,
        Self::KvPool,
        Self::Rest,
    ];

    /// Name in records and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Weights => "weights",
            Self::Rotary => "rotary_table",
            Self::Arena => "arena",
            Self::Scratch => "attention_scratch",
            Self::Requests => "request_tables",
            Self::Stacks => "stacks",
            Self::Tokenizer => "tokenizer",
            Self::Http => "http",
            Self::Recording => "recording",
            Self::Library => "libraries",
            Self::PageTables => "page_tables",
            Self::Margin => "margin",
            Self::KvPool => "kv_pool",
            Self::Rest => "rest",
        }
    }

    /// Name for people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Process => "process before loading",
            Self::Weights => "weights",
            Self::Rotary => "rotary table",
            Self::Arena => "activations (largest step)",
            Self::Scratch => "attention scratch, rows",
            Self::Requests => "request tables, samplers",
            Self::Stacks => "stacks of threads",
            Self::Tokenizer => "tokenizer",
            Self::Http => "connections and streams",
            Self::Recording => "recording buffers",
            Self::Library => "libraries",
            Self::PageTables => "page tables",
            Self::Margin => "margin, left free",
            Self::KvPool => "KV pool",
            Self::Rest => "rest, not used",
        }
    }

    /// The account of a ledger that it belongs to.
    #[must_use]
    pub const fn account(self) -> Account {
        match self {
            Self::Process
            | Self::Stacks
            | Self::Tokenizer
            | Self::Http
            | Self::Recording
            | Self::PageTables => Account::Context,
            Self::Weights => Account::Weights,
            Self::Rotary | Self::Scratch | Self::Library => Account::Workspaces,
            Self::Arena => Account::Activations,
            Self::Requests => Account::RequestTable,
            Self::KvPool => Account::KvPool,
            Self::Margin | Self::Rest => Account::Free,
        }
    }
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanRow {
    /// Who.
    pub part: Part,
    /// How much.
    pub bytes: Bytes,
    /// From what.
    pub why: Why,
}
