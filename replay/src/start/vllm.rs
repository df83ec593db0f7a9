//! vLLM: loads, and what its profile run charges.

use super::{
    Basis, Case, CaseError, ModelKind, Policy, Prepared, device_spec, host,
    sglang::{free_before_load, load, sum, total_seen},
    weaker,
};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec};
use plimsoll_core::{
    device::MemoryKind as DeviceMemory,
    engine::{
        VllmDevice, VllmModel, VllmStart,
        startup::{CapacityByRank, Capture, RankLoad, StartPolicy as _},
    },
    estimate::{
        Engine, Figure,
        baseline::ExtraGroups,
        graphs::{DecodeGraphs, LayerKind, Speculation, decode_graphs},
        shape::ShapeInputs,
        vllm_profile::{
            LayerMode, Multimodal, ProfileInputs, VllmCore, activation_peak, non_torch,
        },
        workspace::{AttentionBackend, Determinism, attention_workspace},
    },
    figure::{Estimate, Tag, Why},
    policy::vllm::{
        args::{EngineArgs, Generation},
        defaults::MemoryKind,
        profile::Profile,
        rules::ProfileRule,
        settings::{Settings, Switch},
    },
    units::Bytes,
};

pub(super) fn prepare(case: &Case, args: &EngineArgs) -> Result<Prepared, CaseError> {
    let free = free_before_load(case, Engine::Vllm, args.version, groups(args));
    let total =
        case.facts.total.as_ref().map_or(case.device.runtime_total.value.mid, |f| f.least());
    let declared = case.facts.free_before_load.as_ref();
    let needed = declared.into_iter().flat_map(|f| &f.values).copied().max().unwrap_or_default();
    let beside = host::held_by_host(case, total);
    let usual = device_spec(case, total.max(needed + beside));
    let devices = weaker::devices(case, &usual);
    let settings = resolve(case, args, &devices);
    let shape = case.model.geometry().map(ShapeInputs::from_geometry);
    let load = load(case)?;
    let terms = Terms::of(case, args, shape.as_ref(), settings.as_ref());
    let used = case.facts.load();
    let weights =
        |rank: usize| used.as_ref().map_or(load.value.mid, |fact: &super::Fact| fact.get(rank));
    let profiles: Vec<Profile> = (0..case.ranks as usize)
        .map(|rank| terms.profile(rank, weights(rank), &free, total, case))
        .collect();
    let policy = policy(case, args, profiles.clone());
    let graphs = match &case.facts.graph_memory {
        Some(fact) => fact.figure("graph capture, as measured"),
        None => terms.graphs.clone(),
    };
    let workspaces = sum(
        "growth outside torch + attention workspace",
        &[terms.non_torch.clone(), terms.workspace.clone()],
    );
    let contexts = weaker::contexts(case, &usual, &devices, &free)?;
    let loads = contexts.into_iter().zip(&profiles).map(|(context, profile)| RankLoad {
        context,
        weights: profile.weights,
        load_scratch: measured(&case.facts.load_peak),
        workspaces: profile.non_torch + terms.workspace.value.mid,
        autotune_scratch: measured(&case.facts.autotune_scratch),
        graphs: graphs.value.mid,
        ..RankLoad::default()
    });
    let loads = loads.collect();
    let need = terms.activation.clone();
    let total_figure = total_seen(case);
    let mut charged = vec![load.clone(), terms.non_torch.clone(), terms.activation.clone()];
    if let Some(settings) = &settings {
        if settings.graphs_charged == Switch::On {
            charged.push(perhaps_not(terms.graph_estimate.clone()));
        }
        if settings.rules.profile == ProfileRule::WholeDevice {
            charged.push(before_the_reading(&total_figure, &free));
        }
    }
    let basis = Basis {
        charged,
        total: total_figure,
        free_before_load: free,
        load,
        draft: Figure::none("part of the weights", "vLLM"),
        load_scratch: Figure::none("not modelled", "vLLM"),
        autotune_scratch: Figure::none("not modelled", "vLLM"),
        draft_graphs: Figure::none("part of the graphs", "vLLM"),
        workspaces,
        graphs,
        need: Some(("the profiled activation peak".to_owned(), need)),
        prefill_tape: None,
        transient: terms.activation,
        unknown: vec![
            "what is allocated lazily after profiling (attention workspaces, autotuning)"
                .to_owned(),
            "fragmentation of the caching allocator".to_owned(),
        ],
    };
    let machine = MachineSpec::new(devices, host::host_beside(case, usual.usable()));
    let capture = Capture::default();
    Ok(Prepared { machine, loads, capture, policy: Policy::Vllm(Box::new(policy)), basis })
}

/// A measured peak; nothing where none was.
fn measured(fact: &Option<super::Fact>) -> Bytes {
    fact.as_ref().map_or(Bytes::ZERO, |fact| fact.get(0))
}

/// Releases that charge the graphs do not always: three public starts of 0.28 close without them,
/// one with. So the estimate counts, and nothing is the low end.
fn perhaps_not(mut graphs: Figure) -> Figure {
    if graphs.why.tag != Tag::Measured {
        graphs.value.low = Bytes::ZERO;
    }
    graphs
}

/// What is gone before the first reading, which V1 0.8 and 0.9 charge. The doubt about the total is
/// counted with the budget.
fn before_the_reading(total: &Figure, free: &Figure) -> Figure {
    let value = Estimate::new(
        total.value.mid.saturating_sub(free.value.high),
        total.value.mid.saturating_sub(free.value.mid),
        total.value.mid.saturating_sub(free.value.low),
    );
    let rule = "total - free at the first reading";
    Figure { value, why: Why::new(free.why.tag, rule, "vLLM 0.8 and 0.9 GPUWorker") }
}

fn groups(args: &EngineArgs) -> ExtraGroups {
    let more = args.enable_expert_parallel || args.data_parallel_size > 1;
    if more { ExtraGroups::ExpertOrData } else { ExtraGroups::Absent }
}

fn policy(case: &Case, args: &EngineArgs, profiles: Vec<Profile>) -> VllmStart {
    let model = match &case.model.kind {
        ModelKind::Known(model) => VllmModel::Known(model.clone()),
        ModelKind::Cell(known) => VllmModel::Cell(known.cell),
    };
    let device = VllmDevice {
        name: case.device.name.clone(),
        memory: match case.device.memory {
            DeviceMemory::Discrete => MemoryKind::Discrete,
            DeviceMemory::Integrated => MemoryKind::Unified,
        },
        compute_capability: case.device.compute_capability().map(|cc| (cc.major, cc.minor)),
    };
    VllmStart::new(args.clone(), model, device, profiles)
}

fn resolve(case: &Case, args: &EngineArgs, devices: &[DeviceSpec]) -> Option<Settings> {
    let mut policy = policy(case, args, Vec::new());
    let capacity = CapacityByRank {
        tool: devices.iter().map(|d| d.tool_capacity).collect(),
        total: devices.iter().map(DeviceSpec::readable_total).collect(),
    };
    policy.resolve(&capacity).ok()?;
    policy.settings().cloned()
}

/// What the profile run finds beside the weights.
struct Terms {
    non_torch: Figure,
    activation: Figure,
    graphs: Figure,
    graph_estimate: Figure,
    workspace: Figure,
}

impl Terms {
    fn of(
        case: &Case,
        args: &EngineArgs,
        shape: Option<&ShapeInputs>,
        settings: Option<&Settings>,
    ) -> Self {
        let none = |what: &str| Figure::none(what, "not known without the model's layers");
        let mut terms = Self {
            non_torch: none("growth outside torch"),
            activation: none("activation peak"),
            graphs: none("graphs"),
            graph_estimate: none("graph estimate"),
            workspace: none("attention workspace"),
        };
        if let (Some(shape), Some(settings)) = (shape, settings) {
            terms.estimate(case, args, shape, settings);
        }
        let fact = |slot: &mut Figure, fact: &Option<super::Fact>, rule: &str| {
            if let Some(fact) = fact {
                *slot = fact.figure(rule);
            }
        };
        let facts = &case.facts;
        fact(&mut terms.non_torch, &facts.non_torch, "growth outside torch, as measured");
        fact(&mut terms.activation, &facts.activation_peak, "activation peak, as measured");
        fact(&mut terms.graph_estimate, &facts.graph_estimate, "graph estimate, as printed");
        terms
    }

    fn estimate(
        &mut self,
        case: &Case,
        args: &EngineArgs,
        shape: &ShapeInputs,
        settings: &Settings,
    ) {
        let v0 = settings.rules.generation == Generation::V0;
        let multimodal = case.model.geometry().is_some_and(|m| m.multimodal);
        let eager = args.enforce_eager || args.disable_compilation || v0;
        let tp = u64::from(args.tensor_parallel_size);
        let inputs = ProfileInputs {
            version: args.version,
            core: if v0 { VllmCore::V0 } else { VllmCore::V1 },
            shape,
            tp,
            max_num_batched_tokens: settings.max_num_batched_tokens,
            max_num_seqs: settings.max_num_seqs,
            layers: if eager { LayerMode::Eager } else { LayerMode::Compiled },
            multimodal: match multimodal && !args.language_model_only {
                true => Multimodal::Present,
                false => Multimodal::Absent,
            },
        };
        self.activation = activation_peak(&inputs);
        self.non_torch = non_torch(&case.device, &inputs);
        let kind = if shape.moe.is_some() { LayerKind::MoeOrHybrid } else { LayerKind::Dense };
        let speculating = settings.num_speculative_tokens > 0;
        self.graphs = decode_graphs(&DecodeGraphs {
            engine: Engine::Vllm,
            version: args.version,
            sizes: settings.capture_sizes.len() as u64,
            layers: shape.layers,
            kind,
            tp,
            speculation: if speculating { Speculation::Present } else { Speculation::Absent },
        });
        if settings.graphs_charged == Switch::On {
            self.graph_estimate = self.graphs.clone();
        }
        let architecture = case.model.geometry().map_or("", |m| m.architecture.as_str());
        let named = args.attention_backend.as_deref();
        let backend = match case.device.compute_capability().map(|cc| cc.major) {
            _ if named.is_some_and(|name| name.starts_with("FLASHINFER")) => {
                AttentionBackend::Flashinfer
            }
            _ if named.is_some() => AttentionBackend::Other,
            Some(10 | 12) => AttentionBackend::Flashinfer,
            _ => AttentionBackend::Other,
        };
        let off = Determinism::Off;
        self.workspace =
            attention_workspace(Engine::Vllm, args.version, backend, architecture, off);
    }

    /// What profiling finds on one rank: its own readings where there are some.
    fn profile(
        &self,
        rank: usize,
        weights: Bytes,
        free: &Figure,
        total: Bytes,
        case: &Case,
    ) -> Profile {
        let of = |fact: &Option<super::Fact>, figure: &Figure| {
            fact.as_ref().map_or(figure.value.mid, |fact| fact.get(rank))
        };
        let facts = &case.facts;
        let others = facts.others.as_ref().map_or(Bytes::ZERO, |f| f.least());
        let free = of(&facts.free_before_load, free);
        Profile {
            weights,
            non_torch: of(&facts.non_torch, &self.non_torch),
            activation_peak: of(&facts.activation_peak, &self.activation),
            // V1 0.8 and 0.9 charge all that is outside torch, other programs included.
            baseline: total.saturating_sub(free).max(others),
            fragmentation: Bytes::ZERO,
            graph_estimate: of(&facts.graph_estimate, &self.graph_estimate),
        }
    }
}
