//! Bytes as a snapshot: one walk over a tree that came from JSON or from a pickle.

use std::collections::BTreeMap;

use super::{
    Block, BlockState, Entry, EntryAction, Frame, PickleError, Segment, Snapshot, StackId, Value,
    pickle::{Arena, Item, load},
};
use crate::memory::caching_allocator::{Action, PoolId, SizeClass, StreamId};

/// Why bytes are not a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Not JSON.
    #[error("JSON, line {line}, column {column}: {problem}")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong.
        problem: String,
    },
    /// Not a pickle of plain data.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A value that is missing or not what it should be.
    #[error("snapshot, {path}: {problem}")]
    Shape {
        /// Keys from the top, such as `segments[3].blocks[0].size`.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// Neither `{` nor a pickle's first byte.
    #[error("neither a JSON object nor a pickle (first byte {0:?})")]
    Neither(Option<u8>),
}

/// Reads either form, told apart by the first byte.
///
/// # Errors
///
/// [`SnapshotError`].
pub fn from_bytes(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') => from_json(bytes),
        Some(0x80 | b'}') => from_pickle(bytes),
        other => Err(SnapshotError::Neither(other.copied())),
    }
}

/// Reads the JSON form.
///
/// # Errors
///
/// [`SnapshotError::Json`], [`SnapshotError::Shape`].
pub fn from_json(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let tree: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| SnapshotError::Json {
            line: error.line(),
            column: error.column(),
            problem: error.to_string(),
        })?;
    Reader::new(bytes.len()).snapshot(Node::Json(&tree))
}

/// Reads the pickle form: protocols 0x80-marked 2 to 5, plain data only.
///
/// # Errors
///
/// [`SnapshotError::Pickle`], [`SnapshotError::Shape`].
pub fn from_pickle(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let arena = load(bytes)?;
    Reader::new(bytes.len()).snapshot(Node::Pickle(&arena, arena.root))
}

/// A place in either tree.
#[derive(Clone, Copy)]
enum Node<'a> {
    Json(&'a serde_json::Value),
    Pickle(&'a Arena<'a>, Item),
}

type Read<T> = Result<T, SnapshotError>;

fn shape<T>(problem: impl Into<String>) -> Read<T> {
    Err(SnapshotError::Shape { path: String::new(), problem: problem.into() })
}

/// Puts a key or an index before the path of an error.
fn inside(error: SnapshotError, step: &str) -> SnapshotError {
    match error {
        SnapshotError::Shape { path, problem } => {
            let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
            SnapshotError::Shape { path: format!("{step}{dot}{path}"), problem }
        }
        other => other,
    }
}

impl<'a> Node<'a> {
    fn int(self) -> Option<i128> {
        match self {
            Node::Json(serde_json::Value::Number(n)) => {
                n.as_u64().map(i128::from).or_else(|| n.as_i64().map(i128::from))
            }
            Node::Pickle(_, Item::Int(i)) => Some(i.into()),
            Node::Pickle(_, Item::Large(u)) => Some(u.into()),
            _ => None,
        }
    }

    fn text(self) -> Option<&'a str> {
        match self {
            Node::Json(serde_json::Value::String(s)) => Some(s),
            Node::Pickle(arena, Item::Text { at, length }) => Some(arena.text(at, length)),
            _ => None,
        }
    }

    fn bool(self) -> Option<bool> {
        match self {
            Node::Json(serde_json::Value::Bool(b)) => Some(*b),
            Node::Pickle(_, Item::Bool(b)) => Some(b),
            _ => None,
        }
    }

    fn is_null(self) -> bool {
        matches!(self, Node::Json(serde_json::Value::Null) | Node::Pickle(_, Item::Null))
    }

    fn len(self) -> Option<usize> {
        match self {
            Node::Json(serde_json::Value::Array(items)) => Some(items.len()),
            Node::Pickle(arena, Item::List(node)) => Some(arena.node(node).len()),
            _ => None,
        }
    }

    fn at(self, index: usize) -> Option<Self> {
        match self {
            Node::Json(serde_json::Value::Array(items)) => items.get(index).map(Node::Json),
            Node::Pickle(arena, Item::List(node)) => {
                arena.node(node).get(index).map(|item| Node::Pickle(arena, *item))
            }
            _ => None,
        }
    }

    /// Entries with a text for a key; `None` when it is no dictionary.
    fn entries(self, each: &mut dyn FnMut(&'a str, Self) -> Read<()>) -> Option<Read<()>> {
        match self {
            Node::Json(serde_json::Value::Object(map)) => {
                Some(map.iter().try_for_each(|(key, value)| each(key, Node::Json(value))))
            }
            Node::Pickle(arena, Item::Dict(node)) => {
                Some(arena.node(node).chunks_exact(2).try_for_each(|pair| {
                    match Node::Pickle(arena, pair[0]).text() {
                        Some(key) => each(key, Node::Pickle(arena, pair[1])),
                        None => Ok(()),
                    }
                }))
            }
            _ => None,
        }
    }

    /// Something that is the same for a shared container.
    fn identity(self) -> Option<u32> {
        match self {
            Node::Pickle(_, Item::List(node) | Item::Dict(node)) => Some(node),
            _ => None,
        }
    }
}

struct Reader {
    /// Entries that may still be visited and bytes that may still be copied: what is shared counts
    /// every time it is met, so that a small file cannot unfold into a large one.
    budget: usize,
    stacks: Vec<Vec<Frame>>,
    by_content: BTreeMap<Vec<Frame>, StackId>,
    by_identity: BTreeMap<u32, StackId>,
}

impl Reader {
    fn new(bytes: usize) -> Self {
        Self {
            budget: bytes.saturating_mul(32).saturating_add(1000),
            stacks: vec![Vec::new()],
            by_content: BTreeMap::from([(Vec::new(), StackId::EMPTY)]),
            by_identity: BTreeMap::new(),
        }
    }

    fn charge(&mut self, cost: usize) -> Read<()> {
        match self.budget.checked_sub(cost) {
            Some(left) => {
                self.budget = left;
                Ok(())
            }
            None => shape("unfolds into far more than its bytes"),
        }
    }

    fn copy(&mut self, node: Node<'_>) -> Read<String> {
        let text = node.text().unwrap_or_default();
        self.charge(text.len())?;
        Ok(text.to_owned())
    }

    fn dict<'a>(
        &mut self,
        node: Node<'a>,
        each: &mut dyn FnMut(&mut Self, &'a str, Node<'a>) -> Read<()>,
    ) -> Read<()> {
        let visited = node.entries(&mut |key, value| {
            self.charge(1)?;
            each(self, key, value).map_err(|error| inside(error, key))
        });
        visited.unwrap_or_else(|| shape("should be a dictionary"))
    }

    fn list<'a, T>(
        &mut self,
        node: Node<'a>,
        mut each: impl FnMut(&mut Self, Node<'a>) -> Read<T>,
    ) -> Read<Vec<T>> {
        let Some(length) = node.len() else { return shape("should be a list") };
        let mut all = Vec::new();
        for index in 0..length {
            self.charge(1)?;
            let Some(item) = node.at(index) else { break };
            all.push(each(self, item).map_err(|error| inside(error, &format!("[{index}]")))?);
        }
        Ok(all)
    }

    fn snapshot(mut self, root: Node<'_>) -> Read<Snapshot> {
        let (mut segments, mut traces) = (None, None);
        let mut snapshot = Snapshot::default();
        self.dict(root, &mut |reader, key, value| {
            match key {
                "segments" => segments = Some(reader.list(value, Self::segment)?),
                "device_traces" => {
                    traces = Some(reader.list(value, |reader, t| reader.list(t, Self::entry))?);
                }
                "allocator_settings" => {
                    snapshot.allocator_settings = Some(reader.value(value, 32)?);
                }
                "external_annotations" => {
                    snapshot.external_annotations = Some(reader.value(value, 32)?);
                }
                _ => {}
            }
            Ok(())
        })?;
        match segments {
            Some(segments) => snapshot.segments = segments,
            None => return shape("has no `segments`"),
        }
        snapshot.device_traces = traces.unwrap_or_default();
        snapshot.stacks = self.stacks;
        Ok(snapshot)
    }

    fn segment(&mut self, node: Node<'_>) -> Read<Segment> {
        let mut s = Segment {
            device: 0,
            address: 0,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: StreamId(0),
            class: SizeClass::Large,
            pool: PoolId::DEFAULT,
            is_expandable: false,
            stack: StackId::EMPTY,
            blocks: Vec::new(),
        };
        let (mut address, mut total) = (None, None);
        self.dict(node, &mut |reader, key, value| {
            match key {
                "device" => s.device = u32_of(value)?,
                "address" => address = Some(u64_of(value)?),
                "total_size" => total = Some(u64_of(value)?),
                "allocated_size" => s.allocated_size = u64_of(value)?,
                "active_size" => s.active_size = u64_of(value)?,
                "requested_size" => s.requested_size = u64_of(value)?,
                "stream" => s.stream = StreamId(u64_of(value)?),
                "segment_type" => s.class = class_of(value)?,
                "segment_pool_id" => s.pool = pool_of(value)?,
                "is_expandable" => {
                    s.is_expandable =
                        value.bool().map_or_else(|| shape("should be true or false"), Ok)?;
                }
                "frames" => s.stack = reader.stack(value)?,
                "blocks" => s.blocks = reader.list(value, Self::block)?,
                _ => {}
            }
            Ok(())
        })?;
        s.address = needed(address, "address")?;
        s.total_size = needed(total, "total_size")?;
        // Before torch 2.1 blocks have no address of their own.
        let mut next = s.address;
        for block in &mut s.blocks {
            if block.address == NO_ADDRESS {
                block.address = next;
            }
            next = block.address.saturating_add(block.size);
        }
        Ok(s)
    }

    fn block(&mut self, node: Node<'_>) -> Read<Block> {
        let (mut size, mut state, mut requested_size) = (None, None, 0);
        let (mut address, mut stack) = (NO_ADDRESS, StackId::EMPTY);
        self.dict(node, &mut |reader, key, value| {
            match key {
                "address" => address = u64_of(value)?,
                "size" => size = Some(u64_of(value)?),
                "requested_size" => requested_size = u64_of(value)?,
                "state" => state = Some(state_of(value)?),
                "frames" => stack = reader.stack(value)?,
                _ => {}
            }
            Ok(())
        })?;
        let (size, state) = (needed(size, "size")?, needed(state, "state")?);
        Ok(Block { address, size, requested_size, state, stack })
    }

    fn entry(&mut self, node: Node<'_>) -> Read<Entry> {
        let (mut action, mut address, mut free, mut size) = (None, 0, None, 0);
        let (mut stream, mut time_us, mut stack) = (0, 0, StackId::EMPTY);
        let mut user_metadata = String::new();
        self.dict(node, &mut |reader, key, value| {
            match key {
                "action" => action = Some(reader.action(value)?),
                "addr" => address = u64_of(value)?,
                "device_free" => free = Some(u64_of(value)?),
                "size" => size = u64_of(value)?,
                "stream" => stream = u64_of(value)?,
                "time_us" => time_us = u64_of(value)?,
                "frames" => stack = reader.stack(value)?,
                "user_metadata" => user_metadata = reader.copy(value)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(Entry {
            action: needed(action, "action")?,
            address: free.unwrap_or(address),
            size,
            stream: StreamId(stream),
            time_us,
            stack,
            user_metadata,
        })
    }

    fn action(&mut self, node: Node<'_>) -> Read<EntryAction> {
        let word = word_of(node)?;
        match Action::ALL.into_iter().find(|action| action.name() == word) {
            Some(action) => Ok(EntryAction::Allocator(action)),
            None => Ok(EntryAction::Other(self.copy(node)?)),
        }
    }

    fn stack(&mut self, node: Node<'_>) -> Read<StackId> {
        if node.is_null() {
            return Ok(StackId::EMPTY);
        }
        if let Some(known) = node.identity().and_then(|node| self.by_identity.get(&node)) {
            return Ok(*known);
        }
        let frames = self.list(node, Self::frame)?;
        let next = StackId(self.stacks.len() as u32);
        let id = match self.by_content.get(&frames) {
            Some(id) => *id,
            None => {
                self.stacks.push(frames.clone());
                self.by_content.insert(frames, next);
                next
            }
        };
        if let Some(node) = node.identity() {
            self.by_identity.insert(node, id);
        }
        Ok(id)
    }

    fn frame(&mut self, node: Node<'_>) -> Read<Frame> {
        let mut frame = Frame { filename: String::new(), line: 0, name: String::new() };
        self.dict(node, &mut |reader, key, value| {
            match key {
                "filename" => frame.filename = reader.copy(value)?,
                "name" => frame.name = reader.copy(value)?,
                "line" => frame.line = u64_of(value)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(frame)
    }

    fn value(&mut self, node: Node<'_>, depth: u32) -> Read<Value> {
        let Some(depth) = depth.checked_sub(1) else { return shape("is nested too deep") };
        if node.text().is_some() {
            return Ok(Value::Str(self.copy(node)?));
        }
        if let Some(int) = node.int() {
            return i64::try_from(int)
                .map_or_else(|_| Ok(Value::Float(int as f64)), |i| Ok(Value::Int(i)));
        }
        if let Some(truth) = node.bool() {
            return Ok(Value::Bool(truth));
        }
        if node.len().is_some() {
            return Ok(Value::List(self.list(node, |reader, item| reader.value(item, depth))?));
        }
        match node {
            Node::Json(serde_json::Value::Number(n)) => {
                Ok(n.as_f64().map_or(Value::Null, Value::Float))
            }
            Node::Pickle(_, Item::Float(f)) => Ok(Value::Float(f)),
            Node::Json(serde_json::Value::Object(_)) | Node::Pickle(_, Item::Dict(_)) => {
                let mut entries = Vec::new();
                self.dict(node, &mut |reader, key, value| {
                    reader.charge(key.len())?;
                    entries.push((key.to_owned(), reader.value(value, depth)?));
                    Ok(())
                })?;
                Ok(Value::Dict(entries))
            }
            _ => Ok(Value::Null),
        }
    }
}

/// Marks a block without an address; no block can begin at the last byte.
const NO_ADDRESS: u64 = u64::MAX;

fn needed<T>(value: Option<T>, key: &str) -> Read<T> {
    value.map_or_else(|| shape(format!("has no `{key}`")), Ok)
}

fn u64_of(node: Node<'_>) -> Read<u64> {
    let value = node.int().and_then(|int| u64::try_from(int).ok());
    value.map_or_else(|| shape("should be a whole number from 0 to 2^64 - 1"), Ok)
}

fn u32_of(node: Node<'_>) -> Read<u32> {
    let value = u32::try_from(u64_of(node)?);
    value.or_else(|_| shape("should be a whole number below 2^32"))
}

fn word_of(node: Node<'_>) -> Read<&str> {
    node.text().map_or_else(|| shape("should be a text"), Ok)
}

fn clip(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

fn class_of(node: Node<'_>) -> Read<SizeClass> {
    match word_of(node)? {
        "small" => Ok(SizeClass::Small),
        "large" => Ok(SizeClass::Large),
        other => shape(format!("is `{}`; allowed: `small`, `large`", clip(other))),
    }
}

fn state_of(node: Node<'_>) -> Read<BlockState> {
    match word_of(node)? {
        "active_allocated" => Ok(BlockState::ActiveAllocated),
        "active_awaiting_free" | "active_pending_free" => Ok(BlockState::ActiveAwaitingFree),
        "inactive" => Ok(BlockState::Inactive),
        other => shape(format!(
            "is `{}`; allowed: `active_allocated`, `active_awaiting_free`, `inactive`",
            clip(other)
        )),
    }
}

fn pool_of(node: Node<'_>) -> Read<PoolId> {
    match (node.at(0), node.at(1), node.len()) {
        (Some(a), Some(b), Some(2)) => Ok(PoolId(u64_of(a)?, u64_of(b)?)),
        _ => shape("should be a pair of whole numbers"),
    }
}
