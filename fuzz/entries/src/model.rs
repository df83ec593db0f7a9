//! Model geometry: `config.json`, GGUF, safetensors.

use crate::{assert_in_order, assert_message, in_time, line_count, parts, text};
use plimsoll_core::model::{
    config,
    detail::Model,
    error::ConfigError,
    geometry::Dtype,
    gguf::{self as format, GgufError, Lists},
    kv,
    parallel::{ExpertSplit, Loader, Parallel},
    safetensors::{self as tensors_of, HEADER_MAX, SafetensorsError},
    tensors::{self, TensorInfo},
    weights::{self, Bill, DraftWeights, WeightOptions},
};

/// A `config.json`; behind a line `%%` its `hf_quant_config.json`. What is read can be billed for one
/// rank and for several.
pub fn model_config(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (config, quant) = parts(text);
    let quant = Some(quant).filter(|quant| !quant.is_empty());
    match in_time(|| config::parse("fuzz", config, quant)) {
        Ok(model) => assert_model(&model),
        Err(error) => assert_config_error(&error, &[config, quant.unwrap_or_default()]),
    }
}

fn assert_config_error(error: &ConfigError, texts: &[&str]) {
    match error {
        ConfigError::Json { line, .. } => {
            let most = texts.iter().map(|text| line_count(text)).max().unwrap_or(0);
            assert!((1..=most).contains(line), "line {line} of {most}");
        }
        ConfigError::Missing { path, .. } => assert!(!path.is_empty(), "no key is named"),
        ConfigError::Value { path, allowed, .. } => {
            assert!(!path.is_empty() && !allowed.is_empty(), "no key or range: {error:?}");
        }
        ConfigError::UnknownArchitecture { cannot: what, .. }
        | ConfigError::NotModelled { what, .. } => assert!(!what.is_empty(), "no reason is given"),
    }
    assert_message(&error.to_string());
}

/// Divisions that are tried: one rank, and several of each kind.
fn divisions() -> Vec<(Loader, Parallel)> {
    let sglang = [(8, 1, 1, 1), (2, 2, 1, 1), (8, 1, 8, 1), (8, 1, 8, 8)]
        .into_iter()
        .filter_map(|(tp, pp, ep, dp)| Parallel::sglang(tp, pp, ep, dp).ok())
        .map(|parallel| (Loader::Sglang, parallel));
    let vllm = [(8, 1, 1, ExpertSplit::Whole), (2, 4, 1, ExpertSplit::Width)]
        .into_iter()
        .filter_map(|(tp, pp, dp, split)| Parallel::vllm(tp, pp, dp, split).ok())
        .map(|parallel| (Loader::Vllm, parallel));
    [(Loader::Sglang, Parallel::ONE), (Loader::Vllm, Parallel::ONE)]
        .into_iter()
        .chain(sglang)
        .chain(vllm)
        .collect()
}

fn options(loader: Loader, parallel: Parallel) -> WeightOptions {
    WeightOptions { parallel, draft: DraftWeights::Loaded, ..WeightOptions::new(loader) }
}

pub(crate) fn assert_model(model: &Model) {
    let layers = model.geometry.layers.len();
    assert!(layers > 0, "a model without layers");
    for (loader, parallel) in divisions() {
        let options = options(loader, parallel);
        if let Ok((_, bill)) = in_time(|| weights::heaviest(model, &options)) {
            assert_bill(&bill);
        }
        let cell = kv::cell(model, 0..layers, Dtype::Bf16, parallel.attention);
        let one = kv::cell(model, 0..layers, Dtype::Bf16, 1);
        assert!(cell.total() <= one.total(), "more KV on one of several ranks than on one alone");
        let state = kv::request_state(model, 0..layers, parallel.attention);
        assert!(state.total() >= state.conv, "a state smaller than its part");
    }
}

fn assert_bill(bill: &Bill) {
    assert_in_order("weights of a rank", bill.per_rank);
    for part in &bill.parts {
        assert_in_order(part.kind.name(), part.per_rank);
    }
}

/// The head of a GGUF file. Offsets in errors lie in the file; what is read can be billed.
pub fn gguf(data: &[u8]) {
    let end = data.len() as u64;
    let kept = in_time(|| format::parse_lists(data, Lists::Keep));
    match in_time(|| format::parse(data)) {
        Ok(file) => {
            let kept = kept.map(|kept| (kept.tensors, kept.placed, kept.header_end));
            let same = (file.tensors.clone(), file.placed.clone(), file.header_end);
            assert_eq!(kept, Ok(same), "a vocabulary that is kept changes the rest");
            assert!(file.header_end <= end, "the header ends at {} of {end}", file.header_end);
            match in_time(|| format::model("fuzz", &file)) {
                Ok(model) => {
                    assert_model(&model);
                    assert_tensors(&model, &file.tensors);
                }
                Err(error) => assert_config_error(&error, &[]),
            }
        }
        Err(error) => {
            let offset = match &error {
                GgufError::Magic { found } => {
                    assert!(data.starts_with(found), "not what the file starts with");
                    0
                }
                GgufError::Version { .. } => 4,
                GgufError::Truncated { offset, needed, left, .. } => {
                    assert!(needed > left, "{needed} bytes are there");
                    *offset
                }
                GgufError::Value { offset, .. } | GgufError::Text { offset, .. } => *offset,
            };
            assert!(offset <= end, "offset {offset} of {end}");
            assert_message(&error.to_string());
        }
    }
}

fn assert_tensors(model: &Model, list: &[TensorInfo]) {
    for (loader, parallel) in divisions() {
        if let Ok(bill) = in_time(|| tensors::bill(list, model, &options(loader, parallel))) {
            assert_bill(&bill);
        }
    }
}

/// The head of a safetensors file, and the same bytes as the index of a checkpoint.
pub fn safetensors(data: &[u8]) {
    match in_time(|| tensors_of::parse(data)) {
        Ok(list) => {
            for tensor in &list {
                assert!(tensor.bytes < 1 << 60, "{} has {} bytes", tensor.name, tensor.bytes);
            }
            if let Ok(model) = config::parse("fuzz", crate::seeds::SMALL_CONFIG, None) {
                assert_tensors(&model, &list);
            }
        }
        Err(error) => {
            match &error {
                SafetensorsError::Truncated { needed, found } => {
                    assert_eq!(*found, data.len() as u64);
                    assert!(needed > found, "{needed} bytes are there");
                }
                SafetensorsError::Length { length } => {
                    assert!(!(2..=HEADER_MAX).contains(length), "{length} is allowed");
                }
                SafetensorsError::Json { message } => assert!(!message.is_empty(), "no message"),
                SafetensorsError::Tensor { key, allowed, .. } => {
                    assert!(!key.is_empty() && !allowed.is_empty(), "no key or range: {error:?}");
                }
            }
            assert_message(&error.to_string());
        }
    }
    let Some(text) = text(data) else { return };
    match in_time(|| tensors_of::parse_index(text)) {
        Ok(index) => {
            assert!(index.files.len() as u64 <= index.tensors, "more files than tensors");
            assert!(index.files.is_sorted(), "files are not sorted");
        }
        Err(error) => assert_message(&error.to_string()),
    }
}
