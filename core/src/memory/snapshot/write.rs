//! A snapshot as bytes.

use super::{
    Block, Entry, EntryAction, Segment, Snapshot, StackId, Value,
    emit::{Emit, Json, Pickle},
};
use crate::memory::caching_allocator::Action;

/// Protocol of a pickle; `memory_viz` reads these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum PickleProtocol {
    /// Read by Python 2.3 and later.
    V2,
    /// Read by Python 3.0 and later.
    V3,
    /// Read by Python 3.4 and later.
    #[default]
    V4,
}

/// The snapshot as JSON; newer `memory_viz` pages open it.
///
/// ```
/// use plimsoll_core::memory::snapshot::{Snapshot, from_json, to_json};
/// let text = to_json(&Snapshot::default());
/// assert_eq!(text, r#"{"segments":[],"device_traces":[]}"#);
/// assert!(from_json(text.as_bytes()).is_ok());
/// ```
#[must_use]
pub fn to_json(snapshot: &Snapshot) -> String {
    let mut json = Json::default();
    emit(snapshot, &mut json);
    json.out
}

/// The snapshot as a pickle; every `memory_viz` page opens it.
#[must_use]
pub fn to_pickle(snapshot: &Snapshot, protocol: PickleProtocol) -> Vec<u8> {
    let mut pickle = Pickle::new(match protocol {
        PickleProtocol::V2 => 2,
        PickleProtocol::V3 => 3,
        PickleProtocol::V4 => 4,
    });
    emit(snapshot, &mut pickle);
    pickle.finish()
}

fn emit(snapshot: &Snapshot, to: &mut dyn Emit) {
    to.begin_dict();
    to.key("segments");
    to.begin_list();
    for segment in &snapshot.segments {
        emit_segment(snapshot, segment, to);
    }
    to.end_list();
    to.key("device_traces");
    to.begin_list();
    for trace in &snapshot.device_traces {
        to.begin_list();
        for entry in trace {
            emit_entry(snapshot, entry, to);
        }
        to.end_list();
    }
    to.end_list();
    for (key, value) in [
        ("allocator_settings", &snapshot.allocator_settings),
        ("external_annotations", &snapshot.external_annotations),
    ] {
        if let Some(value) = value {
            to.key(key);
            emit_value(value, to);
        }
    }
    to.end_dict();
}

fn field(to: &mut dyn Emit, key: &str, value: u64) {
    to.key(key);
    to.int(value.into());
}

fn word(to: &mut dyn Emit, key: &str, value: &str) {
    to.key(key);
    to.text(value);
}

fn emit_segment(snapshot: &Snapshot, segment: &Segment, to: &mut dyn Emit) {
    to.begin_dict();
    field(to, "device", segment.device.into());
    field(to, "address", segment.address);
    field(to, "total_size", segment.total_size);
    field(to, "allocated_size", segment.allocated_size);
    field(to, "active_size", segment.active_size);
    field(to, "requested_size", segment.requested_size);
    field(to, "stream", segment.stream.0);
    word(to, "segment_type", segment.class.name());
    to.key("segment_pool_id");
    to.pair(segment.pool.0, segment.pool.1);
    to.key("is_expandable");
    to.bool(segment.is_expandable);
    emit_frames(snapshot, segment.stack, to);
    to.key("blocks");
    to.begin_list();
    for block in &segment.blocks {
        emit_block(snapshot, block, to);
    }
    to.end_list();
    to.end_dict();
}

fn emit_block(snapshot: &Snapshot, block: &Block, to: &mut dyn Emit) {
    to.begin_dict();
    field(to, "address", block.address);
    field(to, "size", block.size);
    field(to, "requested_size", block.requested_size);
    word(to, "state", block.state.name());
    emit_frames(snapshot, block.stack, to);
    to.end_dict();
}

fn emit_entry(snapshot: &Snapshot, entry: &Entry, to: &mut dyn Emit) {
    to.begin_dict();
    word(to, "action", entry.action.name());
    let oom = entry.action == EntryAction::Allocator(Action::Oom);
    field(to, if oom { "device_free" } else { "addr" }, entry.address);
    field(to, "size", entry.size);
    field(to, "stream", entry.stream.0);
    field(to, "time_us", entry.time_us);
    word(to, "compile_context", "N/A");
    word(to, "user_metadata", &entry.user_metadata);
    emit_frames(snapshot, entry.stack, to);
    to.end_dict();
}

fn emit_frames(snapshot: &Snapshot, stack: StackId, to: &mut dyn Emit) {
    to.key("frames");
    to.begin_list();
    for frame in snapshot.frames(stack) {
        to.begin_dict();
        word(to, "filename", &frame.filename);
        field(to, "line", frame.line);
        word(to, "name", &frame.name);
        to.end_dict();
    }
    to.end_list();
}

fn emit_value(value: &Value, to: &mut dyn Emit) {
    match value {
        Value::Null => to.null(),
        Value::Bool(b) => to.bool(*b),
        Value::Int(i) => to.int((*i).into()),
        Value::Float(f) => to.float(*f),
        Value::Str(s) => to.text(s),
        Value::List(items) => {
            to.begin_list();
            for item in items {
                emit_value(item, to);
            }
            to.end_list();
        }
        Value::Dict(entries) => {
            to.begin_dict();
            for (key, value) in entries {
                to.key(key);
                emit_value(value, to);
            }
            to.end_dict();
        }
    }
}
