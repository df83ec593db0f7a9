//! Checks of what a machine executes, and of a whole life in small.

use super::{Bench, Verdict, device, did, ensure, free_of, near, of, ranks, see, unchanged};
use crate::{
    backend::{Backend, KvMove, Place, Rank, StepWork},
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};

/// A graph costs at least what is planned, on its account, and is given back like a segment.
pub(super) fn graphs<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    for rank in ranks(machine) {
        let at_rest = see(machine)?;
        let row =
            |machine: &B| Ok::<_, String>(of(&did("held", machine.held(rank))?, Account::Graphs));
        let mut graphs = Vec::new();
        for batch in [1, 8] {
            let (free, before) = (free_of(machine, rank)?, row(machine)?);
            graphs.push(did("capture", machine.capture(rank, batch, bench.units(2)))?);
            let cost = free.saturating_sub(free_of(machine, rank)?);
            let least = bench.units(2).saturating_sub(bench.device_slack);
            ensure(cost >= least, || format!("a graph costs {cost:?}, less than planned"))?;
            let grown = row(machine)?.saturating_sub(before);
            near("the row of graphs", grown, cost, bench.device_slack)?;
        }
        for graph in graphs {
            did("free a graph", machine.free(graph))?;
        }
        unchanged("after graphs were freed", &at_rest, &see(machine)?, bench)?;
    }
    Ok(())
}

/// A pass takes the model's time, whatever the device took, and holds nothing afterwards; nor does a move.
pub(super) fn passes_and_moves<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let live = device(machine, Rank(0), Account::Activations, bench.unit)?;
    let before = see(machine)?;
    for (mode, tokens, time) in
        [(Mode::Prefill, 8192, 7_000_000), (Mode::Decode, 32, 20_000), (Mode::Mixed, 0, 0)]
    {
        let step = StepWork { mode, tokens, requests: 4, time: Nanos(time) };
        let report = did("execute", machine.execute(&step))?;
        ensure(report.elapsed == step.time, || {
            format!("a pass of {:?} took {:?}", step.time, report.elapsed)
        })?;
    }
    unchanged("after passes", &before, &see(machine)?, bench)?;
    did("free", machine.free(live))?;
    ranks(machine).try_for_each(|rank| moves(machine, rank, bench))
}

/// KV moves between pools on both sides.
fn moves<B: Backend>(machine: &mut B, rank: Rank, bench: &Bench) -> Verdict {
    let pool = |machine: &mut B, place| {
        did("allocate", machine.allocate(rank, Account::KvPool, place, bench.units(4)))
    };
    let pools = [pool(machine, Place::Device)?, pool(machine, Place::Host)?];
    let before = see(machine)?;
    for size in [Bytes::ZERO, Bytes(1), bench.units(3)] {
        did("move_kv", machine.move_kv(rank, KvMove::ToHost, size))?;
        did("move_kv", machine.move_kv(rank, KvMove::ToDevice, size))?;
    }
    unchanged("after moves", &before, &see(machine)?, bench)?;
    pools.into_iter().try_for_each(|segment| did("free", machine.free(segment)))
}

/// A server's life in small on every rank at once; when it ends, the machine is as it was.
pub(super) fn all_comes_back<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let at_rest = see(machine)?;
    let mut segments = Vec::new();
    let mut mapped = Vec::new();
    for rank in ranks(machine) {
        for account in [Account::Context, Account::Weights, Account::KvPool, Account::Workspaces] {
            segments.push(device(machine, rank, account, bench.unit)?);
        }
        segments.push(did("capture", machine.capture(rank, 4, bench.unit))?);
        let range = did("reserve", machine.reserve(rank, Account::Activations, bench.units(6)))?;
        did("map", machine.map(range, Bytes::ZERO, bench.units(2)))?;
        did("map", machine.map(range, bench.units(4), bench.unit))?;
        mapped.push(range);
    }
    let pool = machine.allocate(Rank(0), Account::KvPool, Place::Host, bench.unit);
    segments.push(did("allocate", pool)?);
    let step = StepWork { mode: Mode::Decode, tokens: 4, requests: 4, time: Nanos(1) };
    did("execute", machine.execute(&step))?;
    // The order of the end is another than that of the beginning.
    segments.reverse();
    for segment in segments {
        did("free", machine.free(segment))?;
    }
    for range in mapped {
        did("unmap", machine.unmap(range, bench.units(4), bench.unit))?;
        did("unmap", machine.unmap(range, Bytes::ZERO, bench.units(2)))?;
        did("unreserve", machine.unreserve(range))?;
    }
    unchanged("after everything ended", &at_rest, &see(machine)?, bench)
}
