//! Checks of ranges: addresses without memory, and memory mapped into parts of them.

use super::{
    Asked, Bench, Verdict, capacity, ensure, free_of, near, not_now, of, ranks, see, unchanged,
};
use super::{device, did, unknown};
use crate::{
    backend::{Backend, Place, Rank},
    memory::ledger::Account,
    units::Bytes,
};

/// Addresses cost nothing; what is mapped is missing from the free memory, and comes back.
pub(super) fn ranges<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    for rank in ranks(machine) {
        let at_rest = see(machine)?;
        let free = free_of(machine, rank)?;
        // An engine reserves more than the device holds (PyTorch: an eighth more).
        let wide = capacity(machine, rank)?.round_up_to(bench.unit) + bench.units(4);
        let range = did("reserve", machine.reserve(rank, Account::Activations, wide))?;
        unchanged("after addresses were reserved", &at_rest, &see(machine)?, bench)?;
        did("map", machine.map(range, Bytes::ZERO, bench.units(3)))?;
        did("map", machine.map(range, bench.units(6), bench.units(2)))?;
        let left = free.saturating_sub(bench.units(5));
        near("free after parts were mapped", free_of(machine, rank)?, left, bench.device_slack)?;
        let row = of(&did("held", machine.held(rank))?, Account::Activations);
        near("the row of the range", row, bench.units(5), bench.device_slack)?;
        did("unmap", machine.unmap(range, bench.units(6), bench.units(2)))?;
        let left = free.saturating_sub(bench.units(3));
        near("free after a part was unmapped", free_of(machine, rank)?, left, bench.device_slack)?;
        did("unmap", machine.unmap(range, Bytes::ZERO, bench.units(3)))?;
        did("unreserve", machine.unreserve(range))?;
        unknown("a second unreserve", machine.unreserve(range))?;
        unknown("map after unreserve", machine.map(range, Bytes::ZERO, bench.unit))?;
        unchanged("after all was unmapped", &at_rest, &see(machine)?, bench)?;
    }
    Ok(())
}

/// A part beyond the range or the memory is refused, and a mapped range keeps its addresses.
pub(super) fn refused_ranges<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let rank = Rank(0);
    let at_rest = see(machine)?;
    let free = free_of(machine, rank)?;
    let wide = capacity(machine, rank)?.round_up_to(bench.unit) + bench.units(4);
    let range = did("reserve", machine.reserve(rank, Account::Activations, wide))?;
    did("map", machine.map(range, bench.unit, bench.units(2)))?;
    let pool = device(machine, rank, Account::KvPool, bench.unit)?;
    let filled = see(machine)?;

    unknown("unreserve while mapped", machine.unreserve(range))?;
    unknown("a part beyond the range", machine.map(range, wide, bench.unit))?;
    let end = Bytes(wide.0 - bench.unit.0);
    unknown("a part across the end", machine.map(range, end, bench.units(2)))?;
    unknown("a part that is not mapped", machine.unmap(range, bench.units(8), bench.unit))?;
    let most = Bytes(free.0 / bench.unit.0 * bench.unit.0);
    let left = free_of(machine, rank)?;
    let (account, free) = (Account::Activations, (left, bench.device_slack));
    let asked = Asked { rank, account, place: Place::Device, size: most, free };
    let result = machine.map(range, bench.units(3), most);
    not_now("a part larger than what is free", result, asked)?;
    unchanged("after refusals", &filled, &see(machine)?, bench)?;

    did("unmap", machine.unmap(range, bench.unit, bench.units(2)))?;
    did("unreserve", machine.unreserve(range))?;
    did("free", machine.free(pool))?;
    unchanged("after all was freed", &at_rest, &see(machine)?, bench)
}

/// Parts are unmapped as they please: a piece of one call's, or pieces of two calls' together. No part is
/// mapped twice, and none is unmapped that is not whole.
pub(super) fn parts_of_ranges<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let rank = Rank(0);
    let at_rest = see(machine)?;
    let free = free_of(machine, rank)?;
    let range = did("reserve", machine.reserve(rank, Account::Activations, bench.units(12)))?;
    let at = |n: u64| bench.units(n);
    did("map", machine.map(range, at(0), at(4)))?;
    did("map", machine.map(range, at(4), at(2)))?;
    // A hole in the first call's part, filled again.
    did("unmap a piece", machine.unmap(range, at(1), at(1)))?;
    let left = free.saturating_sub(at(5));
    near("free after a piece was unmapped", free_of(machine, rank)?, left, bench.device_slack)?;
    let holed = see(machine)?;
    unknown("unmap across a hole", machine.unmap(range, at(0), at(3)))?;
    unknown("map over what is mapped", machine.map(range, at(1), at(2)))?;
    unknown("map the same part", machine.map(range, at(4), at(2)))?;
    unchanged("after refusals", &holed, &see(machine)?, bench)?;
    did("map the hole", machine.map(range, at(1), at(1)))?;
    // The end of the first call's part and the beginning of the second's.
    did("unmap across two calls", machine.unmap(range, at(3), at(2)))?;
    let left = free.saturating_sub(at(4));
    near("free after pieces of two", free_of(machine, rank)?, left, bench.device_slack)?;
    let still = machine.unreserve(range);
    ensure(still.is_err(), || "a range that is mapped in parts was given back".to_owned())?;
    did("unmap the rest", machine.unmap(range, at(0), at(3)))?;
    did("unmap the rest", machine.unmap(range, at(5), at(1)))?;
    did("unreserve", machine.unreserve(range))?;
    unchanged("after all was unmapped", &at_rest, &see(machine)?, bench)
}
