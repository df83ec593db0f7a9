//! An engine tape played through the allocator: which request fails, in which layer, what lived then.

use super::{BlockId, CachingAllocator, MallocError, SegmentSource, StreamId, cycle::Layers};
use crate::tape::{BufferId, Event, Name, Tape};

/// A tape that ran into a failure. What it held is still held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {error}")]
pub struct TapeStopped {
    /// Index of the event that failed.
    pub event: usize,
    /// The buffer that was asked for.
    pub name: Name,
    /// Why.
    pub error: MallocError,
    /// Buffers of the tape that live, in the order of allocation.
    pub live: Vec<(BufferId, BlockId)>,
}

impl CachingAllocator {
    /// Plays a tape on `stream`. Answers what it leaves allocated (the result of the step), in the
    /// order of allocation. Buffers of 0 bytes take nothing, as in torch.
    ///
    /// # Errors
    ///
    /// [`TapeStopped`] at the first request that cannot be served.
    pub fn play(
        &mut self,
        source: &mut dyn SegmentSource,
        tape: &Tape,
        stream: StreamId,
    ) -> Result<Vec<(BufferId, BlockId)>, Box<TapeStopped>> {
        // Ids count from 0 in the order of allocation.
        let mut held: Vec<Option<BlockId>> = Vec::with_capacity(tape.events().len() / 2 + 1);
        let cycle = tape.cycle().filter(|_| self.repeats_exactly());
        let mut layers = cycle.map(Layers::new);
        let mut nth = 0;
        while nth < tape.events().len() {
            if let Some(layers) = &mut layers {
                nth += layers.skip(self, nth, &mut held);
            }
            let Some(event) = tape.events().get(nth) else { break };
            match *event {
                Event::Alloc { bytes, .. } if bytes.0 == 0 => held.push(None),
                Event::Alloc { bytes, name, .. } => match self.malloc(source, bytes.0, stream) {
                    Ok(block) => held.push(Some(block)),
                    Err(error) => {
                        let live = living(&held);
                        return Err(Box::new(TapeStopped { event: nth, name, error, live }));
                    }
                },
                Event::Free { id } => {
                    let slot = held.get_mut(id.0 as usize).and_then(Option::take);
                    if let Some(block) = slot {
                        // Held until now by this very loop.
                        let freed = self.free(block);
                        debug_assert_eq!(freed, Ok(()));
                    }
                }
            }
            nth += 1;
        }
        Ok(living(&held))
    }
}

fn living(held: &[Option<BlockId>]) -> Vec<(BufferId, BlockId)> {
    (0..).zip(held).filter_map(|(id, block)| block.map(|block| (BufferId(id), block))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        estimate::{
            moe::SharedExperts,
            shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs},
        },
        memory::caching_allocator::{CountingSource, History, Options, Setup, TorchVersion},
        tape::{
            self, Code, Experts, Family, LayerMlp, MarlinReduce, PrefillChunk, TapeModel,
            prefill_chunk,
        },
        units::{GIB, MIB},
    };

    /// Kimi-K2.5 on eight ranks, SGLang 0.5.8, one chunk.
    fn founding(tokens: u64) -> Tape {
        let mut layers = vec![LayerMlp::Experts; 61];
        layers[0] = LayerMlp::Dense;
        let shape = ShapeInputs {
            hidden: 7168,
            attention: AttentionShape::Mla {
                q_heads: 64,
                q_lora_rank: 1536,
                kv_lora_rank: 512,
                qk_nope_head_dim: 128,
                qk_rope_head_dim: 64,
                v_head_dim: 128,
            },
            dense_intermediate: 18_432,
            moe: Some(MoeShape {
                experts: 384,
                top_k: 8,
                intermediate: 2048,
                shared_intermediate: 2048,
            }),
            vocab: 163_840,
            layers: 61,
            mlp_names: MlpNames::Kept,
            qk_norm: QkNorm::Absent,
        };
        let setup = tape::Setup {
            experts: Experts::Marlin { multiprocessors: 188, reduce: MarlinReduce::Atomic },
            shared_experts: SharedExperts::Separate,
            ..tape::Setup::plain(Code::Sglang0508, 8)
        };
        let model = TapeModel { shape, layers, family: Family::DeepSeek };
        prefill_chunk(&model, &setup, &PrefillChunk { tokens, requests: 1, prefix_tokens: 0 })
            .unwrap()
    }

    /// Plays the tape on a fresh allocator over `free` bytes.
    fn over(free: u64, tape: &Tape, conf: &str) -> Result<u64, Box<TapeStopped>> {
        let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
        let mut cache = CachingAllocator::new(Setup { options, ..Setup::new(95 * GIB) });
        let mut device = CountingSource::new(free);
        let played = cache.play(&mut device, tape, StreamId(0));
        cache.verify().unwrap();
        played.map(|_| cache.stats().reserved.peak)
    }

    fn gib(hundredths: u64) -> u64 {
        hundredths * GIB / 100
    }

    #[test]
    fn the_founding_margins_end_as_they_did() {
        let tape = founding(8192);
        let died = over(gib(82), &tape, "").unwrap_err();
        assert_eq!(died.name.to_string(), "layer 1 mlp.experts.intermediate_cache13");
        let MallocError::OutOfMemory(oom) = &died.error else { panic!("{died}") };
        assert_eq!(oom.segment, 896 * MIB);
        let text = oom.text(TorchVersion::new(2, 9), 0, &[]);
        assert!(text.starts_with("CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has"));
        for hundredths in [552, 834] {
            assert!(over(gib(hundredths), &tape, "").is_ok());
        }
    }

    #[test]
    fn the_margin_at_which_the_chunk_turns_is_what_segments_need() {
        let tape = founding(8192);
        let turns = |conf: &str| {
            let (mut dies, mut lives) = (gib(82), gib(552));
            while lives - dies > MIB {
                let middle = dies.midpoint(lives);
                if over(middle, &tape, conf).is_ok() { lives = middle } else { dies = middle }
            }
            lives.div_ceil(MIB)
        };
        let peak = tape.peak().bytes.0.div_ceil(MIB);
        let (plain, growing) = (turns(""), turns("expandable_segments:True"));
        println!(
            "a chunk of 8192 tokens lives from {plain} MiB (growing ranges: {growing}), peak {peak} MiB"
        );
        // A retry gives whole free segments back; of a growing range only handles that lie wholly in a
        // hole, so here it needs more.
        assert!(peak <= plain && plain < peak + peak / 20, "{peak} {plain}");
        assert!(peak <= growing && growing < peak + peak / 10, "{peak} {growing}");
        // Half the chunk fits where the whole does not.
        assert!(over(gib(82), &founding(4096), "").is_ok());
    }

    /// Who keeps a history plays every layer; who keeps none stops where layers repeat.
    #[test]
    fn layers_that_repeat_are_as_if_played() {
        let mut caches = [History::Off, History::All]
            .map(|history| CachingAllocator::new(Setup { history, ..Setup::new(95 * GIB) }));
        let mut devices = [CountingSource::new(2 * GIB), CountingSource::new(2 * GIB)];
        assert!(founding(100).cycle().unwrap().times > 50);
        // Large after small and back, and one that fails: every state of the cache is met.
        for tokens in [100, 3000, 7, 1, 513, 4096, 2, 8192, 16_384, 5000, 64] {
            let tape = founding(tokens);
            let [off, all] = [0, 1].map(|at| {
                let (cache, device) = (&mut caches[at], &mut devices[at]);
                let outcome = match cache.play(device, &tape, StreamId(0)) {
                    Ok(left) => Ok(left),
                    Err(stopped) => {
                        let name = (stopped.event, stopped.name.to_string());
                        stopped.live.iter().for_each(|(_, block)| cache.free(*block).unwrap());
                        Err(name)
                    }
                };
                let addresses = outcome.as_ref().map(|left| {
                    let of = |(id, block): &(BufferId, BlockId)| {
                        (*id, cache.place(*block).unwrap().address)
                    };
                    left.iter().map(of).collect::<Vec<_>>()
                });
                let addresses = addresses.map_err(Clone::clone);
                outcome.into_iter().flatten().for_each(|(_, block)| cache.free(block).unwrap());
                cache.verify().unwrap();
                let seen = (addresses, *cache.stats());
                cache.reset_peaks();
                seen
            });
            assert_eq!(off, all, "{tokens} tokens");
        }
    }

    #[test]
    fn a_second_chunk_of_the_same_size_takes_nothing_new() {
        let tape = founding(8192);
        let mut cache = CachingAllocator::new(Setup::new(95 * GIB));
        let mut device = CountingSource::new(8 * GIB);
        let mut reserved = Vec::new();
        for _ in 0..3 {
            for (_, block) in cache.play(&mut device, &tape, StreamId(0)).unwrap() {
                cache.free(block).unwrap();
            }
            reserved.push(cache.stats().reserved.current);
        }
        assert_eq!(reserved[1], reserved[2]);
        assert_eq!(cache.stats().allocated.current, 0);
    }
}
