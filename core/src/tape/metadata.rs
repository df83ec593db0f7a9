//! What SGLang makes for a batch before its layers run: ids, positions, slots, and the attention
//! backend's index of the keys. Small beside the layers, but it is there while they run, and it changes
//! its size with every step, which fragments.

use super::buffers::{
    HOST_INDEX, KV_INDICES, KV_INDPTR, META_IDS, META_LENGTHS, META_POSITIONS, META_SLOTS,
    PAGE_TABLE, PREFIX_SLOTS,
};
use super::event::Tape;
use super::recorder::Recorder;
use super::setup::TapeError;
use crate::estimate::workspace::AttentionBackend;

/// Whether a step is part of a captured graph, whose inputs are static buffers paid at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepInputs {
    /// New tensors: prefill, and decode beyond the captured batches.
    New,
    /// Static buffers of the graphs: only what the batch is copied from is new.
    Static,
}

/// One step's batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// Attention backend of the step.
    pub backend: AttentionBackend,
    /// New tokens.
    pub tokens: u64,
    /// Requests.
    pub requests: u64,
    /// Tokens before the new ones, all requests together.
    pub prefix_tokens: u64,
    /// Longest sequence with its new tokens.
    pub longest: u64,
    /// `page_size`, tokens.
    pub page_size: u64,
    /// Tokens whose KV moves between the device and the host cache before this step.
    pub host_moved: u64,
    /// Where the inputs lie.
    pub inputs: StepInputs,
}

impl Metadata {
    /// Decode steps after this one, each with one token more of every request, whose buffers round up to the
    /// same multiples of 512 bytes: only the index grows.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        if self.inputs == StepInputs::Static {
            return u64::MAX;
        }
        let all = self.prefix_tokens.saturating_add(self.tokens);
        let (bytes, each) = match self.backend {
            AttentionBackend::Flashinfer | AttentionBackend::FlashinferMla => {
                (all.saturating_add(INDEX_SLACK).saturating_mul(4), self.requests * 4)
            }
            AttentionBackend::Triton => (all.saturating_mul(8), self.requests * 8),
            AttentionBackend::FlashAttention
            | AttentionBackend::TrtllmMha
            | AttentionBackend::TrtllmMla => {
                let page = self.page_size.max(1);
                return self.longest.div_ceil(page) * page - self.longest;
            }
            AttentionBackend::Other => return u64::MAX,
        };
        (bytes.div_ceil(512).saturating_mul(512) - bytes) / each.max(1)
    }
}

/// FlashInfer's index is made so many entries longer. Source: SGLang FlashInfer backend, updater.
const INDEX_SLACK: u64 = 256;

/// The batch's tensors; all of them live until the step is over, except the slots of cached prefixes,
/// which only fill the request table.
///
/// Source: SGLang 0.5.8 and 0.5.23 `ScheduleBatch.prepare_for_extend`, `prepare_for_decode` and
/// attention backends, read, not recorded: int64 ids, positions, slots and lengths; int32 index of
/// FlashInfer and page table of FlashAttention; int64 index of Triton (of prefixes in prefill, of
/// everything in decode); int64 indices of the host cache's transfers.
///
/// # Errors
///
/// [`TapeError::OutOfRange`].
pub fn metadata(batch: &Metadata) -> Result<Tape, TapeError> {
    let most = 1 << 40;
    for (field, value, min) in [
        ("tokens", batch.tokens, 1),
        ("requests", batch.requests, 1),
        ("prefix_tokens", batch.prefix_tokens, 0),
        ("longest", batch.longest, 1),
        ("page_size", batch.page_size, 1),
        ("host_moved", batch.host_moved, 0),
    ] {
        if value < min || value > most {
            return Err(TapeError::OutOfRange { field, value, min, max: most });
        }
    }
    let mut rec = Recorder::default();
    if batch.host_moved > 0 {
        // Source and destination of every token.
        let moved = [0, 1].map(|_| rec.alloc(HOST_INDEX, 8, &[batch.host_moved]));
        rec.release(moved);
    }
    if batch.tokens > batch.requests && batch.prefix_tokens > 0 {
        let prefix = rec.alloc(PREFIX_SLOTS, 8, &[batch.prefix_tokens]);
        rec.release([prefix]);
    }
    rec.alloc(META_IDS, 8, &[batch.tokens]);
    rec.alloc(META_LENGTHS, 8, &[batch.requests]);
    rec.alloc(META_LENGTHS, 8, &[batch.requests]);
    rec.alloc(META_SLOTS, 8, &[batch.tokens]);
    if batch.inputs == StepInputs::New {
        rec.alloc(META_POSITIONS, 8, &[batch.tokens]);
        index(&mut rec, batch);
    }
    Ok(rec.finish())
}

fn index(rec: &mut Recorder, batch: &Metadata) {
    let all = batch.prefix_tokens.saturating_add(batch.tokens);
    let prefill = batch.tokens > batch.requests;
    match batch.backend {
        AttentionBackend::Flashinfer | AttentionBackend::FlashinferMla => {
            rec.alloc(KV_INDPTR, 4, &[batch.requests + 1]);
            rec.alloc(KV_INDICES, 4, &[all.saturating_add(INDEX_SLACK)]);
        }
        AttentionBackend::Triton => {
            rec.alloc(KV_INDPTR, 4, &[batch.requests + 1]);
            rec.alloc(KV_INDICES, 8, &[if prefill { batch.prefix_tokens } else { all }]);
        }
        AttentionBackend::FlashAttention
        | AttentionBackend::TrtllmMha
        | AttentionBackend::TrtllmMla => {
            let pages = batch.longest.div_ceil(batch.page_size);
            rec.alloc(PAGE_TABLE, 4, &[batch.requests, pages]);
        }
        AttentionBackend::Other => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: Metadata = Metadata {
        backend: AttentionBackend::Flashinfer,
        tokens: 8192,
        requests: 4,
        prefix_tokens: 100_000,
        longest: 60_000,
        page_size: 1,
        host_moved: 0,
        inputs: StepInputs::New,
    };

    #[test]
    fn the_index_is_the_backends_own() {
        let of = |backend, name: &str| {
            let tape = metadata(&Metadata { backend, ..CHUNK }).unwrap();
            tape.find(name).map(|live| live.bytes.0)
        };
        let whole = 4 * (108_192 + 256);
        assert_eq!(of(AttentionBackend::Flashinfer, "kv_indices"), Some(whole));
        assert_eq!(of(AttentionBackend::Triton, "kv_indices"), Some(800_000));
        assert_eq!(of(AttentionBackend::FlashAttention, "page_table"), Some(4 * 4 * 60_000));
        assert_eq!(of(AttentionBackend::Other, "kv_indices"), None);
        let decode = Metadata { backend: AttentionBackend::Triton, tokens: 4, ..CHUNK };
        assert_eq!(metadata(&decode).unwrap().find("kv_indices").unwrap().bytes.0, 8 * 100_004);
    }

    #[test]
    fn prefix_slots_and_transfers_are_gone_before_the_layers() {
        let tape = metadata(&Metadata { host_moved: 5000, ..CHUNK }).unwrap();
        let left = tape.live_after(tape.events().len());
        let names: Vec<_> = left.iter().map(|live| live.name.buffer.name).collect();
        assert!(!names.contains(&"prefix_indices") && !names.contains(&"hicache.indices"));
        assert!(names.contains(&"kv_indices") && names.contains(&"input_ids"));
    }

    proptest! {
        #[test]
        fn what_repeats_is_the_same_to_the_allocator(
            backend in prop_oneof![
                Just(AttentionBackend::Flashinfer), Just(AttentionBackend::Triton),
                Just(AttentionBackend::FlashAttention), Just(AttentionBackend::Other)
            ],
            requests in 1..300_u64,
            prefix in 0..100_000_u64,
            page in prop_oneof![Just(1_u64), Just(16), Just(64)],
        ) {
            let now = Metadata {
                backend,
                tokens: requests,
                requests,
                prefix_tokens: prefix + requests,
                longest: prefix / 2 + 1,
                page_size: page,
                ..CHUNK
            };
            let sizes = |batch: &Metadata| -> Vec<u64> {
                let tape = metadata(batch).unwrap();
                tape.allocations().map(|live| live.bytes.0.div_ceil(512)).collect()
            };
            let after = |steps: u64| Metadata {
                prefix_tokens: now.prefix_tokens + steps * requests,
                longest: now.longest + steps,
                ..now
            };
            let repeats = now.repeats();
            prop_assert_eq!(sizes(&after(repeats.min(1 << 30))), sizes(&now));
            if matches!(backend, AttentionBackend::Flashinfer | AttentionBackend::Triton) {
                prop_assert!(sizes(&after(repeats + 1)) != sizes(&now), "none is missed");
            }
        }

        #[test]
        fn captured_steps_make_less(tokens in 1..2000_u64, prefix in 0..1_000_000_u64) {
            let batch = Metadata { tokens, requests: tokens, prefix_tokens: prefix, ..CHUNK };
            let eager = metadata(&batch).unwrap().peak().bytes;
            let inputs = StepInputs::Static;
            let captured = metadata(&Metadata { inputs, ..batch }).unwrap().peak().bytes;
            prop_assert!(captured < eager);
        }
    }
}
