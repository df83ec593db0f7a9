//! The KV pool: pages of token slots, each of which can be lent back to the system and taken again.
//!
//! A page holds consecutive positions of one request for all layers. Inside it stand layer after layer, head
//! after head, first the keys and then the values of all its positions: what one attention reads of a page
//! is one stretch.

use plimsoll_core::{
    model::encoding::{bf16_to_f32, e4m3_to_f32, f16_to_f32, f32_to_bf16, f32_to_e4m3, f32_to_f16},
    policy::plimsoll::{KvCell, KvFormat},
    units::Bytes,
};

use super::page::Page;

/// A stored value.
pub(super) trait Stored: bytemuck::Pod + Send + Sync {
    /// As float32, exactly.
    fn wide(self) -> f32;
    /// Rounded to what is stored.
    fn narrow(value: f32) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

/// The bits of a float16.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(super) struct Half(u16);

impl Stored for Half {
    #[inline(always)]
    fn wide(self) -> f32 {
        f16_to_f32(self.0)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(f32_to_f16(value))
    }
}

/// The bits of a bfloat16.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(super) struct Brain(u16);

impl Stored for Brain {
    #[inline(always)]
    fn wide(self) -> f32 {
        bf16_to_f32(self.0)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(f32_to_bf16(value))
    }
}

/// The bits of a float8 of 4 exponent and 3 mantissa bits.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(super) struct Eight(u8);

impl Stored for Eight {
    #[inline(always)]
    fn wide(self) -> f32 {
        e4m3_to_f32(self.0)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self(f32_to_e4m3(value))
    }
}

/// Why a page is not lent or taken back. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// No such page.
    #[error("page {page} is not one of the pool's {pages}")]
    NoPage {
        /// As given.
        page: u32,
        /// Pages of the pool.
        pages: usize,
    },
    /// It is lent already.
    #[error("page {page} is lent already")]
    Lent {
        /// As given.
        page: u32,
    },
    /// It is not lent.
    #[error("page {page} is here already")]
    Here {
        /// As given.
        page: u32,
    },
    /// The kernel refuses the mapping.
    #[error("page {page} of {bytes} is refused: {message}")]
    Refused {
        /// As given.
        page: u32,
        /// Its size.
        bytes: Bytes,
        /// The system's answer.
        message: String,
    },
}

/// Pages by number; what is lent has no memory.
#[derive(Debug)]
pub struct KvPool {
    cell: KvCell,
    page_bytes: Bytes,
    pages: Vec<Option<Page>>,
    lent: usize,
}

/// Size of the system's pages.
#[must_use]
pub fn system_page() -> Bytes {
    Bytes(page_size::get() as u64)
}

impl KvPool {
    /// A pool of zeros, all of it in RAM.
    pub(super) fn new(cell: KvCell, pages: usize) -> Result<Self, PoolError> {
        let page_bytes = cell.page_bytes(system_page());
        let mut pool = Self { cell, page_bytes, pages: Vec::with_capacity(pages), lent: 0 };
        for page in 0..pages {
            let new = pool.map(page as u32)?;
            pool.pages.push(Some(new));
        }
        Ok(pool)
    }

    fn map(&self, page: u32) -> Result<Page, PoolError> {
        let bytes = self.page_bytes;
        Page::new(bytes.0 as usize).map_err(|error| PoolError::Refused {
            page,
            bytes,
            message: error.to_string(),
        })
    }

    /// Gives a page's memory back to the system; what it held is lost.
    ///
    /// # Errors
    /// [`PoolError`] for no such page and one that is lent already.
    pub(super) fn lend(&mut self, page: u32) -> Result<(), PoolError> {
        let pages = self.pages.len();
        let place = self.pages.get_mut(page as usize).ok_or(PoolError::NoPage { page, pages })?;
        match place.take() {
            Some(_) => {
                self.lent += 1;
                Ok(())
            }
            None => Err(PoolError::Lent { page }),
        }
    }

    /// Takes a lent page's memory again, touched; it holds zeros.
    ///
    /// # Errors
    /// [`PoolError`] for no such page, one that is here, and a mapping that the kernel refuses.
    pub(super) fn take_back(&mut self, page: u32) -> Result<(), PoolError> {
        let pages = self.pages.len();
        match self.pages.get(page as usize) {
            None => Err(PoolError::NoPage { page, pages }),
            Some(Some(_)) => Err(PoolError::Here { page }),
            Some(None) => {
                let new = self.map(page)?;
                self.pages[page as usize] = Some(new);
                self.lent -= 1;
                Ok(())
            }
        }
    }

    /// What a token and a page take.
    #[must_use]
    pub const fn cell(&self) -> &KvCell {
        &self.cell
    }

    /// Size of a page in whole pages of the system.
    #[must_use]
    pub const fn page_bytes(&self) -> Bytes {
        self.page_bytes
    }

    /// Pages, lent ones included.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Pages that are lent.
    #[must_use]
    pub const fn lent(&self) -> usize {
        self.lent
    }

    /// Whether a page is there and not lent.
    #[must_use]
    pub fn is_here(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(Option::is_some)
    }

    /// Bytes of the pages that are not lent.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.page_bytes.0 * (self.pages.len() - self.lent) as u64
    }

    /// One head of one layer.
    pub(super) const fn head(&self, layer: usize, head: usize) -> HeadKv<'_> {
        HeadKv { pool: self, start: self.start(layer, head) }
    }

    /// First value of a head's keys in a page.
    const fn start(&self, layer: usize, head: usize) -> usize {
        (layer * self.cell.kv_heads as usize + head) * 2 * self.side()
    }

    /// Values of the keys of one head in a page.
    const fn side(&self) -> usize {
        (self.cell.page_tokens * self.cell.head_dim) as usize
    }

    /// Writes the keys and values of one token; false when page or layer is not there.
    pub(super) fn store(
        &mut self,
        layer: usize,
        (page, at): (u32, usize),
        keys: &[f32],
        values: &[f32],
    ) -> bool {
        match self.cell.format {
            KvFormat::F32 => self.store_as::<f32>(layer, (page, at), keys, values),
            KvFormat::F16 => self.store_as::<Half>(layer, (page, at), keys, values),
            KvFormat::Bf16 => self.store_as::<Brain>(layer, (page, at), keys, values),
            KvFormat::Fp8E4m3 => self.store_as::<Eight>(layer, (page, at), keys, values),
        }
    }

    fn store_as<T: Stored>(
        &mut self,
        layer: usize,
        (page, at): (u32, usize),
        keys: &[f32],
        values: &[f32],
    ) -> bool {
        let (first, side, head_dim) =
            (self.start(layer, 0), self.side(), self.cell.head_dim as usize);
        let Some(Some(page)) = self.pages.get_mut(page as usize) else { return false };
        let all: &mut [T] = bytemuck::cast_slice_mut(page.bytes_mut());
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (head, (keys, values)) in heads.enumerate() {
            let start = first + head * 2 * side + at * head_dim;
            for (start, from) in [(start, keys), (start + side, values)] {
                let Some(to) = all.get_mut(start..start + head_dim) else { return false };
                for (to, from) in to.iter_mut().zip(from) {
                    *to = T::narrow(*from);
                }
            }
        }
        true
    }
}

/// Keys and values of one head in one layer.
#[derive(Clone, Copy)]
pub(super) struct HeadKv<'a> {
    pool: &'a KvPool,
    start: usize,
}

impl<'a> HeadKv<'a> {
    pub(super) const fn page_tokens(self) -> usize {
        self.pool.cell.page_tokens as usize
    }

    /// Keys, then values, of all positions of a page; empty for one that is not there.
    #[inline(always)]
    pub(super) fn page<T: Stored>(self, page: u32) -> (&'a [T], &'a [T]) {
        let Some(Some(page)) = self.pool.pages.get(page as usize) else { return (&[], &[]) };
        let all: &[T] = bytemuck::cast_slice(page.bytes());
        let side = self.pool.side();
        let both = all.get(self.start..self.start + 2 * side).unwrap_or_default();
        both.split_at(side.min(both.len()))
    }
}
