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
    oom.free = amount_after(text, "of which ", Gb::Binary).or_else(|| before_key(text, " is free"));
    oom.allocated = amount_after(text, "Of the allocated memory ", Gb::Binary)
        .or_else(|| before_key(text, " is allocated by PyTorch"))
        .or_else(|| before_key(text, " allocated by PyTorch"));
    oom.private_pools = amount_after(text, " PyTorch, with ", Gb::Binary)
        .or_else(|| before_key(text, " in private pools"));
    oom.reserved_unallocated = before_key(text, " is reserved by PyTorch but unallocated")
        .or_else(|| before_key(text, " reserved but unallocated"));
    oom.this_process = amount_after(text, "this process has ", Gb::Binary);
    for (at, _) in text.match_indices(" memory in use") {
        let sentence = text.get(..at).unwrap_or("");
        let start = sentence.rfind(" has ").filter(|_| !ends_own(sentence));
        if let Some(held) = start.and_then(|start| amount(sentence.get(start + 5..)?, Gb::Binary)) {
            oom.processes.push(held);
        }
    }
    oom
}

/// Figures that a text printed.
pub(super) fn figures(oom: &TorchOom) -> usize {
    let single = [
        oom.requested,
        oom.capacity,
        oom.free,
        oom.this_process,
        oom.allocated,
        oom.private_pools,
        oom.reserved_unallocated,
    ];
    single.iter().flatten().count() + oom.processes.len()
}

/// A text whose end stands on the next line (pasted from a terminal that wraps), put together: with a blank where
/// the line was broken at one, without where a word was broken. `None` when the next line adds nothing.
pub(super) fn joined(text: &str, next: &str) -> Option<(String, TorchOom)> {
    if next.contains(ASKED) || next.contains("out of memory") {
        return None;
    }
    let old = one(text)?;
    [" ", ""]
        .into_iter()
        .filter_map(|gap| {
            let whole = format!("{text}{gap}{next}");
            let oom = one(&whole)?;
            (figures(&oom) > figures(&old)).then_some((whole, oom))
        })
        .max_by_key(|(_, oom)| figures(oom))
}

fn one(text: &str) -> Option<TorchOom> {
    let mut found = Vec::new();
    read(text, &mut found);
    found.pop().filter(|_| found.is_empty())
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
        } else if part.contains("reserved in total") {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> TorchOom {
        one(text).expect("one refusal")
    }

    fn gib(value: f64) -> Option<Amount> {
        Some(Amount::gib(value, 2))
    }

    #[test]
    fn sentences_with_other_processes() {
        let oom = only(
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 5 has a total capacity of \
             63.98 GiB of which 1.25 GiB is free. Process 11 has 2.00 GiB memory in use. Including non-PyTorch \
             memory, this process has 60.25 GiB memory in use. Process 12 has 0.48 GiB memory in use. 62.00 GiB \
             allowed; Of the allocated memory 55.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private \
             pools (e.g., CUDA Graphs), and 3.00 GiB is reserved by PyTorch but unallocated. If reserved",
        );
        assert_eq!(
            (&*oom.dialect, oom.device, oom.form),
            ("HIP", Some(5), TorchOomForm::Sentences)
        );
        assert_eq!((oom.requested, oom.capacity, oom.free), (gib(1.5), gib(63.98), gib(1.25)));
        assert_eq!(oom.this_process, gib(60.25));
        assert_eq!(oom.processes, [Amount::gib(2.0, 2), Amount::gib(0.48, 2)]);
        assert_eq!((oom.allocated, oom.private_pools), (gib(55.0), gib(1.0)));
        assert_eq!(oom.reserved_unallocated, gib(3.0));
    }

    #[test]
    fn the_old_form_and_that_of_other_devices() {
        let oom = only(
            "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 1; 23.69 GiB total capacity; \
             20.00 GiB already allocated; 310.06 MiB free; 22.50 GiB reserved in total by PyTorch) If reserved",
        );
        assert_eq!((oom.form, oom.device), (TorchOomForm::Brackets, Some(1)));
        assert_eq!((oom.capacity, oom.allocated), (gib(23.69), gib(20.0)));
        assert_eq!(
            oom.reserved_unallocated.map(|amount| amount.bytes),
            gib(2.5).map(|amount| amount.bytes)
        );
        let npu = only(
            "NPU out of memory. Tried to allocate 2.00 MiB (NPU 3; 60.00 GiB total capacity; 183 MiB free)",
        );
        assert_eq!((&*npu.dialect, npu.device, npu.allocated), ("NPU", Some(3), None));
        let mps = only(
            "RuntimeError: MPS backend out of memory (MPS allocated: 17.50 GiB, other allocations: 1.00 GiB, max \
             allowed: 18.13 GiB). Tried to allocate 256 bytes on private pool.",
        );
        assert_eq!((&*mps.dialect, mps.requested), ("MPS", Some(Amount::exact(256))));
        assert_eq!((mps.allocated, mps.capacity), (gib(17.5), gib(18.13)));
        let counted = only(
            "memory allocation failed: trying to allocate 671088640 bytes (free: 5, total: 85095874560)",
        );
        assert_eq!(counted.form, TorchOomForm::Counted);
        assert_eq!(
            (counted.free, counted.requested),
            (Some(Amount::exact(5)), Some(Amount::exact(671_088_640)))
        );
    }

    #[test]
    fn names_alone_count_and_advice_does_not() {
        for text in [
            "torch.OutOfMemoryError",
            "RuntimeError: CUDA out of memory.",
            "torch.cuda.OutOfMemoryError: ",
        ] {
            assert_eq!(only(text).form, TorchOomForm::Bare, "{text}");
        }
        for text in [
            "If out of memory error occurs during cudagraph capture, consider decreasing the fraction",
            "CUDA out of memory occurred when warming up sampler with 256 dummy requests.",
            "Prefill out of memory. Try to lower your batch size.",
        ] {
            assert_eq!(one(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_wrapped_by_a_terminal_is_put_together() {
        let (first, second) = (
            "CUDA out of memory. Tried to allocate 672.00 MiB. GPU 0 has a total capa",
            "city of 140.06 GiB of which 200.75 MiB is free.",
        );
        let (whole, oom) = joined(first, second).unwrap();
        assert_eq!((oom.capacity, figures(&oom)), (gib(140.06), 3));
        let (_, oom) =
            joined(&whole, "Of the allocated memory 128.50 GiB is allocated by PyTorch").unwrap();
        assert_eq!(oom.allocated, gib(128.5));
        assert_eq!(joined(first, "Load weight begin. avail mem=3.00 GB"), None);
        assert_eq!(joined(first, "CUDA out of memory. Tried to allocate 2.00 MiB."), None);
    }
}
