//! SGLang's laptop backend: one memory for everything on the machine.

use super::{Basis, CapacityReading, Case, CaseError, ModelKind, Policy, Prepared};
use plimsoll_backend_sim::{
    CommonMemory, DeviceMemory, DeviceSpec, FreeReading, HostSpec, MachineSpec,
};
use plimsoll_core::{
    device::MetalWorkingSet,
    engine::{
        MlxShape, MlxStart,
        startup::{Capture, RankLoad},
    },
    estimate::Figure,
    figure::{Estimate, Tag, Why},
    policy::sglang::args::{Platform, ServerArgs},
    units::Bytes,
};

/// Whether the launch runs on this backend.
pub(super) fn applies(args: &ServerArgs) -> bool {
    args.platform == Platform::Mlx
}

pub(super) fn prepare(case: &Case, args: &ServerArgs) -> Result<Prepared, CaseError> {
    let load = load(case)?;
    let after = available_after_load(case, &load)?;
    let before = after.value.mid + load.value.mid;
    let ram = case.device.metal.as_ref().map_or(case.device.runtime_total.value.mid, |m| m.ram);
    let host = &case.facts.host;
    let others = host.others.unwrap_or_default();
    let capacity = host.ram.unwrap_or(ram).max(before + others);
    let set = match (&case.facts.working_set, case.capacity, &case.device.metal) {
        (Some(fact), ..) => Some(fact.least()),
        (None, CapacityReading::Known(bytes), _) => Some(bytes),
        (None, CapacityReading::Unknown, _) => None,
        (None, CapacityReading::Catalog, Some(metal)) => Some(working_set(metal)),
        (None, CapacityReading::Catalog, None) => None,
    };
    let memory = DeviceMemory::Common(CommonMemory {
        free: FreeReading::MemAvailable,
        // The limit is there whether the engine can read it or not.
        working_set: set.or_else(|| case.device.metal.as_ref().map(working_set)),
    });
    let device = DeviceSpec { tool_capacity: set, memory, ..DeviceSpec::of_capacity(capacity) };
    let start = match &case.model.kind {
        ModelKind::Known(model) => MlxStart::new(args.clone(), model, load.value.mid),
        ModelKind::Cell(known) => {
            // One slot is 2 * layers * heads * dim * item bytes; any factoring gives the same slots.
            let shape = MlxShape {
                attention_layers: 1,
                full_attention_layers: 1,
                kv_heads: 1,
                head_dim: known.cell.bytes_per_token.0 / 2,
                itemsize: 1,
                context_len: known.cell.context_len,
            };
            MlxStart::of_shape(args.clone(), shape, load.value.mid)
        }
    };
    let loads = vec![RankLoad { weights: load.value.mid, ..RankLoad::default() }];
    let none = |what: &str| Figure::none(what, "SGLang 0.5.23 MlxModelRunner");
    let why = Why::new(after.why.tag, "available after loading + what loading took", "this start");
    let basis = Basis {
        free_before_load: Figure { value: after.value.plus(Estimate::exact(load.value.mid)), why },
        load,
        draft: none("no draft"),
        load_scratch: none("not modelled"),
        autotune_scratch: none("no kernel is tuned"),
        draft_graphs: none("no draft"),
        workspaces: none("no workspace is planned"),
        graphs: none("this backend captures no graphs"),
        need: None,
        prefill_tape: None,
        transient: none("no profile run"),
        charged: Vec::new(),
        total: super::sglang::total_seen(case),
        unknown: vec![
            "what other programs on this machine will take after the start".to_owned(),
            "the peak of a prefill chunk in MLX".to_owned(),
        ],
    };
    let host = HostSpec {
        ram: capacity,
        others,
        page_cache: host.page_cache.unwrap_or_default().min(before),
        // What is neither available nor held by programs that are known is the system's.
        kept: capacity.saturating_sub(before).saturating_sub(others),
        cgroup: None,
    };
    let machine = MachineSpec::new(vec![device], host);
    let capture = Capture::default();
    Ok(Prepared { machine, loads, capture, policy: Policy::Mlx(Box::new(start)), basis })
}

/// What Metal recommends to hold at most; newer releases of macOS where both are known.
fn working_set(metal: &MetalWorkingSet) -> Bytes {
    metal.newer_macos.as_ref().unwrap_or(&metal.older_macos).value
}

fn load(case: &Case) -> Result<Figure, CaseError> {
    if let Some(fact) = case.facts.mlx_active.clone().or_else(|| case.facts.load()) {
        return Ok(fact.figure("active bytes of MLX once the weights are there"));
    }
    if let Some(weights) = &case.model.weights {
        return Ok(weights.clone());
    }
    Err(CaseError::Missing {
        what: format!("the size of the weights of {}", case.model.name),
        how: "--weights (in a scenario: machine.readings.mlx_active)".to_owned(),
    })
}

/// RAM that programs can take once the weights are there: declared, or what a machine at rest has.
fn available_after_load(case: &Case, load: &Figure) -> Result<Figure, CaseError> {
    let facts = &case.facts;
    if let Some(fact) = facts.host_available.as_ref().or(facts.free_after_load.as_ref()) {
        return Ok(fact.figure("available RAM once the weights are there"));
    }
    if let Some(fact) = &facts.free_before_load {
        let before = fact.figure("available RAM before loading");
        return Ok(Figure { value: before.value.minus(load.value), why: before.why });
    }
    let Some(metal) = &case.device.metal else {
        return Err(CaseError::Missing {
            what: "the RAM that programs can still take".to_owned(),
            how: "--host-available (in a scenario: machine.readings.host_available_at_sizing)"
                .to_owned(),
        });
    };
    let part = |tenths: u64| Bytes(metal.ram.0 / 10 * tenths).saturating_sub(load.value.mid);
    let rule = "60 % of RAM (40 to 80 %) - weights: what a workstation in use leaves";
    let why =
        Why::new(Tag::Assumed, rule, "no reading; give --host-available").with("RAM", metal.ram);
    Ok(Figure { value: Estimate::new(part(4), part(6), part(8)), why })
}
