//! SGLang's lines. Each template is known by its head: the words it begins with, wherever in the line they
//! stand, so that lines which lost their line ends (a paste into one paragraph) are read all the same.
//! Templates: SGLang 0.4.0 to 0.5.23, `model_runner`, `memory_pool`, `cuda_graph_runner` and its successors,
//! `scheduler`, `hicache` pools, `mlx`.

use super::fields::{
    Gb, after, amount, amount_after, amount_or_gib, float, float_after, int, uint, uint_after,
};
use super::server_args;
use crate::log::{Amount, Sglang};

/// Reads a template: `before` is the line up to its head, `text` what follows the head.
type Template = fn(before: &str, text: &str) -> Option<Sglang>;

/// Heads and their templates, in the order of a start. Where one head contains another the longer comes first.
const TEMPLATES: &[(&str, Template)] = &[
    ("ServerArgs(", |_, text| Some(Sglang::ServerArgs(server_args::read(text)))),
    ("Init torch distributed ends.", context),
    ("Memory baseline taken.", context),
    ("Load weight begin.", |_, text| Some(Sglang::LoadBegin { avail: avail(text)? })),
    ("Load weight end.", |_, text| Some(load_end(text))),
    ("KV Cache is allocated.", |before, text| Some(kv_allocated(before, text))),
    ("KV Cache VA upper bound", |before, text| Some(kv_allocated(before, text))),
    ("KV cache allocated.", |before, text| Some(kv_allocated(before, text))),
    ("liding window memory pool", |_, text| {
        Some(Sglang::WindowPool {
            full: uint_after(text, "full_layer_tokens="),
            window: uint_after(text, "swa_layer_tokens="),
        })
    }),
    ("Mamba Cache is allocated.", |_, text| Some(mamba(text))),
    ("Memory pool end.", |_, text| Some(Sglang::PoolEnd { avail: avail(text)? })),
    ("Capturing batches (", |_, text| Some(capturing(text))),
    ("Capturing num tokens (", |_, text| Some(capturing(text))),
    ("Capturing prefill shape (", |_, text| Some(capturing(text))),
    ("Capture ", |_, text| capture(text)),
    ("max_total_num_tokens=", |_, text| summary(text)),
    ("max_total_tokens=", |_, text| profiled(text)),
    ("max_running_requests was reduced from the requested ", |_, text| {
        Some(Sglang::RunningCapped { asked: uint(text), left: uint_after(text, " to ") })
    }),
    ("max_running_requests is capped to ", |_, text| {
        Some(Sglang::RunningCapped { asked: None, left: uint(text) })
    }),
    ("Not enough memory. Please try to increase", |_, text| {
        Some(Sglang::NotEnoughMemory { fraction: float_after(text, "mem_fraction_static=") })
    }),
    ("Loaded weights leave no GPU memory", |_, text| {
        Some(Sglang::WeightsLeaveNothing {
            fraction: float_after(text, "mem-fraction-static="),
            above: float_after(text, "above "),
            minimum: after(text, "minimum viable").and_then(last_float),
        })
    }),
    ("memory capacity is unbalanced", |_, _| Some(Sglang::Unbalanced)),
    ("hierarchical KV host pool:", |_, text| host_pool(text)),
    ("Allocating ", |_, text| host_pool(text)),
    ("Not enough host memory available.", |_, text| {
        Some(Sglang::HostPoolRefused {
            requested: amount_after(text, "Requesting ", Gb::Decimal),
            free: amount_after(text, "only have ", Gb::Decimal),
        })
    }),
    ("Auto-sized attention KV pool:", |_, text| {
        Some(Sglang::MlxPool {
            available: amount_after(text, "sys_available=", Gb::Binary),
            budget: amount_after(text, "kv_budget=", Gb::Binary),
            slots: uint_after(text, "pool_size="),
            cell: uint_after(text, "bytes_per_slot="),
        })
    }),
    ("as the LoRA backend", |_, _| Some(Sglang::Lora { bytes: None })),
    ("LoRA manager ready", |_, _| Some(Sglang::Lora { bytes: None })),
    ("fired up and ready", |_, _| Some(Sglang::Ready)),
    ("Retract requests.", |_, text| Some(retract(text))),
    ("Decode out of memory happened", |_, text| Some(retract(text))),
    ("Prefill out of memory.", |_, text| {
        Some(Sglang::PrefillPoolExhausted { tokens: uint_after(text, "Try to allocate ") })
    }),
    ("Decode out of memory.", |_, text| Some(decode_exhausted(text))),
    ("Out of memory even after retracting", |_, text| Some(decode_exhausted(text))),
    ("Out of memory. Try to lower your batch size", |_, text| Some(decode_exhausted(text))),
    ("alloc_req_slots runs out of memory", |_, _| Some(Sglang::RequestSlotsExhausted)),
    ("Input length (", |_, text| {
        Some(Sglang::InputTooLong {
            input: uint(text)?,
            limit: after(text, "maximum allowed length (").and_then(uint)?,
        })
    }),
    ("hit an exception", |_, _| Some(Sglang::SchedulerException)),
    ("get a response from detokenizer", |_, text| {
        Some(Sglang::DetokenizerSilent { seconds: uint_after(text, "for last ") })
    }),
    ("Health check failed", |_, _| Some(Sglang::DetokenizerSilent { seconds: None })),
    ("watchdog timeout", |_, _| Some(Sglang::Watchdog)),
    ("memory leak detected", |_, _| Some(Sglang::PoolLeak)),
];

/// Words of which every line of SGLang holds one. The heads, but for those that other lines begin with too.
pub(super) const WORDS: &[&str] = &[
    "ServerArgs(",
    "Init torch distributed ends",
    "Memory baseline taken",
    "Load weight ",
    "KV Cache is allocated",
    "KV Cache VA upper",
    "KV cache allocated.",
    "sliding window memory pool",
    "Mamba Cache is allocated",
    "Memory pool end",
    "Capturing batches (",
    "Capturing num tokens (",
    "Capturing prefill shape (",
    "graph begin",
    "graph end",
    "graph failed",
    "max_total_num_tokens=",
    "than the profiled value",
    "max_running_requests was reduced",
    "max_running_requests is capped",
    "Not enough memory. Please",
    "weights leave no GPU memory",
    "capacity is unbalanced",
    "hierarchical KV",
    "Not enough host memory",
    "attention KV pool",
    "as the LoRA backend",
    "LoRA manager ready",
    "fired up and ready",
    "Retract requests.",
    "code out of memory",
    "Prefill out of memory",
    "memory even after retracting",
    "lower your batch size",
    "alloc_req_slots",
    "exceeds the maximum allowed length",
    "hit an exception",
    "response from detokenizer",
    "Health check failed",
    "watchdog timeout",
    "memory leak detected",
];

/// Everything that the line says, in its order.
pub(super) fn read(line: &str, into: &mut Vec<Sglang>) {
    let mut from = 0;
    while let Some((start, end, template)) = next_head(line, from) {
        let stop = next_head(line, end).map_or(line.len(), |(next, ..)| next);
        let before = line.get(from..start).unwrap_or("");
        let what = line.get(end..stop).and_then(|text| template(before, text));
        // Arguments hold anything, heads of other lines too.
        let all = matches!(what, Some(Sglang::ServerArgs(_)));
        if all {
            let text = line.get(end..).unwrap_or("");
            into.push(Sglang::ServerArgs(server_args::read(text)));
            return;
        }
        into.extend(what);
        from = end;
    }
}

/// The first head at or after `from`: where it begins and ends, and its template.
fn next_head(line: &str, from: usize) -> Option<(usize, usize, Template)> {
    let rest = line.as_bytes().get(from..)?;
    let mut first: Option<(usize, usize, Template)> = None;
    for (head, template) in TEMPLATES {
        let until =
            first.map_or(rest.len(), |(start, ..)| (start - from + head.len()).min(rest.len()));
        let Some(at) = rest.get(..until).and_then(|part| find(part, head)) else { continue };
        let start = from + at;
        if first.is_none_or(|(old, ..)| start < old) {
            first = Some((start, start + head.len(), *template));
        }
    }
    first
}

/// Where `head` begins, its first letter and `watchdog` in any case.
fn find(text: &[u8], head: &str) -> Option<usize> {
    if head.starts_with("watchdog") {
        return memchr::memmem::find(text, head.as_bytes())
            .or_else(|| memchr::memmem::find(text, b"Watchdog timeout"));
    }
    memchr::memmem::find(text, head.as_bytes())
}

/// `avail mem=93.60 GB`.
fn avail(text: &str) -> Option<Amount> {
    amount_or_gib(after(text, "avail mem=")?, Gb::Binary)
}

/// `mem usage=-5.29 GB`.
fn usage(text: &str) -> Option<Amount> {
    amount_or_gib(after(text, "mem usage=")?, Gb::Binary)
}

fn context(_: &str, text: &str) -> Option<Sglang> {
    Some(Sglang::ContextTaken { usage: usage(text)? })
}

fn load_end(text: &str) -> Sglang {
    let model_class = word_after(text, "type=");
    let draft = model_class.map(is_draft);
    let form = word_after(text, "dtype=").or_else(|| word_after(text, "quant="));
    Sglang::LoadEnd {
        model_class: model_class.map(Into::into),
        form: form.map(Into::into),
        avail: avail(text),
        usage: usage(text),
        draft,
    }
}

/// Classes of draft models carry it in their names: `…NextN`, `…MTP`, `…Eagle3`, `…EagleModel`, `…DFlash`.
fn is_draft(class: &str) -> bool {
    let class = class.to_ascii_lowercase();
    ["nextn", "mtp", "eagle", "draft", "medusa", "dflash"].iter().any(|part| class.contains(part))
}

/// The word behind a key, up to a comma, a blank or a bracket.
fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = after(text, key)?;
    let end = rest.find([',', ' ', ')']).unwrap_or(rest.len());
    rest.get(..end).map(|word| word.trim_end_matches('.')).filter(|word| !word.is_empty())
}

fn kv_allocated(before: &str, text: &str) -> Sglang {
    let label = before.trim_end().rsplit([' ', ']', ':']).next();
    let label = label.map(|word| word.trim_start_matches('['));
    let known = ["Full", "SWA", "Draft", "Target"];
    Sglang::KvAllocated {
        label: label.filter(|word| known.contains(word)).map(Into::into),
        tokens: uint_after(text, "#tokens: "),
        k: amount_after(text, "K size: ", Gb::Binary)
            .or_else(|| amount_after(text, "KV size: ", Gb::Binary)),
        v: amount_after(text, " V size: ", Gb::Binary),
        dtype: word_after(text, "dtype: ").map(Into::into),
    }
}

fn mamba(text: &str) -> Sglang {
    let size = |key| amount_after(text, key, Gb::Binary);
    Sglang::MambaAllocated {
        slots: uint_after(text, "max_mamba_cache_size: "),
        conv: size("conv_state size: "),
        ssm: size(" ssm_state size: "),
        intermediate_ssm: size("intermediate_ssm_state_cache size: "),
        intermediate_conv: size("intermediate_conv_window_cache size: "),
    }
}

fn capturing(text: &str) -> Sglang {
    Sglang::Capturing {
        size: uint_after(text, "bs=").or_else(|| uint_after(text, "num_tokens=")),
        avail: after(text, "avail_mem=").and_then(|text| amount_or_gib(text, Gb::Binary)),
    }
}

/// `… begin. …`, `… end. …`, `… failed: …` behind `Capture `.
fn capture(text: &str) -> Option<Sglang> {
    let (at, end) = ["graph begin", "graph end", "graph failed"]
        .into_iter()
        .filter_map(|words| Some((text.find(words)?, words)))
        .min()?;
    let what = text.get(..at + "graph".len())?;
    if what.len() > 60 {
        return None;
    }
    let what = what.to_lowercase().into();
    let rest = text.get(at + end.len()..)?;
    Some(match end {
        "graph begin" => Sglang::CaptureBegin { what, avail: avail(rest) },
        "graph end" => Sglang::CaptureEnd { what, usage: usage(rest), avail: avail(rest) },
        _ => Sglang::CaptureFailed { text: rest.trim_start_matches([':', ' ']).into() },
    })
}

fn summary(text: &str) -> Option<Sglang> {
    let memory = after(text, "available_gpu_mem=").or_else(|| after(text, "available_cpu_mem="));
    Some(Sglang::Summary {
        max_total_num_tokens: uint(text)?,
        chunked_prefill_size: after(text, "chunked_prefill_size=").and_then(int),
        max_prefill_tokens: uint_after(text, "max_prefill_tokens="),
        max_running_requests: uint_after(text, "max_running_requests="),
        context_len: uint_after(text, "context_len="),
        available_gpu_mem: memory.and_then(|text| amount_or_gib(text, Gb::Binary)),
    })
}

fn profiled(text: &str) -> Option<Sglang> {
    let profiled = after(text, "is larger than the profiled value ").and_then(int)?;
    Some(Sglang::ProfiledBelowAsked { asked: int(text)?, profiled })
}

/// `Allocating 40.00 GB host memory for hierarchical KV cache.` (up to 0.5.8) and
/// `Allocating … hierarchical KV host pool: 1024 tokens, 40.00 GB host memory.`; GB is decimal.
fn host_pool(text: &str) -> Option<Sglang> {
    if let Some(size) = amount(text, Gb::Decimal) {
        let named = text.contains("hierarchical KV cache");
        return named.then_some(Sglang::HostPool { size, tokens: None });
    }
    let tokens = uint(text)?;
    let size = amount_after(text, "tokens, ", Gb::Decimal)?;
    Some(Sglang::HostPool { size, tokens: Some(tokens) })
}

fn retract(text: &str) -> Sglang {
    let ratio = after(text, "#new_token_ratio: ")
        .and_then(|text| Some((float(text)?, float_after(text, "-> ")?)));
    Sglang::Retract {
        requests: uint_after(text, "#retracted_reqs: ").unwrap_or(0),
        gained: uint_after(text, "#new_tokens_gained: "),
        ratio,
    }
}

fn decode_exhausted(text: &str) -> Sglang {
    Sglang::DecodePoolExhausted { tokens: uint_after(text, "Try to allocate ") }
}

/// The last number in a bracket: `(minimum viable = 1 - available/pre = 0.9411)`.
fn last_float(text: &str) -> Option<f64> {
    let inside = text.split(')').next()?;
    float(inside.rsplit('=').next()?)
}
