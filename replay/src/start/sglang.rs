//! SGLang on a device: loads and estimates beside the pool.

use super::sglang_tape::heaviest_tape;
use super::transients;
use super::{Basis, Case, CaseError, ModelKind, Policy, Prepared, device_spec, host, weaker};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec};
use plimsoll_core::{
    device::Platform as DevicePlatform,
    engine::{
        HostFacts, SglangModel, SglangStart,
        startup::{CapacityByRank, RankLoad, StartPolicy as _},
    },
    estimate::{
        Engine, Figure,
        activation::{self, MlaPrefix, Phase, RunInputs, Step},
        baseline::{BaselineInputs, ExtraGroups, baseline},
        graphs::{DecodeGraphs, LayerKind, Speculation, decode_graphs, prefill_graphs},
        moe::{MoeKernel, SharedExperts},
        shape::ShapeInputs,
        total,
        workspace::{
            AttentionBackend, DecodeBuffers, Determinism, attention_workspace, cublas_workspace,
            decode_buffers, late_communicators,
        },
    },
    figure::{Estimate, Tag, Why},
    policy::sglang::{
        Resolved, args::ServerArgs, from_model::model_facts, readings::draft_weights_resident,
        version::Version,
    },
    tape::{PrefillChunk, Tape},
    units::Bytes,
};

pub(super) fn prepare(case: &Case, args: &ServerArgs) -> Result<Prepared, CaseError> {
    let free = free_before_load(case, Engine::Sglang, args.version, groups(args));
    let total =
        case.facts.total.as_ref().map_or(case.device.runtime_total.value.mid, |f| f.least());
    let declared = case.facts.free_before_load.as_ref();
    let others = case.facts.others.as_ref().map_or(Bytes::ZERO, |f| f.get(0));
    let needed = declared.into_iter().flat_map(|f| &f.values).copied().max().unwrap_or_default();
    let beside = host::held_by_host(case, total);
    let usual = device_spec(case, total.max(needed + others + beside));
    let devices = weaker::devices(case, &usual);
    let mut policy = policy(case, args);
    let resolved = resolve(&mut policy, &devices);
    let load = load(case)?;
    let draft = draft(case, args);
    let shape = case.model.geometry().map(ShapeInputs::from_geometry);
    let workspaces = workspaces(case, args, shape.as_ref(), resolved.as_ref());
    let need = match (&shape, &resolved) {
        (Some(shape), Some(resolved)) => need(case, args, shape, resolved),
        _ => None,
    };
    let (need, prefill_tape) = need.unzip();
    let prefill_tape = prefill_tape.flatten();
    let graphs = graphs(case, args, shape.as_ref(), resolved.as_ref());
    let contexts = weaker::contexts(case, &usual, &devices, &free)?;
    let used = case.facts.load();
    let late = late_draft(case, args);
    let load_scratch = transients::while_loading(case, args, shape.as_ref(), load.value.mid);
    let autotune_scratch = transients::while_tuning(case, args, shape.as_ref(), resolved.as_ref());
    let draft_graphs = transients::draft_graphs(case, args, resolved.as_ref());
    let capture = transients::capture(case, args, resolved.as_ref());
    let graphs = transients::explain_graphs(graphs, &capture);
    let loads = contexts.into_iter().enumerate().map(|(rank, context)| RankLoad {
        context,
        weights: used.as_ref().map_or(load.value.mid, |fact| fact.get(rank)),
        load_scratch: load_scratch.value.mid,
        // A measured use holds the draft's weights too.
        draft_weights: if used.is_some() { Bytes::ZERO } else { draft.value.mid },
        late_draft_weights: late,
        workspaces: workspaces.value.mid,
        autotune_scratch: autotune_scratch.value.mid,
        graphs: graphs.value.mid,
        draft_graphs: draft_graphs.value.mid,
        unaccounted: Bytes::ZERO,
    });
    let loads = loads.collect();
    let transient = Figure::none("SGLang measures no profile run", "rule");
    let unknown = unknown(need.is_some());
    let basis = Basis {
        charged: vec![load.clone(), draft.clone()],
        total: total_seen(case),
        free_before_load: free,
        load,
        draft,
        load_scratch,
        autotune_scratch,
        draft_graphs,
        workspaces,
        graphs,
        need,
        prefill_tape,
        transient,
        unknown,
    };
    let machine = MachineSpec::new(devices, host::host_beside(case, usual.usable()));
    Ok(Prepared { machine, loads, capture, policy: Policy::Sglang(Box::new(policy)), basis })
}

/// Total that programs see: as read, else the catalog's with the spread over drivers.
pub(super) fn total_seen(case: &Case) -> Figure {
    let rule = "total of the runtime (cudaMemGetInfo)";
    match &case.facts.total {
        Some(fact) => fact.figure(rule),
        None => {
            let total = &case.device.runtime_total;
            let why = Why::new(Tag::Calibrated, rule, total.source());
            Figure { value: total.value, why: why.with("device", &case.device.name) }
        }
    }
}

/// Host memory; without a reading there is enough for everything.
pub(super) fn host_available(case: &Case) -> Bytes {
    case.facts.host_available.as_ref().map_or(Bytes::gib(1 << 20), |fact| fact.least())
}

fn policy(case: &Case, args: &ServerArgs) -> SglangStart {
    let model = match &case.model.kind {
        ModelKind::Known(target) => {
            SglangModel::Known { target: target.clone(), draft: case.model.draft.clone() }
        }
        ModelKind::Cell(known) => SglangModel::Cell(known.cell),
    };
    let ranks_on_host = u64::from(case.ranks.div_ceil(args.nnodes.max(1)));
    let host = HostFacts { cgroup_headroom: case.facts.cgroup_limit, ranks_on_host };
    let cc = case.device.compute_capability().map(|cc| (cc.major, cc.minor));
    SglangStart::new(args.clone(), model, host, cc)
}

fn resolve(policy: &mut SglangStart, devices: &[DeviceSpec]) -> Option<Resolved> {
    let capacity = CapacityByRank {
        tool: devices.iter().map(|d| d.tool_capacity).collect(),
        total: devices.iter().map(DeviceSpec::readable_total).collect(),
    };
    policy.resolve(&capacity).ok()?;
    policy.resolved().cloned()
}

fn groups(args: &ServerArgs) -> ExtraGroups {
    let more = args.ep_size > 1 || args.dp_size > 1 || args.moe_a2a_backend.is_some();
    if more { ExtraGroups::ExpertOrData } else { ExtraGroups::Absent }
}

/// Free memory before loading: declared, or estimated from the device.
pub(super) fn free_before_load(
    case: &Case,
    engine: Engine,
    version: Version,
    groups: ExtraGroups,
) -> Figure {
    if let Some(fact) = &case.facts.free_before_load {
        return fact.figure("free before loading, least rank");
    }
    let others = case.facts.others.as_ref().map_or(Estimate::ZERO, |f| Estimate::exact(f.least()));
    let inputs = BaselineInputs {
        device: &case.device,
        engine,
        version,
        ranks: u64::from(case.ranks),
        groups,
        others,
    };
    let estimate = baseline(&inputs);
    let total = case.facts.total.as_ref().map_or(estimate.total.value.mid, |fact| fact.least());
    host::beside_the_host(case, estimate.free, &estimate.system, total)
}

pub(super) fn load(case: &Case) -> Result<Figure, CaseError> {
    if let Some(fact) = case.facts.load() {
        return Ok(fact.figure("what loading takes on a rank"));
    }
    let Some(weights) = &case.model.weights else {
        return Err(CaseError::Missing {
            what: format!("the size of the weights of {}", case.model.name),
            how: "--weights (in a scenario: machine.readings.weights)".to_owned(),
        });
    };
    let mut weights = weights.clone();
    if case.device.platform == DevicePlatform::Rocm {
        // Two of three public ROCm logs print 0.66 and 1.25 GiB more than the tensors.
        weights.value.high = weights.value.high.saturating_add(Bytes::from_gib_f64(1.4));
        weights.why = weights.why.with("ROCm", "up to 1.4 GiB more");
    }
    Ok(weights)
}

/// One figure of several, each an input of its derivation.
pub(super) fn sum(rule: &str, parts: &[Figure]) -> Figure {
    let weakest = parts.iter().map(|p| p.why.tag).max().unwrap_or(Tag::Computed);
    let mut why = Why::new(weakest, rule, "sum");
    for part in parts.iter().filter(|part| part.value != Estimate::ZERO) {
        why = why.with(part.why.rule.clone(), part.value.mid);
    }
    Figure { value: total(parts), why }
}

fn draft(case: &Case, args: &ServerArgs) -> Figure {
    match &case.model.draft_weights {
        Some(figure) if draft_weights_resident(args.version) => figure.clone(),
        Some(_) => Figure::none("the draft is loaded after the pool is sized", "SGLang to 0.5.13"),
        None => Figure::none("no draft model", "launch"),
    }
}

/// Weights of a draft that loads once the target is complete.
fn late_draft(case: &Case, args: &ServerArgs) -> Bytes {
    match &case.model.draft_weights {
        Some(figure) if !draft_weights_resident(args.version) => figure.value.mid,
        Some(_) | None => Bytes::ZERO,
    }
}

fn workspaces(
    case: &Case,
    args: &ServerArgs,
    shape: Option<&ShapeInputs>,
    resolved: Option<&Resolved>,
) -> Figure {
    if case.facts.graph_memory.is_some() {
        return Figure::none(
            "counted with the graphs: free after the pool - free after graphs",
            "rule",
        );
    }
    let (Some(model), Some(shape), Some(resolved)) = (case.model.geometry(), shape, resolved)
    else {
        return Figure::none("not known without the model's layers", "rule");
    };
    let backend = resolved.attention.buffers(model_facts(model).attention);
    let determinism = match args.enable_deterministic_inference {
        true => Determinism::On,
        false => Determinism::Off,
    };
    let parts = [
        attention_workspace(
            Engine::Sglang,
            args.version,
            backend,
            &model.architecture,
            determinism,
        ),
        cublas_workspace(&case.device),
        late_communicators(u64::from(case.ranks)),
        decode_buffers(&buffers(args, backend, shape, resolved)),
    ];
    sum("attention workspace + cuBLAS + static decode buffers + communicators", &parts)
}

fn buffers<'a>(
    args: &ServerArgs,
    backend: AttentionBackend,
    shape: &'a ShapeInputs,
    resolved: &Resolved,
) -> DecodeBuffers<'a> {
    DecodeBuffers {
        backend,
        shape,
        max_bs: resolved.largest_decode_graph(),
        context_len: resolved.context_len,
        page_size: resolved.page_size,
        tp: u64::from(args.tp_size),
    }
}

fn graphs(
    case: &Case,
    args: &ServerArgs,
    shape: Option<&ShapeInputs>,
    resolved: Option<&Resolved>,
) -> Figure {
    if let Some(fact) = &case.facts.graph_memory {
        return fact.figure("graph capture, as measured");
    }
    let (Some(shape), Some(resolved)) = (shape, resolved) else {
        return Figure::none("not known without the model's layers", "rule");
    };
    let off = resolved.decode_graphs_off.is_some();
    let speculating = resolved.speculation.is_some();
    let kind = if shape.moe.is_some() { LayerKind::MoeOrHybrid } else { LayerKind::Dense };
    let decode = decode_graphs(&DecodeGraphs {
        engine: Engine::Sglang,
        version: args.version,
        sizes: if off { 0 } else { resolved.decode_bs.len() as u64 },
        layers: shape.layers,
        kind,
        tp: u64::from(args.tp_size),
        speculation: if speculating { Speculation::Present } else { Speculation::Absent },
    });
    let mut parts = vec![decode];
    if let Some(largest) = resolved.prefill_sizes.last() {
        let step = prefill_step(*largest, 0);
        let run = run_inputs(args, shape, case);
        if let Some(peak) = activation::peak(shape, &run, &step) {
            parts.push(prefill_graphs(peak.figure.value));
        }
    }
    sum("decode graphs + prefill graphs", &parts)
}

const fn prefill_step(tokens: u64, prefix_tokens: u64) -> Step {
    Step { phase: Phase::Prefill, tokens, prefix_tokens, logits_rows: 1 }
}

pub(crate) fn run_inputs(args: &ServerArgs, shape: &ShapeInputs, case: &Case) -> RunInputs {
    let quantization = case.model.geometry().and_then(|m| m.quantization.as_ref());
    let bits = quantization.map(|q| q.weight_bits);
    let moe_kernel = match (quantization.map(|q| q.method.as_str()), bits) {
        (Some("fp8"), _) => MoeKernel::TritonFp8Block,
        (Some(_), Some(4)) => MoeKernel::Marlin,
        _ => MoeKernel::Triton,
    };
    let shared = shape.moe.is_some_and(|moe| moe.shared_intermediate > 0);
    let shared_experts = match (shared, moe_kernel) {
        (false, _) => SharedExperts::Absent,
        (true, MoeKernel::Marlin) => SharedExperts::Separate,
        (true, _) => SharedExperts::Fused,
    };
    RunInputs {
        version: args.version,
        tp: u64::from(args.tp_size),
        moe_kernel,
        shared_experts,
        tma_block_rows: None,
        mla_prefix: MlaPrefix::OneShot,
    }
}

/// A step by name, and what it needs.
type Need = (String, Figure);

/// The heaviest prefill step: one full chunk, without a prefix and at the end of the longest prompt.
/// Where prefill graphs hold the layers' buffers, only what runs outside them is needed again.
fn need(
    case: &Case,
    args: &ServerArgs,
    shape: &ShapeInputs,
    resolved: &Resolved,
) -> Option<(Need, Option<Tape>)> {
    let chunk = resolved.full_chunk();
    let run = run_inputs(args, shape, case);
    let prefix = resolved.context_len.saturating_sub(chunk);
    let captured = resolved.prefill_sizes.last().is_some_and(|largest| *largest >= chunk);
    let steps = [prefill_step(chunk, 0), prefill_step(chunk, prefix)];
    let all = steps.iter().flat_map(|step| activation::instants(shape, &run, step));
    let heaviest =
        all.filter(|peak| !captured || peak.instant.is_outside_prefill_graphs()).reduce(
            |best, next| {
                if next.figure.value.mid > best.figure.value.mid { next } else { best }
            },
        )?;
    let name = format!("one prefill chunk of {chunk} tokens ({})", heaviest.instant.name());
    let mut figure = heaviest.figure;
    let step = PrefillChunk { tokens: chunk, requests: 1, prefix_tokens: 0 };
    // What a captured chunk allocates is paid when the server is ready.
    let model = case.model.geometry().filter(|_| !captured);
    let tape = model.and_then(|m| heaviest_tape(m, &case.device, &run, &step));
    if let Some(largest) = tape.as_ref().and_then(Tape::largest) {
        let text = format!("{} ({})", largest.bytes, largest.name);
        figure = figure.with("largest single request", text);
    }
    Some(((name, figure), tape))
}

fn unknown(need_known: bool) -> Vec<String> {
    let mut unknown = vec![
        "autotuning and kernel compilation at the first requests".to_owned(),
        "fragmentation of the caching allocator".to_owned(),
        "input logprobs, multimodal encoders and LoRA, when requests ask for them".to_owned(),
    ];
    if !need_known {
        unknown
            .insert(0, "the peak of a prefill chunk: the model's layers are not known".to_owned());
    }
    unknown
}
