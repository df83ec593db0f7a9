//! `vllm-sizing-golden.json`: block sizes, blocks and capacity lines of public logs, all equal.
//! `PLIMSOLL_VECTORS=<folder>` reads files of the same names and shapes from there.

use plimsoll_core::{
    policy::{
        sglang::version::Version,
        vllm::{
            args::{EngineArgs, Generation},
            capacity::{self, Pool, Rank},
            defaults::{Device, MemoryKind, Usage},
            settings::{self, AttentionKind, ModelFacts, Settings, StateKind},
            spec::{Heads, Kind, LayerSpec},
        },
    },
    units::{Bytes, GIB, Tokens},
};
use std::{env, fs, path::Path};

/// The text of a vector file; `None`, said aloud, when another folder was asked for and lacks it.
pub(super) fn vectors(name: &str) -> Option<String> {
    match env::var_os("PLIMSOLL_VECTORS") {
        Some(folder) => match fs::read_to_string(Path::new(&folder).join(name)) {
            Ok(text) => Some(text),
            Err(error) => {
                println!("{name}: skipped, {error}");
                None
            }
        },
        None => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
            Some(fs::read_to_string(path).unwrap())
        }
    }
}

/// Settings of a launch on an 80 GB device; nothing but the batch depends on the device here.
pub(super) fn settings(
    version: Version,
    generation: Option<Generation>,
    max_model_len: u64,
    edit: impl FnOnce(&mut EngineArgs),
) -> Settings {
    let mut args = EngineArgs::new(version, "m");
    args.generation = generation;
    edit(&mut args);
    let device = Device {
        name: "NVIDIA H100".into(),
        total: Bytes::gib(80),
        memory: MemoryKind::Discrete,
        compute_capability: Some((9, 0)),
    };
    let model = ModelFacts {
        context_len: Tokens(max_model_len),
        attention: AttentionKind::Heads,
        state: StateKind::Absent,
    };
    settings::resolve(&args, &device, Usage::Server, model).unwrap()
}

/// One rank of a hybrid or plain model with head-wise attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) full_layers: u64,
    pub(super) heads: Heads,
    pub(super) mamba_layers: u64,
    pub(super) mamba_page: u64,
}

impl Shape {
    pub(super) fn layers(self, block_size: u64) -> Vec<LayerSpec> {
        let full = LayerSpec::heads(Kind::Full, self.heads, block_size);
        let mamba = LayerSpec::mamba(self.mamba_page, block_size);
        let attention = (0..self.full_layers).map(|_| full);
        attention.chain((0..self.mamba_layers).map(|_| mamba)).collect()
    }

    pub(super) fn pool(self, settings: &Settings, available: f64) -> Pool {
        let layers = self.layers(settings.block_size);
        let rank = Rank { layers, available: available as i64 };
        capacity::size_pool(settings, &[rank]).unwrap()
    }
}

/// `0.24.0` out of any text that names it; only the minor number matters.
pub(super) fn version_in(text: &str) -> Option<Version> {
    let at = text.find("0.")?;
    let minor: String = text[at + 2..].chars().take_while(char::is_ascii_digit).collect();
    let next = text[at + 2 + minor.len()..].chars().next();
    match (minor.parse().ok()?, next) {
        (minor @ 0..=3, Some('x')) => Some(Version::new(0, minor * 10, 0)),
        (minor, _) => Some(Version::new(0, minor, 0)),
    }
}

/// Every figure of one golden row, as (name, ours, theirs); equal when all pairs are.
fn compare(row: &serde_json::Value) -> Vec<(&'static str, String, String)> {
    let number = |key: &str| row[key].as_u64();
    let need = |key: &str| number(key).unwrap_or_else(|| panic!("{key} missing in {row}"));
    let mamba_layers = number("mamba_layers").unwrap_or(0);
    let head_size = need("head_size");
    let kv_heads = need("kv_heads_per_rank");
    let heads = Heads { kv_heads, head_size, head_size_v: head_size, element: need("kv_bytes") };
    let shape = Shape {
        full_layers: need("full_layers"),
        heads,
        mamba_layers,
        mamba_page: number("mamba_page_bytes").unwrap_or(0),
    };
    let version = version_in(row["source"].as_str().unwrap()).unwrap_or(Version::new(0, 24, 0));
    let block_given = (mamba_layers == 0).then(|| need("block_size"));
    let len = number("max_model_len").unwrap_or(64 * need("block_size"));
    let settings = settings(version, None, len, |args| {
        args.block_size = block_given;
        args.enable_prefix_caching = Some(true);
    });
    let printed = row["available_gib_printed"].as_f64().unwrap();
    let ends = [printed - 0.005, printed + 0.005].map(|gib| gib * GIB as f64);
    let [low, high] = ends.map(|bytes| shape.pool(&settings, bytes));
    let blocks = need("num_blocks");
    let exact = shape.pool(&settings, (blocks * need("bytes_per_block")) as f64);
    let mut out = vec![
        ("block_size", exact.grouping.min_block_size(), need("block_size")),
        ("bytes_per_block", exact.bytes_per_block.0, need("bytes_per_block")),
        ("num_blocks of the printed GiB", blocks.clamp(low.num_blocks, high.num_blocks), blocks),
        ("num_blocks", exact.num_blocks, blocks),
        ("kv_size_tokens", exact.kv_cache_tokens.0, need("kv_size_tokens")),
    ];
    if let Some(theirs) = number("blocks_per_request") {
        out.push(("blocks_per_request", exact.blocks_per_request, theirs));
    }
    let mut out: Vec<_> =
        out.into_iter().map(|(n, a, b)| (n, a.to_string(), b.to_string())).collect();
    if let Some(theirs) = row["concurrency"].as_str() {
        out.push(("concurrency", format!("{:.2}x", exact.max_concurrency), theirs.to_owned()));
    }
    out
}

#[test]
fn golden_rows_are_equal() {
    let name = "vllm-sizing-golden.json";
    let Some(text) = vectors(name) else { return };
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let (mut equal, mut first) = (0, None);
    for row in &rows {
        let wrong = compare(row).into_iter().find(|(_, ours, theirs)| ours != theirs);
        match wrong {
            None => equal += 1,
            Some((what, ours, theirs)) => {
                let place = row["name"].as_str().unwrap_or("?");
                first.get_or_insert(format!("{place}: {what} ours {ours}, theirs {theirs}"));
            }
        }
    }
    let difference = first.as_deref().unwrap_or("none");
    println!("{name}: {} rows, {equal} equal, first difference: {difference}", rows.len());
    assert!(!rows.is_empty() && equal == rows.len(), "{difference}");
}

/// A golden row whose figure is changed must be found: the comparison can fail.
#[test]
fn a_changed_golden_figure_is_found() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/vllm-sizing-golden.json");
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    for key in ["block_size", "num_blocks", "blocks_per_request", "kv_size_tokens"] {
        let mut row = rows[0].clone();
        row[key] = (row[key].as_u64().unwrap() + 1).into();
        assert!(compare(&row).iter().any(|(_, ours, theirs)| ours != theirs), "{key}");
    }
}
