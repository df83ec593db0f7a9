//! Engine tapes: the layer code of SGLang and vLLM run under a recording allocator, event by event.
//!
//! Own vectors: `tape-recordings.jsonl.gz`, one recording a line. `PLIMSOLL_VECTORS` may name a
//! folder with one `.json` a recording (or a folder `tape` in it).

use std::path::{Path, PathBuf};

use plimsoll_core::estimate::logits::LogprobChunks;
use plimsoll_core::estimate::moe::SharedExperts;
use plimsoll_core::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use plimsoll_core::tape::{
    BlockTable, Choice, Code, Event, Experts, ExpertsOutput, Family, InputLogprobs, LayerMlp,
    MarlinReduce, Once, OutputLogprobs, PrefillChunk, SamplerBatch, Setup, Tape, TapeModel,
    decode_batch, experts_alone, input_logprobs, mla_prefix, prefill_chunk, sampler,
};
use serde_json::Value;

use super::{is_elsewhere, read_text, vector_folder};

const OWN: &str = "tape-recordings.jsonl.gz";

/// A recording with its name.
struct Recording {
    name: String,
    value: Value,
}

impl Recording {
    fn input(&self, key: &str) -> u64 {
        self.value["inputs"][key].as_u64().unwrap_or(0)
    }

    fn text(&self, key: &str) -> &str {
        self.value["inputs"][key].as_str().unwrap_or_default()
    }

    fn events(&self) -> &[Value] {
        self.value["events"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Whether an allocation was made by a function of this name.
    fn allocates_in(&self, function: &str) -> bool {
        self.events().iter().any(|e| e["at"].as_str().is_some_and(|at| at.contains(function)))
    }

    fn code(&self) -> Code {
        if self.value["engine"] == "vllm" {
            return Code::Vllm019;
        }
        let version = self.value["version"].as_str().unwrap().parse().unwrap();
        Code::sglang(version)[0]
    }
}

fn own() -> Vec<Recording> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(OWN);
    let recording = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        Recording { name: value["name"].as_str().unwrap().to_owned(), value }
    };
    read_text(&path).lines().map(recording).collect()
}

fn elsewhere() -> Vec<Recording> {
    let json = |folder: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .collect();
        paths.sort();
        paths
    };
    let mut found = Vec::new();
    for folder in [vector_folder(), vector_folder().join("tape")] {
        for path in json(&folder) {
            let value: Value = serde_json::from_str(&read_text(&path)).unwrap();
            if value["events"].is_array() && value["peak_bytes_rounded512"].is_u64() {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                found.push(Recording { name, value });
            }
        }
    }
    found
}

fn shape(recording: &Recording, geometry: &Recording) -> ShapeInputs {
    let n = |key: &str| geometry.input(key);
    let first = |keys: &[&str]| keys.iter().map(|key| n(key)).find(|n| *n > 0).unwrap_or(0);
    let model = recording.text("model");
    let attention = if n("kv_lora_rank") > 0 {
        AttentionShape::Mla {
            q_heads: n("num_attention_heads"),
            q_lora_rank: n("q_lora_rank"),
            kv_lora_rank: n("kv_lora_rank"),
            qk_nope_head_dim: n("qk_nope_head_dim"),
            qk_rope_head_dim: n("qk_rope_head_dim"),
            v_head_dim: n("v_head_dim"),
        }
    } else {
        AttentionShape::Gqa {
            q_heads: n("num_attention_heads"),
            kv_heads: n("num_key_value_heads"),
            head_dim: n("head_dim"),
        }
    };
    let experts = first(&["num_experts", "n_routed_experts", "num_local_experts"]);
    let intermediate = first(&["moe_intermediate_size", "intermediate_size"]);
    ShapeInputs {
        hidden: n("hidden_size"),
        attention,
        dense_intermediate: n("intermediate_size"),
        moe: (experts > 0).then(|| MoeShape {
            experts,
            top_k: n("num_experts_per_tok"),
            intermediate,
            shared_intermediate: n("n_shared_experts") * intermediate,
        }),
        vocab: n("vocab_size"),
        layers: recording.input("layers_built"),
        mlp_names: if model.starts_with("llama") { MlpNames::Reused } else { MlpNames::Kept },
        qk_norm: if model.starts_with("qwen3") { QkNorm::Copied } else { QkNorm::Absent },
    }
}

fn model(recording: &Recording, geometry: &Recording) -> TapeModel {
    let shape = shape(recording, geometry);
    let name = recording.text("model");
    let family = match (shape.attention, shape.moe) {
        (AttentionShape::Mla { .. }, _) => Family::DeepSeek,
        (_, Some(_)) if name.starts_with("mixtral") => Family::Mixtral,
        (_, Some(_)) => Family::Qwen3Moe,
        _ if name.starts_with("llama") => Family::Llama,
        _ if name.starts_with("qwen3") => Family::Qwen3,
        _ => Family::Qwen2,
    };
    let dense = if shape.moe.is_some() { geometry.input("first_k_dense") } else { u64::MAX };
    let mlp = |n| if n < dense { LayerMlp::Dense } else { LayerMlp::Experts };
    let layers = (0..recording.input("layers_built")).map(mlp).collect();
    TapeModel { shape, layers, family }
}

fn setup(recording: &Recording, experts: Experts) -> Setup {
    let code = recording.code();
    let marlin = matches!(experts, Experts::Marlin { .. });
    let backend = ["triton", "flashinfer", "fa3"]
        .into_iter()
        .find(|backend| recording.name.contains(&format!("-{backend}-")));
    // What an earlier step of the same process had made is an input of the recording.
    let once = |function| match recording.allocates_in(function) {
        true => Once::Made,
        false => Once::Exists,
    };
    Setup {
        code,
        tp: recording.input("tp").max(1),
        experts,
        shared_experts: match recording.input("n_shared_experts") {
            0 => SharedExperts::Absent,
            _ if marlin => SharedExperts::Separate,
            _ => SharedExperts::Fused,
        },
        blocks: if recording.text("cc") == "9.0" { BlockTable::H100 } else { BlockTable::Default },
        mla_prefix: mla_prefix(code, backend.unwrap_or("fa3")),
        workspace: once("_ensure_workspace_size"),
        gate_scalar: once("_dummy_i32"),
    }
}

fn sampler_tape(recording: &Recording) -> Option<Tape> {
    let (kind, logprob) = match recording.text("kind").strip_suffix("+logprob") {
        Some(kind) => (kind, OutputLogprobs::Top(5)),
        None => (recording.text("kind"), OutputLogprobs::Absent),
    };
    let choice = match kind {
        "greedy" => Choice::Greedy,
        "temperature" => Choice::Temperature,
        "top_p" | "top_k" | "top_p+top_k" => Choice::TopKTopP,
        "min_p" | "top_p+top_k+min_p" => Choice::MinP,
        _ => return None,
    };
    let rows = recording.input("batch");
    let vocab = recording.input("vocab_size");
    let batch = SamplerBatch { rows, vocab, choice, logprobs: logprob };
    sampler(recording.code(), &batch).ok()
}

fn experts_tape(recording: &Recording) -> Option<Tape> {
    let n = |key: &str| recording.input(key);
    let mut shape = shape(recording, recording);
    shape.hidden = n("hidden");
    shape.vocab = 1;
    shape.moe = Some(MoeShape {
        experts: n("experts"),
        top_k: n("topk"),
        intermediate: n("moe_inter_per_rank"),
        shared_intermediate: 0,
    });
    let model = TapeModel { shape, layers: vec![LayerMlp::Experts], family: Family::DeepSeek };
    let mut setup = setup(recording, Experts::TritonFp8Block);
    setup.shared_experts = SharedExperts::Absent;
    // The 0.5.23 recording asked for a new output.
    let output = match setup.code {
        Code::Sglang0508 => ExpertsOutput::InPlace,
        _ => ExpertsOutput::New,
    };
    experts_alone(&model, &setup, n("tokens"), output).ok()
}

fn logprobs_tape(recording: &Recording, model: &TapeModel, setup: &Setup) -> Option<Tape> {
    let (tokens, requests) = (recording.input("tokens"), recording.input("batch"));
    let on = recording.value["inputs"]["env"]["SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK"] == "1";
    let want = InputLogprobs {
        rows: tokens,
        sample_rows: (1..=requests).map(|n| n * tokens / requests - 1).collect(),
        top_logprobs: recording.input("top_logprobs"),
        chunks: if on { LogprobChunks::On } else { LogprobChunks::Default },
    };
    let chunk = PrefillChunk { tokens, requests, prefix_tokens: 0 };
    input_logprobs(model, setup, &chunk, &want).ok()
}

/// The tape that should equal a recording; `None` when there is no rule for it.
fn generated(recording: &Recording, all: &[Recording]) -> Option<Tape> {
    if !recording.text("kind").is_empty() {
        return sampler_tape(recording);
    }
    if recording.input("moe_inter_per_rank") > 0 {
        return experts_tape(recording);
    }
    // Logprob recordings name the model without its geometry.
    let has =
        |r: &&Recording| r.input("hidden_size") > 0 && r.text("model") == recording.text("model");
    let geometry =
        all.iter().find(|r| r.name == recording.name && has(r)).or(all.iter().find(has))?;
    let experts = match recording.text("model").contains("marlin") {
        true => {
            let multiprocessors = if recording.text("cc") == "12.0" { 188 } else { 132 };
            Experts::Marlin { multiprocessors, reduce: MarlinReduce::Atomic }
        }
        false => Experts::Triton,
    };
    let (model, setup) = (model(recording, geometry), setup(recording, experts));
    let (tokens, batch) = (recording.input("tokens"), recording.input("batch"));
    match recording.text("mode") {
        "decode" => decode_batch(&model, &setup, batch).ok(),
        mode if mode.contains("logprobs") => logprobs_tape(recording, &model, &setup),
        _ => {
            let requests = batch.max(recording.input("logits_rows"));
            let prefix_tokens = recording.input("prefix");
            prefill_chunk(&model, &setup, &PrefillChunk { tokens, requests, prefix_tokens }).ok()
        }
    }
}

/// An event with buffers numbered by the order of allocation.
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
enum Plain {
    Alloc(u64),
    Free(usize),
}

fn recorded(recording: &Recording) -> Vec<Plain> {
    let mut ids = Vec::new();
    let number = |value: &Value| value.as_u64().unwrap();
    let plain = |event: &Value| {
        let id = number(&event["id"]);
        if event["op"] == "alloc" {
            ids.push(id);
            Plain::Alloc(number(&event["bytes"]))
        } else {
            Plain::Free(ids.iter().position(|known| *known == id).unwrap())
        }
    };
    recording.events().iter().map(plain).collect()
}

fn plain(tape: &Tape) -> Vec<Plain> {
    let plain = |event: &Event| match *event {
        Event::Alloc { bytes, .. } => Plain::Alloc(bytes.0),
        Event::Free { id } => Plain::Free(id.0 as usize),
    };
    tape.events().iter().map(plain).collect()
}

/// Layer that a recording's module path names.
fn layer_of(module: &str) -> Option<u32> {
    module.split('/').find_map(|part| part.parse().ok())
}

/// Compares one recording; whether all of it is equal.
fn check(recording: &Recording, all: &[Recording]) -> bool {
    let want = recorded(recording);
    let Some(tape) = generated(recording, all) else {
        println!("{}: {} events, no tape", recording.name, want.len());
        return false;
    };
    let got = plain(&tape);
    let equal = want.iter().zip(&got).take_while(|(want, got)| want == got).count();
    let names: Vec<String> = tape.allocations().map(|live| live.name.to_string()).collect();
    let mut first = match equal == want.len().max(got.len()) {
        true => None,
        false => {
            let made = got.iter().take(equal).filter(|e| matches!(e, Plain::Alloc(_))).count();
            let near = names.get(made).map_or("the end", String::as_str);
            let (want, got) = (want.get(equal), got.get(equal));
            Some(format!("event {equal} near {near}: expected {want:?}, got {got:?}"))
        }
    };
    let peak = tape.peak().bytes.0;
    if first.is_none() && recording.value["peak_bytes_rounded512"].as_u64() != Some(peak) {
        first = Some(format!("peak {peak} expected {}", recording.value["peak_bytes_rounded512"]));
    }
    let allocs = recording.events().iter().filter(|event| event["op"] == "alloc");
    for (event, live) in allocs.zip(tape.allocations()) {
        let layer = layer_of(event["mod"].as_str().unwrap_or_default());
        if first.is_none() && layer != live.name.layer && live.name.buffer.name != "moe.workspace" {
            first = Some(format!("{} stands in layer {layer:?}", live.name));
        }
    }
    let text = first.as_deref().unwrap_or("none");
    println!("{}: {} events, {equal} equal, first difference: {text}", recording.name, want.len());
    first.is_none()
}

#[test]
fn every_recorded_event_is_equal() {
    let mut all = own();
    let checked: Vec<Recording> = if is_elsewhere() { elsewhere() } else { own() };
    if checked.is_empty() {
        println!("skipped: no recorded tapes in {}", vector_folder().display());
        return;
    }
    all.extend(elsewhere().into_iter().filter(|_| is_elsewhere()));
    let bad: Vec<&str> = checked
        .iter()
        .filter(|recording| !check(recording, &all))
        .map(|recording| recording.name.as_str())
        .collect();
    println!("tapes: {} of {} equal in every event", checked.len() - bad.len(), checked.len());
    assert!(bad.is_empty(), "unequal: {bad:?}");
}
