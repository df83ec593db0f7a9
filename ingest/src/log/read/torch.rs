//! PyTorch's out-of-memory texts in every form and dialect. Source of the texts: PyTorch
//! `CUDACachingAllocator`, `MPSAllocator`, torch_npu's `NPUCachingAllocator`, the XPU allocator, vLLM's
//! `cumem` extension.

use super::fields::{Gb, after, amount, amount_after, uint, uint_after};
use crate::log::{Amount, TorchOom, TorchOomForm};

/// Words of which every such line holds one.
pub(super) const WORDS: &[&str] = &["out of memory", "OutOfMemoryError", "trying to allocate"];

/// Where the figures begin.
const ASKED: &str = "Tried to allocate ";

/// Dialects by the word before `out of memory`.
const DIALECTS: [&str; 6] = ["CUDA", "HIP", "NPU", "XPU", "MPS", "MUSA"];

/// Every refusal that the line tells of, in its order; a text quoted twice running is one.
pub(super) fn read(line: &str, into: &mut Vec<TorchOom>) {
    let mut starts = line.match_indices(ASKED).map(|(at, _)| at).peekable();
    while let Some(at) = starts.next() {
        let end = starts.peek().copied().unwrap_or(line.len());
        let before = line.get(..at).unwrap_or("");
        let text = line.get(at + ASKED.len()..end).unwrap_or("");
        let oom = told(before, text);
        if into.last() != Some(&oom) {
            into.push(oom);
        }
    }
    if into.is_empty() {
        into.extend(counted(line).or_else(|| bare(line)));
    }
}

fn empty(form: TorchOomForm, dialect: &str) -> TorchOom {
    TorchOom {
        form,
        dialect: dialect.into(),
        requested: None,
        device: None,
        capacity: None,
        free: None,
        this_process: None,
        processes: Vec::new(),
        allocated: None,
        private_pools: None,
        reserved_unallocated: None,
        frames: Vec::new(),
    }
}

fn told(before: &str, text: &str) -> TorchOom {
    let mut oom = if text.contains(" already allocated") || text.contains(" total capacity;") {
        brackets(text)
    } else {
        sentences(text)
    };
    oom.dialect = dialect(before).into();
    oom.requested = amount(text, Gb::Binary);
    if &*oom.dialect == "MPS" {
        oom.allocated = amount_after(before, "MPS allocated: ", Gb::Binary);
        oom.capacity = amount_after(before, "max allowed: ", Gb::Binary);
    }
    if oom.requested.is_none() && oom.capacity.is_none() && oom.allocated.is_none() {
        oom.form = TorchOomForm::Bare;
    }
    oom
}

/// The word before the last `out of memory`; CUDA where none stands.
fn dialect(before: &str) -> &'static str {
    let head = before.rfind("out of memory").and_then(|at| before.get(..at)).unwrap_or(before);
    let named = DIALECTS.into_iter().filter_map(|name| Some((head.rfind(name)?, name))).max();
    named.map_or("CUDA", |(_, name)| name)
}

/// `GPU 0 has a total capacity of … of which … is free. …`; any sentence may be missing.
fn sentences(text: &str) -> TorchOom {
    let mut oom = empty(TorchOomForm::Sentences, "");
    oom.device = ["GPU ", "NPU ", "XPU "].iter().find_map(|key| device(text, key));
    oom.capacity = amount_after(text, " total capacity of ", Gb::Binary)
        .or_else(|| amount_after(text, " total capacty of ", Gb::Binary));
    oom.free = amount_after(text, "of which ", Gb::Binary);
    oom.allocated = amount_after(text, "Of the allocated memory ", Gb::Binary);
    oom.private_pools = amount_after(text, " PyTorch, with ", Gb::Binary);
    oom.reserved_unallocated = before_key(text, " is reserved by PyTorch but unallocated");
    oom.this_process = amount_after(text, "this process has ", Gb::Binary);
    for (at, _) in text.match_indices(" memory in use") {
        let sentence = text.get(..at).unwrap_or("");
        let start = sentence.rfind(" has ").filter(|_| !ends_own(sentence));
        if let Some(held) = start.and_then(|start| amount(sentence.get(start + 5..)?, Gb::Binary)) {
            oom.processes.push(held);
        }
    }
    // One process, and no sentence about "this process": in a container the driver names its number only.
    oom
}

/// Whether the sentence that ends here is the one about this process.
fn ends_own(sentence: &str) -> bool {
    let own = sentence.rfind("this process has ");
    own.is_some() && own >= sentence.rfind("Process ")
}

fn device(text: &str, key: &str) -> Option<u32> {
    u32::try_from(uint_after(text, key)?).ok()
}

/// `(GPU 0; 23.69 GiB total capacity; 20.10 GiB already allocated; 97.16 MiB free; 20.42 GiB reserved in total …)`.
fn brackets(text: &str) -> TorchOom {
    let mut oom = empty(TorchOomForm::Brackets, "");
    let inside = after(text, "(").unwrap_or(text);
    oom.device = inside.find(|c: char| c.is_ascii_digit()).and_then(|at| {
        let head = inside.get(..at)?;
        (head.len() <= 4).then(|| u32::try_from(uint(inside.get(at..)?)?).ok()).flatten()
    });
    for part in inside.split([';', ')']) {
        let figure = || amount(part, Gb::Binary);
        if part.contains("total capacity") {
            oom.capacity = figure();
        } else if part.contains("already allocated") {
            oom.allocated = figure();
        } else if part.contains("reserved") {
            oom.reserved_unallocated =
                figure().zip(oom.allocated).map(|(reserved, allocated)| reserved - allocated);
        } else if part.trim_end().ends_with("free") {
            oom.free = figure();
        }
    }
    oom
}

/// The amount whose text ends where `key` begins.
fn before_key(text: &str, key: &str) -> Option<Amount> {
    let head = text.get(..text.find(key)?)?;
    let unit = head.rfind(' ')?;
    let start = head.get(..unit)?.rfind(' ').map_or(0, |at| at + 1);
    amount(head.get(start..)?, Gb::Binary)
}

/// `memory allocation failed … trying to allocate N bytes (free: N, total: N)`.
fn counted(line: &str) -> Option<TorchOom> {
    let text = after(line, "rying to allocate ")?;
    let bytes = |key| Some(Amount::exact(i64::try_from(uint_after(text, key)?).ok()?));
    let mut oom = empty(TorchOomForm::Counted, dialect(line));
    oom.requested = amount(text, Gb::Binary);
    oom.free = bytes("free: ");
    oom.capacity = bytes("total: ");
    oom.requested?;
    Some(oom)
}

/// `torch.OutOfMemoryError`, `CUDA out of memory.` with nothing behind it.
fn bare(line: &str) -> Option<TorchOom> {
    let named = after(line, "OutOfMemoryError").is_some_and(|rest| {
        rest.is_empty() || rest.starts_with([':', '(', '\'', '`', ' ', ')', '.'])
    });
    let word = DIALECTS.into_iter().find_map(|name| {
        let rest = line
            .match_indices(name)
            .find_map(|(at, _)| line.get(at + name.len()..)?.strip_prefix(" out of memory"))?;
        let alone = rest.is_empty() || rest.starts_with(['.', '!', '\'', '"', ')', ',']);
        alone.then_some(name)
    });
    if !named && word.is_none() {
        return None;
    }
    Some(empty(TorchOomForm::Bare, word.unwrap_or_else(|| dialect(line))))
}
