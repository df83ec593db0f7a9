//! Models found on disk, in a cache, and in the catalog.

use std::{fs, path::PathBuf};

use plimsoll_catalog::files::{FindError, HubPaths, Weights, find};
use plimsoll_core::model::{
    parallel::Loader,
    weights::{PartKind, WeightOptions},
};

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 128, "max_position_embeddings": 512}"#;

/// A folder of its own for each test.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    assert!(fs::create_dir_all(&path).is_ok(), "{}", path.display());
    path
}

fn safetensors(header: &str) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

#[test]
fn a_folder_with_a_header_is_exact() {
    let path = folder("header");
    fs::write(path.join("config.json"), CONFIG).unwrap();
    let header = r#"{"model.embed_tokens.weight": {"dtype": "BF16", "shape": [128, 64], "data_offsets": [0, 16384]},
        "model.layers.0.mlp.up_proj.weight": {"dtype": "F32", "shape": [128, 64], "data_offsets": [16384, 49152]}}"#;
    fs::write(path.join("model.safetensors"), safetensors(header)).unwrap();
    let found = find(path.to_str().unwrap(), &HubPaths::default(), "main").unwrap();
    let bill = found.bill(&WeightOptions::new(Loader::Vllm)).unwrap();
    assert_eq!(bill.whole.0, 49_152);
    // The float32 matrix is narrowed to bfloat16 on loading.
    assert_eq!(bill.part(PartKind::Dense).map(|p| p.per_rank.mid.0), Some(16_384));
}

#[test]
fn an_index_without_its_files_gives_the_total() {
    let hub = folder("hub");
    let snapshot = hub.join("models--org--name/snapshots/abc123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(hub.join("models--org--name/refs")).unwrap();
    fs::write(hub.join("models--org--name/refs/main"), "abc123\n").unwrap();
    fs::write(snapshot.join("config.json"), CONFIG).unwrap();
    let index = r#"{"metadata": {"total_size": 200000}, "weight_map": {"a": "m-1.safetensors"}}"#;
    fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
    let paths = HubPaths { hub_cache: Some(hub), ..HubPaths::default() };
    let found = find("org/name", &paths, "main").unwrap();
    assert!(matches!(found.weights, Weights::Total { .. }));
    assert_eq!(found.bill(&WeightOptions::new(Loader::Vllm)).unwrap().whole.0, 200_000);
    assert!(find("org/name", &paths, "other").is_err());
    assert!(find("org/../name", &paths, "main").is_err());
}

#[test]
fn the_catalog_answers_by_id_alias_and_short_name() {
    let none = HubPaths::default();
    for name in
        ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "qwen3-8b", "Qwen3-8B", "meta-llama/Llama-3.1-8B"]
    {
        let found = find(name, &none, "main").unwrap();
        assert!(found.source.starts_with("catalog: "), "{}", found.source);
        assert_eq!(found.weights, Weights::Computed);
    }
    let error = find("Qwen/Qwen3-8", &none, "main").unwrap_err().to_string();
    assert!(error.contains("near: Qwen/Qwen3-8B"), "{error}");
}

#[test]
fn wrong_files_are_named() {
    let path = folder("wrong");
    let config = path.join("config.json");
    fs::write(&config, r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 0}"#).unwrap();
    let error = find(path.to_str().unwrap(), &HubPaths::default(), "main").unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with(
            "config.json: `hidden_size` is 0; allowed: a whole number from 1 to 16777216"
        ),
        "{text}"
    );
    fs::write(&config, CONFIG).unwrap();
    fs::write(path.join("model.safetensors"), [1, 0, 0]).unwrap();
    let error = find(config.to_str().unwrap(), &HubPaths::default(), "main").unwrap_err();
    assert!(matches!(error, FindError::Safetensors { .. }), "{error}");
    let gguf = path.join("model.gguf");
    fs::write(&gguf, b"GGUF\x03\0\0\0").unwrap();
    let error = find(gguf.to_str().unwrap(), &HubPaths::default(), "main").unwrap_err();
    assert!(error.to_string().contains("model.gguf: truncated at offset 8"), "{error}");
    let empty = folder("empty");
    let error = find(empty.to_str().unwrap(), &HubPaths::default(), "main").unwrap_err();
    assert!(matches!(error, FindError::EmptyFolder { .. }));
}
