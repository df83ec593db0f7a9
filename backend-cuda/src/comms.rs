//! Sums over the devices of one process, by NCCL.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::DevicePointer;
use crate::ffi::nccl::{Nccl, NcclData, NcclResult, RawComm};
use crate::gemm::Float;
use crate::stream::Stream;
use std::rc::Rc;

/// Devices that sum together, one rank a card.
pub struct Comms {
    nccl: &'static Nccl,
    cards: Vec<Rc<Card>>,
    members: Vec<RawComm>,
}

/// One rank's part in a sum.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Its numbers, which become the sum.
    pub place: DevicePointer,
    /// The stream on which that happens.
    pub stream: &'a Stream,
}

/// Numbers that are summed; `None` is float32.
pub type SumFloat = Option<Float>;

impl Comms {
    /// Joins cards; rank r is `cards[r]`. Takes device memory of its own on each, now and at the
    /// first sum.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Missing` when the library is not found.
    pub fn new(cards: &[Rc<Card>]) -> Result<Self, Failure> {
        let nccl = Nccl::load()?;
        let first = cards.first().ok_or_else(|| Failure::misuse("ncclCommInitAll", "no cards"))?;
        let ordinals: Vec<i32> = cards.iter().map(|card| card.ordinal().cast_signed()).collect();
        first.enter()?;
        let joined = nccl.join(&ordinals);
        let mut made = Self { nccl, cards: cards.to_vec(), members: Vec::new() };
        made.members = joined.map_err(|result| made.failed("ncclCommInitAll", result))?;
        Ok(made)
    }

    /// Release of the library: 10000 × major + 100 × minor + patch.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn version(&self) -> Result<i32, Failure> {
        self.nccl.version().map_err(|result| self.failed("ncclGetVersion", result))
    }

    /// Puts a sum of `count` numbers over all ranks on their streams; `parts[r]` is rank r's.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when there are not as many parts as ranks, a place is too short, or a
    /// stream is another card's.
    pub fn all_reduce(
        &self,
        parts: &[Part<'_>],
        count: u64,
        float: SumFloat,
    ) -> Result<(), Failure> {
        const CALL: &str = "ncclAllReduce";
        let width = if float.is_none() { 4 } else { 2 };
        if parts.len() != self.members.len() {
            let what = format!("{} parts for {} ranks", parts.len(), self.members.len());
            return Err(Failure::misuse(CALL, what));
        }
        for (rank, (part, card)) in parts.iter().zip(&self.cards).enumerate() {
            let short = count.checked_mul(width).is_none_or(|bytes| bytes > part.place.size());
            if short || !Rc::ptr_eq(part.stream.card(), card) {
                let what = format!("rank {rank}: {} bytes for {count}", part.place.size());
                return Err(Failure::misuse(CALL, what));
            }
        }
        let data = match float {
            None => NcclData::F32,
            Some(Float::Bf16) => NcclData::Bf16,
            Some(Float::F16) => NcclData::F16,
        };
        self.all("ncclGroupStart", self.nccl.group_start())?;
        let put = self.put(parts, count, data);
        // What was begun is ended, whatever was put.
        let ended = self.all("ncclGroupEnd", self.nccl.group_end());
        put.and(ended)
    }

    fn put(&self, parts: &[Part<'_>], count: u64, data: NcclData) -> Result<(), Failure> {
        for ((part, member), card) in parts.iter().zip(&self.members).zip(&self.cards) {
            card.enter()?;
            let what = (part.place, count, data);
            let done = self.nccl.all_reduce(member, what, part.stream.raw()?);
            self.all("ncclAllReduce", done)?;
        }
        Ok(())
    }

    fn all(&self, call: &'static str, result: Result<(), NcclResult>) -> Result<(), Failure> {
        result.map_err(|result| self.failed(call, result))
    }

    /// NCCL says "unhandled CUDA error" of much: its text tells a lack of memory, each driver whether
    /// it is lost; the rest is the library's own status.
    fn failed(&self, call: &'static str, result: NcclResult) -> Failure {
        if self.nccl.lacked_memory(result) {
            return Failure::OutOfMemory(call);
        }
        let failure = Failure::Library { call, name: self.nccl.name(result), code: result.0 };
        let lost = |card: &Rc<Card>| match card.library(failure.clone()) {
            lost @ Failure::Lost(_) => Some(lost),
            _ => None,
        };
        self.cards.iter().find_map(lost).unwrap_or_else(|| failure.clone())
    }
}

impl Drop for Comms {
    fn drop(&mut self) {
        let open = self.cards.iter().all(|card| card.enter().is_ok());
        for member in self.members.drain(..).filter(|_| open) {
            let _ = self.nccl.destroy(member);
        }
    }
}
