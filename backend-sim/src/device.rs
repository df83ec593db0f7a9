//! One rank's device: who holds what of it.

use crate::{accounts::Accounts, pages::Pages, spec::DeviceSpec};
use plimsoll_core::{
    device::{CUDA_GRANULARITY, cuda_malloc_footprint},
    units::Bytes,
};

/// State of one rank's device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    /// The server's.
    pub(crate) accounts: Accounts,
    /// Other programs, as set.
    pub(crate) others: Bytes,
    /// Tenants of the machine's faults.
    pub(crate) tenants: Bytes,
    /// Units opened for small segments; their room counts as the server's context.
    pub(crate) pages: Pages,
    /// Host pools of this rank.
    pub(crate) host_pools: Bytes,
    /// Addresses reserved.
    pub(crate) reserved: Bytes,
    /// Readings answered.
    pub(crate) readings: u64,
}

/// How a segment comes to lie on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// In units of its own, this much in all.
    Whole(Bytes),
    /// In a part of a unit that it shares.
    Shared(Bytes),
}

impl Device {
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        Self {
            spec,
            accounts: Accounts::default(),
            others: spec.others,
            tenants: Bytes::ZERO,
            pages: Pages::default(),
            host_pools: Bytes::ZERO,
            reserved: Bytes::ZERO,
            readings: 0,
        }
    }

    /// Held by programs that are not the server.
    pub(crate) fn foreign(&self) -> Bytes {
        self.others + self.tenants
    }

    /// Held by anybody.
    pub(crate) fn held(&self) -> Bytes {
        self.foreign() + self.accounts.total()
    }

    /// What a segment of `size` (at most the device) takes. Source: measured footprints of `cudaMalloc`
    /// ([`cuda_malloc_footprint`]).
    pub(crate) fn fit(&self, size: Bytes) -> Fit {
        let unit = self.spec.granularity;
        let carves = unit >= CUDA_GRANULARITY && size > Bytes::ZERO && size.0 <= unit.0 / 2;
        if carves {
            Fit::Shared(cuda_malloc_footprint(size))
        } else {
            Fit::Whole(size.round_up_to(unit))
        }
    }
}
