//! Capture of CUDA graphs: what a private pool of the caching allocator takes for them, and how the
//! sum that is known of them divides.

use crate::{
    memory::caching_allocator::{
        CachingAllocator, CaptureScope, Misuse, PoolId, SegmentAddress, SegmentSource, Setup,
        SourceError, StreamId, TapeStopped,
    },
    tape::Tape,
    units::Bytes,
};

/// The graphs that one rank captures, with the segments that their private pool takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Capture {
    /// Captured batches, largest first, as the engine captures them.
    pub batches: Vec<u64>,
    /// Segments of the pool in the order of taking.
    pub pool_segments: Vec<Bytes>,
}

impl Capture {
    /// Captures `batches` (largest first) one after the other into one private pool, each by playing
    /// its tape: later graphs reuse what the largest took.
    ///
    /// Source: SGLang `CudaGraphRunner.capture` (largest first, one pool); torch
    /// `beginAllocateToPool`.
    ///
    /// # Errors
    ///
    /// [`CaptureFailed`]: only for a tape that no memory could hold.
    pub fn play(batches: Vec<u64>, tapes: &[Tape], total: Bytes) -> Result<Self, CaptureFailed> {
        let mut allocator = CachingAllocator::new(Setup::new(total.0));
        let mut taken = Taken::default();
        let pool = PoolId(1, 0);
        for tape in tapes {
            allocator.begin_capture(pool, CaptureScope::AnyStream)?;
            let left = allocator.play(&mut taken, tape, StreamId(0))?;
            for (_, block) in left {
                allocator.free(block)?;
            }
            allocator.end_capture(pool)?;
        }
        Ok(Self { batches, pool_segments: taken.sizes })
    }

    /// All segments of the pool.
    #[must_use]
    pub fn pool(&self) -> Bytes {
        self.pool_segments.iter().copied().sum()
    }

    /// Divides what is known of the graphs: segments of the pool first (the last one cut where they
    /// are more than is known), then the driver's own memory for the graphs.
    #[must_use]
    pub fn divide(&self, known: Bytes) -> Shares {
        let mut left = known;
        let mut pool = Vec::new();
        for segment in &self.pool_segments {
            let part = left.min(*segment);
            if part > Bytes::ZERO {
                pool.push(part);
            }
            left = left.saturating_sub(part);
        }
        Shares { pool, driver: left }
    }
}

/// How the memory of the graphs divides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// Segments of the private pool.
    pub pool: Vec<Bytes>,
    /// What the driver takes for the graphs themselves.
    pub driver: Bytes,
}

impl Shares {
    /// The driver's share of each graph: equal parts, the first takes the rest of the division.
    pub(super) fn by_graph(&self, batches: &[u64]) -> Vec<(u64, Bytes)> {
        let Some(count) = u64::try_from(batches.len()).ok().filter(|n| *n > 0) else {
            return Vec::new();
        };
        let (each, rest) = (self.driver.0 / count, self.driver.0 % count);
        let mut shares: Vec<_> = batches.iter().map(|batch| (*batch, Bytes(each))).collect();
        if let Some((_, first)) = shares.first_mut() {
            *first += Bytes(rest);
        }
        shares.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        shares
    }
}

/// A capture that could not be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureFailed {
    /// A request of a tape was refused.
    #[error(transparent)]
    Tape(#[from] Box<TapeStopped>),
    /// A block or a capture that the allocator does not know.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

/// A source without an end that keeps the sizes that were asked for.
#[derive(Default)]
struct Taken {
    sizes: Vec<Bytes>,
}

impl SegmentSource for Taken {
    fn allocate(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        self.sizes.push(Bytes(size));
        Ok(SegmentAddress(self.sizes.len() as u64))
    }

    fn release(&mut self, _segment: SegmentAddress, _size: u64) -> Result<(), SourceError> {
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, SourceError> {
        Ok(u64::MAX)
    }

    fn reserve(&mut self, _size: u64) -> Result<SegmentAddress, SourceError> {
        Err(SourceError::OutOfMemory)
    }

    fn map(&mut self, _range: SegmentAddress, _offset: u64, _size: u64) -> Result<(), SourceError> {
        Err(SourceError::OutOfMemory)
    }

    fn unmap(
        &mut self,
        _range: SegmentAddress,
        _offset: u64,
        _size: u64,
    ) -> Result<(), SourceError> {
        Ok(())
    }

    fn unreserve(&mut self, _range: SegmentAddress, _size: u64) -> Result<(), SourceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        estimate::shape::{AttentionShape, MlpNames, QkNorm, ShapeInputs},
        tape::{Code, Family, LayerMlp, Setup as TapeSetup, TapeModel, captured_decode},
        units::MIB,
    };
    use proptest::prelude::*;

    fn tapes(batches: &[u64], layers: usize) -> Vec<Tape> {
        let shape = ShapeInputs {
            hidden: 4096,
            attention: AttentionShape::Gqa { q_heads: 32, kv_heads: 8, head_dim: 128 },
            dense_intermediate: 14_336,
            moe: None,
            vocab: 128_256,
            layers: layers as u64,
            mlp_names: MlpNames::Reused,
            qk_norm: QkNorm::Absent,
        };
        let layers = vec![LayerMlp::Dense; layers];
        let model = TapeModel { shape, layers, family: Family::Llama };
        let setup = TapeSetup::plain(Code::Sglang0508, 1);
        let workspace = |nth| if nth == 0 { Bytes::mib(32) } else { Bytes::ZERO };
        let tape = |(nth, batch): (usize, &u64)| {
            captured_decode(&model, &setup, *batch, workspace(nth)).unwrap()
        };
        batches.iter().enumerate().map(tape).collect()
    }

    fn pool(batches: &[u64], layers: usize) -> Bytes {
        Capture::play(batches.to_vec(), &tapes(batches, layers), Bytes::gib(80)).unwrap().pool()
    }

    #[test]
    fn smaller_graphs_reuse_what_the_largest_took() {
        let largest = pool(&[256], 3);
        // Logits of 256 rows in 16 bits, and the workspace.
        assert!(largest.0 > (63 + 32) * MIB, "{largest}");
        let all: Vec<u64> = (1..=32).rev().map(|n| n * 8).collect();
        let taken = pool(&all, 3);
        assert!(taken.0 < largest.0 + largest.0 / 5, "{taken} for all, {largest} for the largest");
        // Smallest first, every size needs blocks of its own.
        let upwards: Vec<u64> = all.iter().rev().copied().collect();
        assert!(pool(&upwards, 3) > taken);
    }

    #[test]
    fn three_layers_take_what_thirty_take() {
        assert_eq!(pool(&[256, 64, 8], 3), pool(&[256, 64, 8], 30));
    }

    proptest! {
        #[test]
        fn shares_are_the_known_sum(
            known in 0..10_000_000_000_u64,
            segments in proptest::collection::vec(1..500_000_000_u64, 0..9),
            graphs in 1..80_usize,
        ) {
            let batches = (0..graphs as u64).collect();
            let pool_segments = segments.into_iter().map(Bytes).collect();
            let capture = Capture { batches, pool_segments };
            let shares = capture.divide(Bytes(known));
            let pool: Bytes = shares.pool.iter().copied().sum();
            prop_assert_eq!(pool + shares.driver, Bytes(known));
            prop_assert!(pool <= capture.pool());
            let driver: Bytes =
                shares.by_graph(&capture.batches).into_iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(driver, shares.driver);
        }
    }
}
