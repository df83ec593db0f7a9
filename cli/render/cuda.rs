//! The pieces of `doctor --cuda`, for people and for machines.

use super::text::wrap;
use crate::{
    commands::doctor::cuda::{Checkup, Facts, Piece, State},
    output::{Output, Tone},
};
use plimsoll_backend_cuda::{
    CudaDevice, Partition,
    libraries::{DeviceCode, device_code},
};
use plimsoll_core::device::MemoryKind;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Where the text of a piece begins.
const INDENT: usize = 45;

/// A line a piece; how to get what is not there stands below it.
pub fn human(checkup: &Checkup, output: &Output) -> String {
    let tone = if checkup.serves { Tone::Good } else { Tone::Bad };
    let headline = format!("cuda     {}", output.paint(tone, &checkup.headline));
    let mut out = format!("\n{}\n", wrap(&headline, output.width(), 9));
    let _ = writeln!(out, "  state    {:<16}  {:<16}  what", "piece", "needed for");
    for piece in &checkup.pieces {
        let _ = writeln!(out, "{}", wrap(&line(piece, output), output.width(), INDENT));
        for way in &piece.get {
            // A line to type is not wrapped.
            let text = match way.split_once("export ") {
                Some((before, typed)) => {
                    format!("{:11}get: {}\n{:16}export {typed}", "", before.trim_end(), "")
                }
                None => wrap(&format!("{:11}get: {way}", ""), output.width(), 16),
            };
            let _ = writeln!(out, "{text}");
        }
    }
    out
}

fn line(piece: &Piece, output: &Output) -> String {
    let tone = match piece.state {
        State::Found => Tone::Good,
        State::Unfit => Tone::Bad,
        State::Missing => Tone::Close,
    };
    let word = output.paint(tone, &format!("{:<7}", piece.state.word()));
    let (name, need, says) = (&piece.name, piece.need.words(), &piece.says);
    let path = piece.path.as_ref().map(|path| format!(", {}", path.display()));
    let rest = match piece.state {
        State::Found => path.unwrap_or_default(),
        State::Unfit | State::Missing => format!("{}; {}", path.unwrap_or_default(), piece.purpose),
    };
    format!("  {word}  {name:<16}  {need:<16}  {says}{rest}")
}

/// All keys are always there.
pub fn json(facts: &Facts, checkup: &Checkup) -> Value {
    let devices = facts.devices.iter().flatten().zip(&facts.virtual_memory);
    json!({
        "serves": checkup.serves,
        "headline": checkup.headline,
        "pieces": checkup.pieces.iter().map(piece).collect::<Value>(),
        "devices": devices.map(|(of, pages)| device(of, *pages)).collect::<Value>(),
        "holders": facts.holders.iter().flatten().map(|holder| json!({
            "index": holder.index,
            "pid": holder.pid,
            "used_mib": holder.used_mib,
        })).collect::<Value>(),
    })
}

fn piece(piece: &Piece) -> Value {
    json!({
        "name": piece.name,
        "state": piece.state.word(),
        "says": piece.says,
        "path": piece.path.as_ref().map(|path| path.display().to_string()),
        "release": piece.release,
        "needed_for": piece.need.word(),
        "purpose": piece.purpose,
        "get": piece.get,
    })
}

fn device(device: &CudaDevice, pages: Option<bool>) -> Value {
    let code = match device_code(device.compute_capability) {
        DeviceCode::Native(arch) => Some(arch),
        DeviceCode::Translated => Some("ptx"),
        DeviceCode::None => None,
    };
    let slice = match &device.partition {
        Partition::Whole => None,
        Partition::Mig { profile } => Some(profile),
    };
    json!({
        "ordinal": device.ordinal,
        "name": device.name,
        "total_bytes": device.total.0,
        "free_bytes": device.free.as_ref().ok().map(|b| b.0),
        "compute_capability": device.compute_capability.to_string(),
        "code": code,
        "mig_profile": slice,
        "integrated": device.memory == MemoryKind::Integrated,
        "virtual_memory": pages,
    })
}
