//! Memory snapshots of torch (`torch.cuda.memory._snapshot()`): read and written as JSON and as
//! pickle, the two forms that PyTorch's `memory_viz` page opens. Functions over bytes; no I/O.
//!
//! Format: torch 2.1 to 2.15, `torch/cuda/_memory_viz`, `torch/csrc/cuda/memory_snapshot`.

mod emit;
mod pickle;
mod read;
mod value;
mod write;

use crate::memory::caching_allocator::{
    Action, ExpandableSegments, Options, PoolId, SizeClass, StreamId,
};

pub use pickle::{MAX_BYTES, PickleError};
pub use read::{SnapshotError, from_bytes, from_json, from_pickle};
pub use value::Value;
pub use write::{PickleProtocol, to_json, to_pickle};

/// A place in a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Frame {
    /// Source file.
    pub filename: String,
    /// Line, from 1; 0 when not known.
    pub line: u64,
    /// Function.
    pub name: String,
}

/// A stack of a snapshot, by its place in [`Snapshot::stacks`]; equal stacks share one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct StackId(pub u32);

impl StackId {
    /// No frames; always the first of [`Snapshot::stacks`], which may be left out.
    pub const EMPTY: Self = Self(0);
}

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BlockState {
    /// Held by the program.
    ActiveAllocated,
    /// Given back; another stream may still use it. Older tools write `active_pending_free`.
    ActiveAwaitingFree,
    /// Free.
    Inactive,
}

impl BlockState {
    /// As a snapshot spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActiveAwaitingFree => "active_awaiting_free",
            Self::Inactive => "inactive",
        }
    }
}

/// Part of a segment. Sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Address; snapshots before torch 2.1 lack it, then it is the running sum.
    pub address: u64,
    /// Size with slack.
    pub size: u64,
    /// What was asked for; 0 when not known.
    pub requested_size: u64,
    /// What it is.
    pub state: BlockState,
    /// Who asked.
    pub stack: StackId,
}

/// Memory taken from the device in one piece, or a mapped run of a growing range. Sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Device index.
    pub device: u32,
    /// Address of the first block.
    pub address: u64,
    /// Size.
    pub total_size: u64,
    /// Blocks held by the program.
    pub allocated_size: u64,
    /// Held or waiting for other streams.
    pub active_size: u64,
    /// What active blocks were asked for.
    pub requested_size: u64,
    /// Stream that may use it.
    pub stream: StreamId,
    /// Small or large.
    pub class: SizeClass,
    /// Graph pool, or the default pool.
    pub pool: PoolId,
    /// Whether it can grow.
    pub is_expandable: bool,
    /// Who caused it.
    pub stack: StackId,
    /// Its blocks by address.
    pub blocks: Vec<Block>,
}

/// What a trace entry says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryAction {
    /// An action of the allocator.
    Allocator(Action),
    /// Any other word (`annotate`, the `free` of old snapshots), kept as it is.
    Other(String),
}

impl EntryAction {
    /// As a snapshot spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Allocator(action) => action.name(),
            Self::Other(name) => name,
        }
    }
}

/// One entry of a device's trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What.
    pub action: EntryAction,
    /// Where; of an out-of-memory entry what the device had free.
    pub address: u64,
    /// Bytes; as requested for `alloc` and frees.
    pub size: u64,
    /// Stream.
    pub stream: StreamId,
    /// Time, microseconds.
    pub time_us: u64,
    /// Who.
    pub stack: StackId,
    /// What the program attached.
    pub user_metadata: String,
}

/// A memory snapshot. Keys that stand in a file and not here are left out when it is read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// Segments by address; the truth when the trace is cut.
    pub segments: Vec<Segment>,
    /// Trace of each device, by index; a ring, so the oldest may be gone.
    pub device_traces: Vec<Vec<Entry>>,
    /// Settings in force, absent before about torch 2.3.
    pub allocator_settings: Option<Value>,
    /// Marks of the program, absent before about torch 2.3.
    pub external_annotations: Option<Value>,
    /// Stacks that [`StackId`] points to. The first is empty.
    pub stacks: Vec<Vec<Frame>>,
}

impl Snapshot {
    /// Frames of a stack; none for an id that the snapshot lacks.
    #[must_use]
    pub fn frames(&self, stack: StackId) -> &[Frame] {
        self.stacks.get(stack.0 as usize).map_or(&[], Vec::as_slice)
    }
}

/// The `allocator_settings` of a snapshot for options.
#[must_use]
pub fn settings_of(options: &Options) -> Value {
    let text = |t: &str| Value::Str(t.to_owned());
    let bytes = |n: u64| Value::Int(i64::try_from(n).unwrap_or(i64::MAX));
    let divisions = options.roundup_power2_divisions.values();
    let divisions =
        divisions.iter().enumerate().map(|(i, d)| ((1_u64 << i).to_string(), bytes(*d))).collect();
    let grows = options.expandable_segments == ExpandableSegments::On;
    let entries: [(&str, Value); 6] = [
        ("PYTORCH_CUDA_ALLOC_CONF", text(&options.text)),
        ("max_split_size", options.max_split_size.map_or(Value::Int(-1), bytes)),
        ("garbage_collection_threshold", Value::Float(options.garbage_collection_threshold)),
        ("expandable_segments", Value::Bool(grows)),
        ("large_segment_size", bytes(options.large_segment_size)),
        ("roundup_power2_divisions", Value::Dict(divisions)),
    ];
    Value::Dict(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests;
