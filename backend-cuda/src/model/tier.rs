//! Pages on the host: copies between the pool and page-locked memory on a stream of their own, ordered by
//! events against the steps before and after, and copies inside the pool.

use super::{error::CudaError, inputs::PAIRS_MAX, pages::PageError, rank::Rank, step::CudaModel};
use crate::{
    device::{Failure, Pinned},
    kernels::CopyBlocks,
};
use plimsoll_core::units::Bytes;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToHost,
    ToDevice,
}

impl CudaModel {
    /// Copies pages to slots on the host, pair by pair. It returns before they are there; steps and copies
    /// that come after wait for it on the device.
    ///
    /// # Errors
    /// [`CudaError`] for pages and slots that are not there, and lists of different lengths.
    pub fn save(&mut self, pages: &[u32], slots: &[u32]) -> Result<(), CudaError> {
        self.move_pages(pages, slots, Way::ToHost)
    }

    /// Copies slots of the host back to pages; as [`Self::save`].
    ///
    /// # Errors
    /// As [`Self::save`].
    pub fn restore(&mut self, slots: &[u32], pages: &[u32]) -> Result<(), CudaError> {
        self.move_pages(pages, slots, Way::ToDevice)
    }

    fn move_pages(&self, pages: &[u32], slots: &[u32], way: Way) -> Result<(), CudaError> {
        self.check_pages(pages)?;
        same_length(pages, slots)?;
        let most = self.machine.options.host_pages;
        if let Some(slot) = slots.iter().find(|slot| u64::from(**slot) >= most) {
            let allowed = format!("below {most}");
            let (what, value) = ("slot of the host", u64::from(*slot));
            return Err(CudaError::Option { what, value, allowed });
        }
        for rank in &self.machine.ranks {
            let moved = rank.move_pages(pages, slots, way);
            moved.map_err(rank.told("pages on the host", Bytes::ZERO))?;
        }
        Ok(())
    }

    /// Copies pages of the pool to other pages of it. It waits until they are there.
    ///
    /// # Errors
    /// [`CudaError`] for pages that are not there, and lists of different lengths.
    pub fn copy_pages(&mut self, from: &[u32], to: &[u32]) -> Result<(), CudaError> {
        self.check_pages(from)?;
        self.check_pages(to)?;
        same_length(from, to)?;
        for rank in &mut self.machine.ranks {
            for (from, to) in from.chunks(PAIRS_MAX).zip(to.chunks(PAIRS_MAX)) {
                let copied = rank.copy_pages(from, to);
                copied.map_err(rank.told("a copy of pages", Bytes::ZERO))?;
            }
        }
        Ok(())
    }

    fn check_pages(&self, pages: &[u32]) -> Result<(), CudaError> {
        let here = &self.machine.pages;
        match pages.iter().find(|page| !here.is_here(**page)) {
            Some(page) if (*page as usize) < here.count() => {
                Err(PageError::Lent { page: *page }.into())
            }
            Some(page) => Err(PageError::NoPage { page: *page, pages: here.count() }.into()),
            None => Ok(()),
        }
    }
}

fn same_length(a: &[u32], b: &[u32]) -> Result<(), CudaError> {
    if a.len() == b.len() {
        return Ok(());
    }
    let allowed = format!("{}, as many as on the other side", a.len());
    Err(CudaError::Option { what: "pages of a copy", value: b.len() as u64, allowed })
}

impl Rank {
    fn move_pages(&self, pages: &[u32], slots: &[u32], way: Way) -> Result<(), Failure> {
        let none = || Failure::misuse("pages on the host", "there are none");
        let tier: &Pinned = self.tier.as_ref().ok_or_else(none)?;
        // Behind the steps so far, and before those that come.
        self.computed.record(&self.compute)?;
        self.copy.wait(&self.computed)?;
        let size = self.page_bytes;
        for (page, slot) in pages.iter().zip(slots) {
            let place = self.pool.part(u64::from(*page) * size, size)?;
            let offset = u64::from(*slot) * size;
            match way {
                Way::ToHost => self.copy.copy_out(tier, offset, place)?,
                Way::ToDevice => self.copy.copy_in(place, tier, offset)?,
            }
        }
        self.copied.record(&self.copy)?;
        self.compute.wait(&self.copied)
    }

    fn copy_pages(&mut self, from: &[u32], to: &[u32]) -> Result<(), Failure> {
        let layout = &self.sketch.inputs;
        let pairs = from.iter().copied().zip(to.iter().copied());
        let count = {
            let mut words = self.up.write::<u32>()?;
            layout.write_pairs(&mut words, pairs)
        };
        let (place, pool) = (self.input(layout.pairs)?, self.pool.pointer());
        self.compute.copy_in(place, &self.up, layout.pairs.offset())?;
        let of = CopyBlocks {
            to: pool,
            from: pool,
            pairs: place,
            count: count as u32,
            block_bytes: self.page_bytes,
        };
        self.kernels.copy_blocks(&self.compute, &of)?;
        self.compute.synchronize()
    }
}
