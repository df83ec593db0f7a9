//! Lines of llama.cpp and its server. Templates: `ggml-backend`, `ggml-alloc`, `llama-context`,
//! `llama-kv-cache`, `server`, builds of 2024 to 2026.

use super::fields::{after, uint, uint_after};
use super::scan::{Known, amount, amount_after, between, bytes_after, read_by, words};
use crate::log::LlamaCpp;

const LINES: &[Known<LlamaCpp>; 28] = &[
    ("cudaMalloc failed", refused),
    ("failed to allocate ", refused),
    ("Device memory allocation of size ", refused),
    ("ErrorOutOfDeviceMemory", refused),
    ("retrying without pipeline parallelism", |_| Some(LlamaCpp::RetryWithoutPipeline)),
    ("pipeline parallelism enabled", |line| {
        Some(LlamaCpp::PipelineCopies { copies: small(line, "n_copies=") })
    }),
    ("KV self size", kv_size),
    ("llama_kv_cache", kv_size),
    (" buffer size = ", buffer),
    (" prompts, ", prompt_cache),
    ("saving prompt with length ", prompt_save),
    ("created context checkpoint ", |_| Some(LlamaCpp::Checkpoint)),
    ("n_ctx_slot = ", slots),
    ("new slot, n_ctx = ", slots),
    ("initializing slots, n_slots = ", slots),
    ("Context size has been exceeded", |_| Some(LlamaCpp::ContextExceeded)),
    ("exceeds the available context size", |_| Some(LlamaCpp::ContextExceeded)),
    ("failed to find a memory slot for batch", |_| Some(LlamaCpp::ContextExceeded)),
    ("failed to find free space in the KV cache", |_| Some(LlamaCpp::ContextExceeded)),
    ("failed to fit params", |_| Some(LlamaCpp::FitFailed)),
    ("error loading model", |_| Some(LlamaCpp::LoadFailed { what: Some("model".into()) })),
    ("failed to create context", |_| Some(LlamaCpp::LoadFailed { what: Some("context".into()) })),
    ("unable to load model", |_| Some(LlamaCpp::LoadFailed { what: None })),
    ("failed to initialize the context", |_| {
        Some(LlamaCpp::LoadFailed { what: Some("context".into()) })
    }),
    ("unable to create context", |_| Some(LlamaCpp::LoadFailed { what: Some("context".into()) })),
    ("server is listening", |_| Some(LlamaCpp::Ready)),
    ("all slots are idle", |_| Some(LlamaCpp::Ready)),
    ("main: model loaded", |_| Some(LlamaCpp::Ready)),
];

/// Words of which every line that [`read`] understands holds at least one, in any case.
pub(super) const WORDS: &[&str] = &words(LINES);

/// What one undressed line says; `None` when it is no line of this server.
pub(super) fn read(line: &str) -> Option<LlamaCpp> {
    read_by(LINES, line)
}

/// `allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory`, `failed to allocate CUDA4 buffer of
/// size 150995968`, `failed to allocate compute buffers`, Vulkan's `Device memory allocation of size … failed`.
/// Words of other programs (`failed to allocate memory for …`) are left alone.
fn refused(line: &str) -> Option<LlamaCpp> {
    let requested = amount_after(line, "allocating ")
        .or_else(|| bytes_after(line, "buffer of size "))
        .or_else(|| bytes_after(line, "allocation of size "));
    let named = ["cudaMalloc failed", "ErrorOutOfDeviceMemory", " buffer"];
    if requested.is_none() && !named.iter().any(|word| line.contains(word)) {
        return None;
    }
    let device = small(line, "on device ").or_else(|| {
        let name = between(line, "failed to allocate ", " buffer")?;
        name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()
    });
    Some(LlamaCpp::BufferRefused { what: kind(line).map(Into::into), requested, device })
}

/// Which buffer it is, by the function that writes the line or by its words.
fn kind(line: &str) -> Option<&'static str> {
    const KINDS: &[(&str, &[&str])] = &[
        ("model", &["alloc_tensor_range", "load_tensors", "unable to allocate"]),
        ("KV", &["kv cache", "kv_cache"]),
        ("compute", &["gallocr", "compute", "graph_reserve"]),
    ];
    KINDS
        .iter()
        .find(|(_, words)| words.iter().any(|word| line.contains(word)))
        .map(|(kind, _)| *kind)
}

fn small(line: &str, key: &str) -> Option<u32> {
    u32::try_from(uint_after(line, key)?).ok()
}

/// `KV self size = 5120.00 MiB, K (f16): …`, `llama_kv_cache: size = 512.00 MiB (4096 cells, …)`.
fn kv_size(line: &str) -> Option<LlamaCpp> {
    if line.contains("buffer size") {
        return None;
    }
    Some(LlamaCpp::KvSize {
        bytes: amount_after(line, "size = ").or(amount_after(line, "size  = "))?,
    })
}

/// `CUDA0 compute buffer size = 304.00 MiB`, `CUDA_Host output buffer size = 0.49 MiB`.
fn buffer(line: &str) -> Option<LlamaCpp> {
    let (head, rest) = line.split_once(" buffer size = ")?;
    let what = head.rsplit(' ').next().filter(|what| !what.is_empty())?;
    Some(LlamaCpp::Buffer { what: what.into(), bytes: amount(rest)? })
}

/// `cache state: 27 prompts, 7377.676 MiB (limits: 8192.000 MiB, …`.
fn prompt_cache(line: &str) -> Option<LlamaCpp> {
    let rest = after(line, " prompts, ")?;
    let limit = amount_after(rest, "(limits: ");
    limit?;
    Some(LlamaCpp::PromptCache { held: amount(rest), limit })
}

/// `saving prompt with length 10177, total state size = 2460.007 MiB`.
fn prompt_save(line: &str) -> Option<LlamaCpp> {
    Some(LlamaCpp::PromptSave {
        tokens: uint_after(line, "prompt with length "),
        bytes: amount_after(line, "total state size = "),
    })
}

/// `id 3 | new slot, n_ctx = 1024`, `initializing, n_slots = 1, n_ctx_slot = 50176`. Slots are numbered from 0.
fn slots(line: &str) -> Option<LlamaCpp> {
    let numbered = between(line, "id ", "|").and_then(uint).and_then(|id| id.checked_add(1));
    let slots = uint_after(line, "n_slots = ").or(numbered);
    Some(LlamaCpp::Slots {
        slots: slots.and_then(|slots| u32::try_from(slots).ok()),
        n_ctx_slot: uint_after(line, "n_ctx_slot = ").or_else(|| uint_after(line, "n_ctx = ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Amount;

    #[test]
    fn refusals_keep_size_and_device() {
        let by_device = read("allocating 96.00 MiB on device 3: cudaMalloc failed: out of memory");
        let requested = Some(Amount { bytes: 96 << 20, half: 5243 });
        assert_eq!(
            by_device,
            Some(LlamaCpp::BufferRefused { what: None, requested, device: Some(3) })
        );
        let by_name =
            read("ggml_gallocr_reserve_n: failed to allocate CUDA3 buffer of size 100663296");
        let requested = Some(Amount::exact(100_663_296));
        let what = Some("compute".into());
        assert_eq!(by_name, Some(LlamaCpp::BufferRefused { what, requested, device: Some(3) }));
        assert_eq!(read("failed to allocate memory for the thread pool"), None);
    }

    #[test]
    fn sizes_of_pool_and_buffers() {
        let Some(LlamaCpp::KvSize { bytes }) =
            read("llama_kv_cache: size =  640.00 MiB (4096 cells)")
        else {
            panic!("no size");
        };
        assert_eq!(bytes.bytes, 640 << 20);
        let Some(LlamaCpp::Buffer { what, .. }) =
            read("llama_context: CUDA0 compute buffer size = 304.00 MiB")
        else {
            panic!("no buffer");
        };
        assert_eq!(&*what, "compute");
    }

    #[test]
    fn the_prompt_cache_and_its_limit() {
        let line =
            "srv update: - cache state: 4 prompts, 1800.500 MiB (limits: 1024.000 MiB, 0 tokens)";
        let Some(LlamaCpp::PromptCache { held: Some(held), limit: Some(limit) }) = read(line)
        else {
            panic!("no cache");
        };
        assert!(held.bytes > limit.bytes);
        assert_eq!(read("served 12 prompts, 3 of them twice"), None);
    }

    #[test]
    fn slots_by_number_and_by_count() {
        let one = read("slot load_model: id  2 | new slot, n_ctx = 2048");
        assert_eq!(one, Some(LlamaCpp::Slots { slots: Some(3), n_ctx_slot: Some(2048) }));
        let all = read(
            "srv load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'true'",
        );
        assert_eq!(all, Some(LlamaCpp::Slots { slots: Some(4), n_ctx_slot: Some(8192) }));
    }
}
