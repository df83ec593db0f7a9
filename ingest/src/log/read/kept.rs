//! The events that are kept: the first and the last ones, and each refusal of an allocator once.

use std::collections::VecDeque;

use super::torch;
use crate::log::{Event, Kind, Log, TorchOom};

/// Lines within which an equal text of the allocator is the same refusal told again.
const TOLD_AGAIN: u64 = 400;

/// Events among which it is looked for.
const RECENT: usize = 16;

/// Lines after which the allocator's text does not go on.
const WRAPPED: u64 = 6;

/// Bytes of a text that goes on.
const WRAPPED_TEXT: usize = 4096;

/// The kept events.
#[derive(Default)]
pub(super) struct Kept {
    first: Vec<Event>,
    /// The last half, once the first is full.
    last: VecDeque<Event>,
    left_out: u64,
    /// The allocator's last text, as long as its end may stand on the next line.
    wrapped: Option<Wrapped>,
}

/// A text that may go on.
struct Wrapped {
    text: String,
    line: u64,
}

impl Kept {
    /// Whether the next line may belong to the last event.
    pub(super) fn expects_more(&self) -> bool {
        self.wrapped.is_some()
    }

    /// Keeps an event that was read from `text`, unless it is a refusal told again. The first half of the room is for
    /// the first events, the other half for the last.
    pub(super) fn push(&mut self, event: Event, text: &str) {
        self.wrapped = None;
        if let Kind::TorchOom(oom) = &event.kind {
            if self.told_before(&event, oom) {
                return;
            }
            if oom.reserved_unallocated.is_none() && text.len() < WRAPPED_TEXT {
                self.wrapped = Some(Wrapped { text: text.to_owned(), line: event.line });
            }
        }
        if self.first.len() < Log::EVENTS / 2 {
            self.first.push(event);
            return;
        }
        if self.last.len() == Log::EVENTS / 2 {
            self.last.pop_front();
            self.left_out += 1;
        }
        self.last.push_back(event);
    }

    /// Whether an allocator's text was told a few lines above: engines wrap it into a second exception and print
    /// both. The frames of the first are the deeper ones.
    fn told_before(&mut self, event: &Event, oom: &TorchOom) -> bool {
        let recent = self.last.iter_mut().rev().chain(self.first.iter_mut().rev());
        for old in recent.take(RECENT) {
            let far = old.line + TOLD_AGAIN < event.line;
            if far || old.file != event.file || old.start != event.start {
                return false;
            }
            let Kind::TorchOom(told) = &mut old.kind else { continue };
            if old.rank == event.rank && same_figures(told, oom) {
                if told.frames.len() < oom.frames.len() {
                    told.frames.clone_from(&oom.frames);
                }
                return true;
            }
        }
        false
    }

    /// Whether the line is the rest of the allocator's text above it; then the event has its figures too.
    pub(super) fn goes_on(&mut self, text: &str, line: u64) -> bool {
        let Some(wrapped) = self.wrapped.take().filter(|wrapped| wrapped.line + WRAPPED >= line)
        else {
            return false;
        };
        let Some((text, mut oom)) = torch::joined(&wrapped.text, text.trim()) else {
            self.wrapped = Some(wrapped);
            return false;
        };
        let event = self.last.back_mut().or_else(|| self.first.last_mut());
        if let Some(Event { kind: Kind::TorchOom(old), .. }) = event {
            oom.frames = std::mem::take(&mut old.frames);
            *old = oom;
        }
        if text.len() < WRAPPED_TEXT {
            self.wrapped = Some(Wrapped { text, line: wrapped.line });
        }
        true
    }

    /// The events in order, and how many were left out between the halves.
    pub(super) fn finish(mut self) -> (Vec<Event>, u64) {
        self.first.extend(self.last);
        (self.first, self.left_out)
    }
}

fn same_figures(old: &TorchOom, new: &TorchOom) -> bool {
    old.form == new.form
        && old.requested == new.requested
        && old.device == new.device
        && old.capacity == new.capacity
        && old.free == new.free
        && old.allocated == new.allocated
        && old.this_process == new.this_process
}
