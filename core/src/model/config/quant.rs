//! Quantisation settings of a checkpoint: `quantization_config` and `hf_quant_config.json`.

use serde_json::Value;

use crate::model::{
    detail::QuantPlan,
    error::ConfigError,
    fields::{Fields, WIDTH, WIDTH_OR_NONE},
    geometry::Quantization,
    storage::{Scales, Storage},
};

/// Most patterns that are kept.
const MOST: usize = 20_000;

/// What the settings come to.
#[derive(Default)]
pub(super) struct Quant {
    pub(super) summary: Option<Quantization>,
    pub(super) plan: QuantPlan,
    pub(super) kv_fp8: bool,
}

/// Reads the settings in the configuration, or those of the second file when it has none.
pub(super) fn read(
    config: Option<Fields<'_>>,
    second: Option<Fields<'_>>,
) -> Result<Quant, ConfigError> {
    if let Some(config) = config {
        return from_config(&config);
    }
    let Some(second) = second else { return Ok(Quant::default()) };
    match second.object("quantization")? {
        Some(inner) => modelopt(&inner),
        None => Ok(Quant::default()),
    }
}

fn from_config(config: &Fields<'_>) -> Result<Quant, ConfigError> {
    let algorithm = config.get("quant_algo").is_some();
    let method = match config.text("quant_method")? {
        Some(method) => method.to_ascii_lowercase(),
        None if algorithm => "modelopt".to_owned(),
        None => return Err(config.missing("quant_method")),
    };
    let bits = config.first(&["bits", "w_bit", "num_bits"], (1, 16))?;
    let group = || group_size(config, &["group_size", "q_group_size"]);
    let base = match method.as_str() {
        "modelopt" | "modelopt_fp4" => return modelopt(config),
        "compressed-tensors" | "compressed_tensors" => return compressed(config),
        "fp8" => match config.numbers("weight_block_size", WIDTH)?.as_deref() {
            None => Storage::FP8_TENSOR,
            Some([rows, cols]) => Storage::fp8_block(*rows, *cols),
            Some(_) => {
                let value = config.get("weight_block_size").cloned().unwrap_or_default();
                return Err(config.wrong("weight_block_size", &value, "two whole numbers"));
            }
        },
        "fbgemm_fp8" => Storage::FP8_ROW,
        "awq" | "awq_marlin" => Storage::int_group(bits.unwrap_or(4), group()?.unwrap_or(128), 4),
        "gptq" | "gptq_marlin" | "auto-round" | "auto_round" | "intel/auto-round" => {
            let bits = bits.unwrap_or(4);
            Storage::int_group(bits, group()?.unwrap_or(128), bits)
        }
        "mxfp4" => Storage::MXFP4,
        "bitsandbytes" => match config.flag("load_in_8bit")? {
            Some(true) => Storage::INT8_ROW,
            _ => Storage::BNB4,
        },
        _ => {
            let plan = QuantPlan { unknown: Some(method.clone()), ..QuantPlan::default() };
            return Ok(Quant { plan, ..Quant::default() });
        }
    };
    let mut plan = QuantPlan { base: Some(base), ..QuantPlan::default() };
    let mut ignored = Vec::new();
    plan.experts_only = method == "mxfp4";
    plan.head = config.flag("lm_head")? == Some(true);
    for key in ["modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules"] {
        ignored.extend(config.texts(key)?.unwrap_or_default().into_iter().map(str::to_owned));
    }
    // GPTQ `dynamic`: a pattern that starts with `-:` excludes what it matches.
    if let Some(dynamic) = config.object("dynamic")? {
        for (key, _) in dynamic.entries() {
            if let Some(expression) = key.strip_prefix("-:") {
                ignored.push(format!("re:{expression}"));
            }
        }
    }
    Ok(finish(method, plan, Some(base), ignored, false))
}

/// -1 (a row is a group) becomes 0.
fn group_size(config: &Fields<'_>, keys: &[&str]) -> Result<Option<u64>, ConfigError> {
    for key in keys {
        if config.get(key).and_then(Value::as_i64) == Some(-1) {
            return Ok(Some(0));
        }
        if let Some(size) = config.number(key, WIDTH_OR_NONE)? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

fn finish(
    method: String,
    mut plan: QuantPlan,
    main: Option<Storage>,
    mut ignored: Vec<String>,
    kv_fp8: bool,
) -> Quant {
    ignored.truncate(MOST);
    for name in &ignored {
        plan.ignored.insert(name, ());
    }
    let summary = main.map(|storage| {
        let (group_size, scale_bytes) = match storage.scales {
            Scales::None => (0, 0),
            Scales::Tensor { bytes } | Scales::Row { bytes } => (0, bytes),
            Scales::Group { size, bytes } => (size, bytes),
            Scales::Block { rows, cols, bytes } => (rows * cols, bytes),
        };
        Quantization {
            method,
            weight_bits: storage.bits,
            group_size,
            scale_bytes,
            zero_points: storage.zero_bits > 0,
            ignored,
            experts_only: plan.experts_only,
        }
    });
    Quant { summary, plan, kv_fp8 }
}

/// Storage by modelopt's algorithm name.
fn algorithm(name: &str, group: Option<u64>) -> Option<Storage> {
    Some(match name {
        "FP8" => Storage::FP8_TENSOR,
        "FP8_PB_WO" | "FP8_PB_REAL" => Storage::fp8_block(128, 128),
        "FP8_PER_CHANNEL_PER_TOKEN" => Storage::FP8_ROW,
        "NVFP4" | "W4A16_NVFP4" | "NVFP4_AWQ" | "W4A8_NVFP4_FP8" => Storage::NVFP4,
        "MXFP8" => Storage::MXFP8,
        "MXFP4" | "W4A8_MXFP4_FP8" => Storage::MXFP4,
        "W4A16_AWQ" | "W4A8_AWQ" => Storage::int_group(4, group.unwrap_or(128), 0),
        "W8A16" | "W8A8_SQ_PER_CHANNEL" => Storage::INT8_ROW,
        _ => return None,
    })
}

/// modelopt, in either of its two homes.
fn modelopt(config: &Fields<'_>) -> Result<Quant, ConfigError> {
    let name = config.text("quant_algo")?.unwrap_or("");
    let group = group_size(config, &["group_size"])?;
    let mut plan = QuantPlan::default();
    let mut mixed = None;
    if name == "MIXED_PRECISION" {
        let layers = config.object("quantized_layers")?;
        let layers = layers.ok_or_else(|| config.missing("quantized_layers"))?;
        for (module, value) in layers.entries().take(MOST) {
            let algo = value.get("quant_algo").and_then(Value::as_str);
            let group = value.get("group_size").and_then(Value::as_u64);
            match algo.and_then(|a| algorithm(a, group)) {
                Some(storage) => plan.rules.insert(module, storage),
                None => plan.unknown = Some(format!("modelopt {}", algo.unwrap_or("?"))),
            }
        }
        plan.head = true;
        mixed = layers.entries().take(MOST).find_map(|(_, v)| {
            let algo = v.get("quant_algo").and_then(Value::as_str)?;
            algorithm(algo, v.get("group_size").and_then(Value::as_u64))
        });
    } else if !name.is_empty() {
        plan.base = algorithm(name, group);
        if plan.base.is_none() {
            plan.unknown = Some(format!("modelopt {name}"));
        }
    }
    let mut ignored = Vec::new();
    for key in ["exclude_modules", "ignore"] {
        ignored.extend(config.texts(key)?.unwrap_or_default().into_iter().map(str::to_owned));
    }
    let main = plan.base.or(mixed);
    let by_name = config.text("kv_cache_quant_algo")?.is_some_and(|a| a == "FP8");
    let kv_fp8 = by_name || scheme_is_fp8(config)?;
    Ok(finish("modelopt".to_owned(), plan, main, ignored, kv_fp8))
}

fn scheme_is_fp8(config: &Fields<'_>) -> Result<bool, ConfigError> {
    if let Some(Value::String(name)) = config.get("kv_cache_scheme") {
        return Ok(name.to_ascii_lowercase().contains("fp8"));
    }
    let Some(scheme) = config.object("kv_cache_scheme")? else { return Ok(false) };
    Ok(scheme.text("type")? == Some("float") && scheme.number("num_bits", (1, 64))? == Some(8))
}

/// compressed-tensors: groups with targets, in order.
fn compressed(config: &Fields<'_>) -> Result<Quant, ConfigError> {
    let mut plan = QuantPlan::default();
    let mut first = None;
    if let Some(groups) = config.object("config_groups")? {
        for (name, _) in groups.entries() {
            let Some(group) = groups.object(name)? else { continue };
            let format = match group.text("format")? {
                Some(format) => format,
                None => config.text("format")?.unwrap_or(""),
            };
            let Some(weights) = group.object("weights")? else { continue };
            let Some(storage) = compressed_storage(&weights, format)? else {
                plan.unknown = Some(format!("compressed-tensors {format}"));
                continue;
            };
            first = first.or(Some(storage));
            for target in group.texts("targets")?.unwrap_or_default() {
                if matches!(target, "Linear" | "MoE" | "FusedMoE") {
                    plan.base = plan.base.or(Some(storage));
                } else {
                    plan.rules.insert(target, storage);
                }
            }
        }
    }
    let main = plan.base.or(first);
    let ignored = config.texts("ignore")?.unwrap_or_default();
    let ignored = ignored.into_iter().map(str::to_owned).collect();
    let kv_fp8 = scheme_is_fp8(config)?;
    Ok(finish("compressed-tensors".to_owned(), plan, main, ignored, kv_fp8))
}

fn compressed_storage(weights: &Fields<'_>, format: &str) -> Result<Option<Storage>, ConfigError> {
    let bits = weights.need(&["num_bits"], (1, 64))?;
    let kind = weights.text("type")?.unwrap_or("int");
    let group = group_size(weights, &["group_size"])?;
    let strategy = weights.text("strategy")?.unwrap_or("tensor");
    let zero_bits = if weights.flag("symmetric")? == Some(false) { bits } else { 0 };
    Ok(Some(match (kind, bits, strategy) {
        ("float", 4, _) if format.starts_with("mxfp4") || group == Some(32) => Storage::MXFP4,
        ("float", 4, _) => Storage::NVFP4,
        ("float", 8, "block") => match weights.numbers("block_structure", WIDTH)?.as_deref() {
            Some([rows, cols]) => Storage::fp8_block(*rows, *cols),
            _ => Storage::fp8_block(128, 128),
        },
        ("float", 8, "channel") => Storage::FP8_ROW,
        ("float", 8, _) => Storage::FP8_TENSOR,
        ("int", 8, "channel") if !format.starts_with("pack") => Storage::INT8_ROW,
        ("int", bits, _) if bits <= 8 => Storage::int_group(bits, group.unwrap_or(0), zero_bits),
        _ => return Ok(None),
    }))
}
