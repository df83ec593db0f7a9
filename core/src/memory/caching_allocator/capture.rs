//! Private pools: what the capture of a CUDA graph allocates, and keeps for its replays.

use super::{
    CachingAllocator, CaptureScope, Misuse, PoolId, SizeClass, StreamId,
    pool::{Pool, PrivatePool},
};

impl CachingAllocator {
    /// From now on requests in `scope` are served from the pool `id`, which is made when it is new;
    /// each call counts as one more use (a graph that shares the pool).
    ///
    /// # Errors
    ///
    /// [`Misuse::DefaultPool`]; [`Misuse::NoSuchPool`] for a pool whose uses are all gone.
    ///
    /// Source: torch `beginAllocateToPool`.
    pub fn begin_capture(&mut self, id: PoolId, scope: CaptureScope) -> Result<(), Misuse> {
        self.use_pool(id)?;
        self.captures.push((id, scope));
        Ok(())
    }

    /// Ends the captures into `id`; its blocks stay reserved for replays.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchPool`] when none is under way.
    ///
    /// Source: torch `endAllocateToPool`.
    pub fn end_capture(&mut self, id: PoolId) -> Result<(), Misuse> {
        let before = self.captures.len();
        self.captures.retain(|(pool, _)| *pool != id);
        if self.captures.len() == before { Err(Misuse::NoSuchPool) } else { Ok(()) }
    }

    /// One use of the pool is gone (a graph was destroyed). With the last one its free segments can go
    /// back, at the next `empty_cache` or the next retry.
    ///
    /// # Errors
    ///
    /// [`Misuse::NoSuchPool`] for a pool without uses.
    ///
    /// Source: torch `releasePool`.
    pub fn release_pool(&mut self, id: PoolId) -> Result<(), Misuse> {
        let pair = self.private.get_mut(&id).filter(|pair| pair.uses > 0);
        pair.ok_or(Misuse::NoSuchPool)?.uses -= 1;
        Ok(())
    }

    /// Lets requests of the default pool take free blocks of this one before they fail, once a pool
    /// (`MemPool(use_on_oom=True)`, torch 2.9 and later). Counts as a use.
    ///
    /// # Errors
    ///
    /// As [`Self::begin_capture`].
    pub fn lend_pool(&mut self, id: PoolId) -> Result<(), Misuse> {
        self.use_pool(id)?.lends = true;
        Ok(())
    }

    fn use_pool(&mut self, id: PoolId) -> Result<&mut PrivatePool, Misuse> {
        if id == PoolId::DEFAULT {
            return Err(Misuse::DefaultPool);
        }
        if self.private.get(&id).is_some_and(|pair| pair.uses == 0) {
            return Err(Misuse::NoSuchPool);
        }
        let pair = self.add_private(id);
        pair.uses += 1;
        Ok(pair)
    }

    /// The pair of pools of `id`, made without a use when it is new.
    pub(super) fn add_private(&mut self, id: PoolId) -> &mut PrivatePool {
        if !self.private.contains_key(&id) {
            let small = self.add_pool(SizeClass::Small, id);
            let large = self.add_pool(SizeClass::Large, id);
            self.private.insert(id, PrivatePool { uses: 0, small, large, lends: false });
        }
        self.private.entry(id).or_insert(PrivatePool { uses: 0, small: 0, large: 1, lends: false })
    }

    fn add_pool(&mut self, class: SizeClass, owner: PoolId) -> u32 {
        let pool = Pool::new(class, owner);
        if let Some(index) = self.vacant_pools.pop() {
            self.pools[index as usize] = pool;
            return index;
        }
        self.pools.push(pool);
        self.pools.len() as u32 - 1
    }

    /// Whether a capture is under way.
    #[must_use]
    pub const fn is_capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// The pool that a request on `stream` would be served from, inside a capture.
    pub(super) fn capturing_pool(&self, stream: StreamId) -> Option<PoolId> {
        let takes = |scope: &CaptureScope| match scope {
            CaptureScope::AnyStream => true,
            CaptureScope::Stream(one) => *one == stream,
        };
        self.captures.iter().find(|(_, scope)| takes(scope)).map(|(id, _)| *id)
    }
}
