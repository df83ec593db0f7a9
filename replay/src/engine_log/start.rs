//! The engine's own start-up lines, to lay beside a log. What is not known (times, class names) is `…`.
//! "GB" in SGLang's lines is GiB.

use crate::start::{Case, CaseLaunch, ModelKind, Policy, Ran};
use plimsoll_core::{
    engine::{SglangStart, VllmStart, startup::Start},
    figure::FigureValue,
    model::geometry::Attention,
    policy::{
        sglang::{facts::KvDtype, pool::Pool, version::Version},
        vllm::{args::Generation, capacity, lines, v0},
    },
    units::{Bytes, Tokens},
};

/// What the lines of a start rest on.
#[derive(Clone, Copy)]
struct View<'a> {
    case: &'a Case,
    ran: &'a Ran,
}

/// The lines of a start in the order of the log.
#[must_use]
pub fn lines(case: &Case, ran: &Ran) -> Vec<String> {
    let view = &View { case, ran };
    match &ran.policy {
        Policy::Sglang(start) => sglang(view, start),
        Policy::Mlx(_) => mlx(&view.ran.start),
        Policy::Vllm(start) => vllm(view, start),
    }
}

fn gb(bytes: Bytes) -> String {
    format!("{:.2} GB", bytes.as_gib_f64())
}

fn free(start: &Start, name: &str) -> Option<Bytes> {
    start.reading(name).map(|free| free.least())
}

fn count(start: &Start, name: &str) -> Option<u64> {
    match start.figure(name)?.value {
        FigureValue::Count(n) => Some(n),
        _ => None,
    }
}

fn bytes(start: &Start, name: &str) -> Option<Bytes> {
    match start.figure(name)?.value {
        FigureValue::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// SGLang. Source of the forms: logs of 0.4.6 to 0.5.23.
fn sglang(view: &View<'_>, policy: &SglangStart) -> Vec<String> {
    let start = &view.ran.start;
    let CaseLaunch::Sglang(args) = &view.case.launch else { return Vec::new() };
    let version = args.version;
    let mut lines = Vec::new();
    let (before, after) = (free(start, "before_load"), free(start, "after_load"));
    lines.extend(before.map(|free| format!("Load weight begin. avail mem={}", gb(free))));
    lines.extend(before.zip(after).map(|(before, after)| {
        let used = gb(before.saturating_sub(after));
        format!("Load weight end. … avail mem={}, mem usage={used}.", gb(after))
    }));
    if let Some(pool) = policy.pool() {
        lines.extend(kv_lines(view, pool, version));
    }
    let after_pool = free(start, "after_pool");
    lines.extend(after_pool.map(|free| format!("Memory pool end. avail mem={}", gb(free))));
    let ready = free(start, "after_graphs");
    let graphs = policy.resolved().is_some_and(|resolved| resolved.decode_graphs_off.is_none());
    let name = if version >= Version::new(0, 5, 14) {
        "Capture target decode CUDA graph end."
    } else {
        "Capture cuda graph end."
    };
    lines.extend(ready.filter(|_| graphs).map(|free| format!("{name} … avail mem={}.", gb(free))));
    lines.extend(limits(view, policy, ready));
    lines.extend(host_line(start, version));
    lines
}

/// `KV Cache is allocated.`: tokens without padding, sizes with it.
fn kv_lines(view: &View<'_>, pool: &Pool, version: Version) -> Vec<String> {
    let dtype = view.ran.start.figure("kv_cache_dtype");
    let dtype = match dtype.map(|figure| &figure.value) {
        Some(FigureValue::Text(name)) if version >= Version::new(0, 5, 13) => {
            format!("dtype: {}, ", torch_name(name))
        }
        _ => String::new(),
    };
    let line = |label: &str, tokens: Tokens, size: Bytes| {
        let sizes = kv_sizes(view, pool, size);
        format!("{label}KV Cache is allocated. {dtype}#tokens: {}, {sizes}", tokens.0)
    };
    let Some(swa) = pool.swa else {
        return vec![line("", pool.max_total_num_tokens, pool.bytes.kv_pool)];
    };
    let labels = if version >= Version::new(0, 5, 17) { ["Full ", "SWA "] } else { ["", ""] };
    let mut out = vec![format!(
        "Use sliding window memory pool. full_layer_tokens={}, swa_layer_tokens={}",
        swa.full.0, swa.swa.0
    )];
    if swa.full > Tokens(0) {
        out.push(line(labels[0], swa.full, pool.bytes.kv_pool));
    }
    out.push(line(labels[1], swa.swa, pool.bytes.swa_pool));
    out
}

/// One latent, or keys and values; only equal widths of both are split here.
fn kv_sizes(view: &View<'_>, pool: &Pool, size: Bytes) -> String {
    if pool.cell.kv_heads_per_rank.is_none() {
        return match has_indexer(view) {
            // The index is a buffer of its own, outside the printed size.
            true => "KV size: … GB".to_owned(),
            false => format!("KV size: {}", gb(size)),
        };
    }
    if equal_widths(view) {
        let half = gb(Bytes(size.0 / 2));
        format!("K size: {half}, V size: {half}")
    } else {
        format!("K size: … GB, V size: … GB ({} together)", gb(size))
    }
}

fn layers(view: &View<'_>) -> impl Iterator<Item = Attention> {
    let layers = match &view.case.model.kind {
        ModelKind::Known(model) => model.layers.as_slice(),
        ModelKind::Cell(_) => &[],
    };
    layers.iter().map(|layer| layer.attention)
}

fn has_indexer(view: &View<'_>) -> bool {
    layers(view).any(|a| matches!(a, Attention::Mla { indexer: Some(_), .. }))
}

fn equal_widths(view: &View<'_>) -> bool {
    layers(view).all(|attention| match attention {
        Attention::Gqa { head_dim, v_head_dim, .. } => head_dim == v_head_dim,
        _ => true,
    })
}

/// The name that torch prints for a storage type.
fn torch_name(name: &str) -> String {
    let known = [
        (KvDtype::Fp8E4m3, "torch.float8_e4m3fn"),
        (KvDtype::Fp8E5m2, "torch.float8_e5m2"),
        (KvDtype::Fp4, "torch.uint8"),
    ];
    let found = known.iter().find(|(dtype, _)| dtype.name() == name);
    found.map_or_else(|| format!("torch.{name}"), |(_, torch)| (*torch).to_owned())
}

/// The line of the scheduler's limits.
fn limits(view: &View<'_>, policy: &SglangStart, ready: Option<Bytes>) -> Option<String> {
    let start = &view.ran.start;
    let resolved = policy.resolved()?;
    let tokens = count(start, "max_total_num_tokens")?;
    let (requests, context) = (count(start, "max_running_requests")?, count(start, "context_len")?);
    // 16384 unless given; source: SGLang `ServerArgs`.
    let prefill = resolved.args.prefill_budget();
    let free = match ready {
        Some(free) if resolved.rules.used > Version::new(0, 4, 6) => {
            format!(", available_gpu_mem={}", gb(free))
        }
        _ => String::new(),
    };
    Some(format!(
        "max_total_num_tokens={tokens}, chunked_prefill_size={}, max_prefill_tokens={prefill}, \
         max_running_requests={requests}, context_len={context}{free}",
        resolved.chunked_prefill_size_after_dp
    ))
}

/// The host pool; this line counts in units of 10^9 bytes.
fn host_line(start: &Start, version: Version) -> Option<String> {
    let size = bytes(start, "host_pool_bytes")?.0 as f64 / 1e9;
    let tokens = count(start, "host_pool_tokens")?;
    Some(if version >= Version::new(0, 5, 17) {
        format!(
            "Allocating … hierarchical KV host pool: {tokens} tokens, {size:.2} GB host memory."
        )
    } else {
        format!("Allocating {size:.2} GB host memory for hierarchical KV cache.")
    })
}

/// SGLang on Metal.
fn mlx(start: &Start) -> Vec<String> {
    let line = || {
        let budget = gb(bytes(start, "kv_budget_bytes")?);
        let available = gb(free(start, "after_load")?);
        let slot = bytes(start, "kv_bytes_per_token")?.0;
        let tokens = count(start, "max_total_num_tokens")?;
        Some(format!(
            "Auto-sized attention KV pool: sys_available={available}, … kv_budget={budget}, \
             bytes_per_slot={slot}, pool_size={tokens}"
        ))
    };
    line().into_iter().collect()
}

/// vLLM.
fn vllm(view: &View<'_>, policy: &VllmStart) -> Vec<String> {
    let Some(settings) = policy.settings() else { return Vec::new() };
    let basis = &view.ran.basis;
    let release = (settings.rules.version.major, settings.rules.version.minor);
    let weights = basis.load.value.mid.0 as f64;
    let mut out = vec![if release >= (0, 15) {
        format!("Model loading took {} GiB memory and … seconds", lines::gib_shortest(weights))
    } else {
        let gib = basis.load.value.mid.as_gib_f64();
        format!("Model loading took {gib:.4} GiB and … seconds")
    }];
    let ranks = policy.ranks();
    let available: Vec<i64> = ranks.iter().map(|rank| rank.available).collect();
    match settings.rules.generation {
        Generation::V1 => {
            let least = available.iter().min();
            let least = least.filter(|_| release >= (0, 10));
            out.extend(least.map(|bytes| lines::available(*bytes)));
            let pool = capacity::size_pool(settings, ranks).ok();
            out.extend(pool.iter().flat_map(|pool| lines::capacity(&settings.rules, pool)));
        }
        Generation::V0 => {
            let layers = ranks.first().map_or(&[][..], |rank| &rank.layers);
            let pool = v0::size_pool(settings, layers, &available).ok();
            out.extend(pool.iter().flat_map(|pool| lines::v0_capacity(&settings.rules, pool)));
        }
    }
    let graphs = basis.graphs.value.mid;
    if graphs > Bytes::ZERO && !ranks.is_empty() {
        let took = lines::gib_fixed(graphs.0 as f64);
        out.push(format!("Graph capturing finished in … secs, took {took} GiB"));
    }
    out
}
