//! Memory that goes back to the device: `empty_cache`, oversize blocks, garbage collection.

use super::{
    Action, CachingAllocator, LARGE_POOL, Misuse, PoolId, ReleaseError, SMALL_POOL, SegmentSource,
    SourceError, malloc::Request, pool::FreeKey,
};

impl CachingAllocator {
    /// Gives everything back that is cached and whole: waits for other streams, then the large pool,
    /// the small pool, and graph pools that no graph uses any more. Split segments stay.
    ///
    /// # Errors
    ///
    /// [`Misuse::CaptureUnderWay`]; [`ReleaseError::Source`].
    ///
    /// Source: torch `emptyCache`, `release_cached_blocks`.
    pub fn empty_cache(&mut self, source: &mut dyn SegmentSource) -> Result<(), ReleaseError> {
        if !self.captures.is_empty() {
            return Err(Misuse::CaptureUnderWay.into());
        }
        Ok(self.release_cached(source)?)
    }

    pub(super) fn release_cached(
        &mut self,
        source: &mut dyn SegmentSource,
    ) -> Result<(), SourceError> {
        self.finish_all_events();
        self.release_pool_blocks(source, LARGE_POOL)?;
        self.release_pool_blocks(source, SMALL_POOL)?;
        let unused: Vec<PoolId> =
            self.private.iter().filter(|(_, pair)| pair.uses == 0).map(|(id, _)| *id).collect();
        for id in unused {
            let Some(pair) = self.private.get(&id).copied() else { continue };
            self.release_pool_blocks(source, pair.small)?;
            self.release_pool_blocks(source, pair.large)?;
            let left = [pair.small, pair.large].map(|pool| self.pools[pool as usize].segments);
            if left == [0, 0] {
                self.private.remove(&id);
                self.vacant_pools.extend([pair.small, pair.large]);
            }
        }
        Ok(())
    }

    /// In the order of the free set: whole segments first, then what growing ranges can give.
    fn release_pool_blocks(
        &mut self,
        source: &mut dyn SegmentSource,
        pool: u32,
    ) -> Result<(), SourceError> {
        let free: Vec<u32> =
            self.pools[pool as usize].free.iter().map(|(_, index)| index).collect();
        let (growing, plain): (Vec<u32>, Vec<u32>) =
            free.into_iter().partition(|index| self.blocks[*index].grows);
        for index in plain {
            if !self.blocks[index].is_split() {
                self.release_segment(source, index)?;
            }
        }
        for index in growing {
            self.unmap(source, index)?;
        }
        Ok(())
    }

    /// Gives a plain segment back whose one block is free.
    fn release_segment(
        &mut self,
        source: &mut dyn SegmentSource,
        index: u32,
    ) -> Result<(), SourceError> {
        let block = self.blocks[index];
        let Some(segment) = self.segments.get(block.segment).copied() else { return Ok(()) };
        source.release(segment.source, block.size)?;
        self.take_out(index);
        self.trace.push(Action::SegmentFree, block.address, block.size, block.stream);
        self.stats.reserved.shrink(block.size);
        self.stats.segments.shrink(1);
        self.stats.num_device_free += 1;
        self.forget_segment(index);
        Ok(())
    }

    /// Drops a segment and its last block, which is in no set.
    pub(super) fn forget_segment(&mut self, index: u32) {
        let block = self.blocks[index];
        self.segments.remove(block.segment);
        self.blocks.remove(index);
        self.pools[block.pool as usize].segments -= 1;
    }

    /// Releases oversize blocks of the request's pool and stream: the smallest one that would do, or
    /// from the largest down until together they would. Answers whether enough went back.
    ///
    /// Source: torch `release_available_cached_blocks`.
    pub(super) fn release_oversize(
        &mut self,
        source: &mut dyn SegmentSource,
        request: &Request,
    ) -> Result<bool, SourceError> {
        let Some(max) = self.options.max_split_size else { return Ok(false) };
        let enough = request.rounded.max(max);
        let free = &self.pools[request.pool as usize].free;
        let least = FreeKey::least(request.stream, enough);
        let fits = |index: u32| !self.blocks[index].grows && !self.blocks[index].is_split();
        let smallest = free.from(&least).next();
        if let Some((key, index)) = smallest
            && key.stream == request.stream
            && fits(index)
        {
            self.release_segment(source, index)?;
            return Ok(true);
        }
        let mut sum = 0;
        let mut chosen = Vec::new();
        let oversize = free.from(&FreeKey::least(request.stream, max));
        let oversize: Vec<_> = oversize.take_while(|(key, _)| *key < least).collect();
        for (key, index) in oversize.into_iter().rev() {
            if sum >= enough {
                break;
            }
            if fits(index) {
                sum += key.size;
                chosen.push(index);
            }
        }
        for index in chosen {
            self.release_segment(source, index)?;
        }
        Ok(sum >= enough)
    }

    /// Releases whole segments of the default large pool that were not used for long, above the
    /// threshold: again and again those at least as old as the mean of what is left.
    ///
    /// Source: torch `garbage_collect_cached_blocks`.
    pub(super) fn collect_garbage(
        &mut self,
        source: &mut dyn SegmentSource,
    ) -> Result<(), SourceError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let threshold = (self.options.garbage_collection_threshold * limit as f64) as u64;
        let Some(target) = self.stats.reserved.current.checked_sub(threshold) else {
            return Ok(());
        };
        let pool = &self.pools[LARGE_POOL as usize];
        let mut candidates: Vec<(u32, u64)> = pool
            .free
            .iter()
            .map(|(_, index)| index)
            .filter(|index| !self.blocks[*index].grows && !self.blocks[*index].is_split())
            .map(|index| (index, pool.searches - self.blocks[index].searches))
            .collect();
        let mut reclaimed = 0;
        while reclaimed < target && !candidates.is_empty() {
            let total: u64 = candidates.iter().map(|(_, age)| age).sum();
            let mean = total as f64 / candidates.len() as f64;
            let (old, kept): (Vec<_>, Vec<_>) =
                candidates.into_iter().partition(|(_, age)| *age as f64 >= mean);
            if old.is_empty() {
                break;
            }
            for (index, _) in old {
                reclaimed += self.blocks[index].size;
                self.release_segment(source, index)?;
            }
            candidates = kept;
        }
        Ok(())
    }
}
