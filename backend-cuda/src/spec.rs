//! Which cards stand for which ranks, and what each rank is told about its memory.

use plimsoll_core::units::Bytes;

/// Page of the driver for physical memory and for plain allocations above 1 MiB.
///
/// Source: PyTorch's expandable segments and NCCL align to it; measured on consumer and data-centre cards.
pub(crate) const PAGE: Bytes = Bytes::mib(2);

/// What a rank is told about its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// The card itself: readings are the driver's, and the driver alone refuses.
    Whole,
    /// A declared device, held in real memory of the card: readings are computed from the
    /// declaration and decide; the card's own are reported beside them.
    Declared(Declared),
}

/// A device as a scenario declares it; the same meaning as the simulator's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declared {
    /// Physical memory.
    pub capacity: Bytes,
    /// What the vendor's tool prints; `None` when it cannot say.
    pub tool_capacity: Option<Bytes>,
    /// What programs read as total; `None` when the reading fails.
    pub total: Option<Bytes>,
    /// What the driver keeps; no program sees it. Not held on the card.
    pub driver_reserve: Bytes,
    /// Held by other programs at the start; held on the card as ballast.
    pub others: Bytes,
    /// Segments are rounded up to a multiple of this; 0 keeps declared sizes exact (the card still
    /// takes whole pages).
    pub granularity: Bytes,
}

impl Declared {
    /// What programs can hold in all.
    #[must_use]
    pub const fn usable(&self) -> Bytes {
        self.capacity.saturating_sub(self.driver_reserve)
    }
}

/// One rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankSpec {
    /// CUDA ordinal of the card (after `CUDA_VISIBLE_DEVICES`). Several ranks with declared shares
    /// may stand on one card.
    pub device: u32,
    /// What it is told.
    pub share: Share,
}

/// Host memory of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSpec {
    /// What programs can still take at the start; `None` reads the kernel's `MemAvailable`.
    pub available: Option<Bytes>,
    /// Page-locked memory that this process may really take in all. What a host pool takes
    /// beyond it is accounted without memory behind it.
    pub pinned_limit: Bytes,
}

/// A machine of CUDA devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaSpec {
    /// In rank order.
    pub ranks: Vec<RankSpec>,
    /// The host.
    pub host: HostSpec,
    /// Bytes that one call of `move_kv` really copies at most; a larger move is cut there, and
    /// the rest is only accounted.
    pub copy_limit: Bytes,
}

impl CudaSpec {
    /// `ranks` ranks, each the card of its own number, with live readings.
    #[must_use]
    pub fn whole_cards(ranks: u32) -> Self {
        Self::of((0..ranks).map(|device| RankSpec { device, share: Share::Whole }).collect())
    }

    /// Declared ranks, all on card `device` ("virtual ranks").
    #[must_use]
    pub fn on_one_card(device: u32, shares: &[Declared]) -> Self {
        let rank = |share: &Declared| RankSpec { device, share: Share::Declared(*share) };
        Self::of(shares.iter().map(rank).collect())
    }

    /// These ranks, a live host, and bounds that suit a workstation: 4 GiB pinned, 64 MiB copied a
    /// move.
    #[must_use]
    pub const fn of(ranks: Vec<RankSpec>) -> Self {
        let host = HostSpec { available: None, pinned_limit: Bytes::gib(4) };
        Self { ranks, host, copy_limit: Bytes::mib(64) }
    }
}
