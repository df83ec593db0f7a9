//! Python tracebacks, one open for each rank: frames are gathered until the exception that ends them.

use std::collections::{BTreeMap, VecDeque};

use super::redact::Redact;
use crate::log::{Frame, Rank};

/// Words of which a line that begins or continues a traceback, or is an exception, holds one.
pub(super) const WORDS: &[&str] = &[
    "Traceback (most",
    "File \"",
    "Error:",
    "Exception:",
    "OutOfResources:",
    "During handling of the above",
    "The above exception was the direct",
];

/// Frames that are kept: the innermost.
const FRAMES: usize = 24;

/// Tracebacks that are open at once.
const OPEN: usize = 256;

/// Bytes of a source line that are kept.
const CODE: usize = 160;

/// Lines at the margin that a traceback outlives: other processes write between its lines.
const FOREIGN: u8 = 16;

/// Lines of any rank after which nothing more is expected of the open ones.
const IDLE: u32 = 4096;

/// What a line is to the tracebacks.
pub(super) enum Part {
    /// Nothing.
    Alien,
    /// It was taken in.
    Taken,
    /// It is the exception that ends the traceback of this rank, with its frames.
    Ended(Rank, Vec<Frame>),
}

#[derive(Default)]
struct Trace {
    frames: VecDeque<Frame>,
    wants_code: bool,
    foreign: u8,
}

/// The open tracebacks.
#[derive(Default)]
pub(super) struct Tracebacks {
    open: BTreeMap<Rank, Trace>,
    /// Whose began or went on last: untagged lines are its.
    last: Option<Rank>,
    /// Whose exception led to another, whose traceback is still to come.
    chained: Option<Rank>,
    /// Lines since one was taken in.
    idle: u32,
}

impl Tracebacks {
    /// Whether a line without telling words can matter.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes a line of `rank`; an untagged one may belong to the traceback that was written last.
    pub(super) fn take(&mut self, rank: Rank, tagged: bool, text: &str, redact: Redact) -> Part {
        let part = self.sort(rank, tagged, text, redact);
        self.idle = if matches!(part, Part::Alien) { self.idle + 1 } else { 0 };
        if self.idle > IDLE {
            self.open.clear();
            self.idle = 0;
        }
        part
    }

    fn sort(&mut self, rank: Rank, tagged: bool, text: &str, redact: Redact) -> Part {
        let rank = match self.last {
            Some(last) if !tagged && self.open.contains_key(&last) => last,
            _ => rank,
        };
        if text.contains("Traceback (most recent call last)") {
            let chained = self.chained.take().filter(|_| !tagged);
            self.begin(chained.unwrap_or(rank));
            return Part::Taken;
        }
        if text.starts_with("During handling of the above")
            || text.starts_with("The above exception was the direct")
        {
            self.chained = if tagged { Some(rank) } else { self.last };
            return Part::Taken;
        }
        let indented = text.starts_with([' ', '\t']);
        if indented && let Some(frame) = frame(text, redact) {
            self.frame(rank, frame);
            return Part::Taken;
        }
        let Some(trace) = self.open.get_mut(&rank) else { return Part::Alien };
        self.last = Some(rank);
        if indented || text.is_empty() {
            if indented
                && std::mem::take(&mut trace.wants_code)
                && let Some(frame) = trace.frames.back_mut()
            {
                frame.code = Some(redact.cut(text.trim(), CODE));
            }
            return Part::Taken;
        }
        if class(text).is_some() {
            let frames =
                self.open.remove(&rank).map(|trace| trace.frames.into()).unwrap_or_default();
            return Part::Ended(rank, frames);
        }
        trace.foreign += 1;
        if trace.foreign > FOREIGN {
            self.open.remove(&rank);
        }
        Part::Alien
    }

    /// The tracebacks that no exception ended, with their frames.
    pub(super) fn unfinished(&mut self) -> Vec<(Rank, Vec<Frame>)> {
        let open = std::mem::take(&mut self.open);
        open.into_iter().map(|(rank, trace)| (rank, trace.frames.into())).collect()
    }

    fn begin(&mut self, rank: Rank) {
        if self.open.len() < OPEN || self.open.contains_key(&rank) {
            self.open.insert(rank, Trace::default());
            self.last = Some(rank);
        }
    }

    fn frame(&mut self, rank: Rank, frame: Frame) {
        if !self.open.contains_key(&rank) {
            self.begin(rank);
        }
        let Some(trace) = self.open.get_mut(&rank) else { return };
        self.last = Some(rank);
        if trace.frames.len() == FRAMES {
            trace.frames.pop_front();
        }
        trace.frames.push_back(frame);
        trace.wants_code = true;
        trace.foreign = 0;
    }
}

/// `  File "/…/sglang/srt/x.py", line 12, in f`; line and function may be cut off.
fn frame(text: &str, redact: Redact) -> Option<Frame> {
    let rest = text.trim_start().strip_prefix("File \"")?;
    let (file, rest) = rest.split_once('"')?;
    let line = rest.strip_prefix(", line ").and_then(super::fields::uint);
    let function = rest.split_once(", in ").map(|(_, name)| name.trim());
    Some(Frame {
        file: redact.path(file),
        line: line.and_then(|line| u32::try_from(line).ok()),
        function: function.filter(|name| !name.is_empty()).map(|name| redact.cut(name, CODE)),
        code: None,
    })
}

/// The class and the message of an exception line: `torch.OutOfMemoryError: CUDA …`, `KeyboardInterrupt`.
pub(super) fn class(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || b"._".contains(b)).count();
    let (class, rest) = text.split_at(end);
    let name = class.rsplit('.').next()?;
    let known = [
        "Error",
        "Exception",
        "Interrupt",
        "Exit",
        "Timeout",
        "Killed",
        "Refused",
        "Empty",
        "Resources",
    ];
    let named = name.starts_with(|c: char| c.is_ascii_uppercase())
        && known.iter().any(|end| name.ends_with(end));
    if !named {
        return None;
    }
    match rest.strip_prefix(':') {
        Some(message) => Some((class, message.trim())),
        None => rest.trim().is_empty().then_some((class, "")),
    }
}
