//! The forward pass against Hugging Face transformers, quantised blocks against gguf-py, and the ways of one
//! text through the engine against each other: whole, in chunks, in a batch, in scattered slots.
//!
//! Vectors: `scripts/make-model-vectors.py`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use plimsoll_backend_host::model::{HostModel, Keep, ModelOptions, Outputs, Sequence};
use plimsoll_checkpoint::open_weights;
use plimsoll_core::{model::encoding::Encoding, tape::own::StepLimits};
use proptest::prelude::*;

const MODELS: [&str; 7] = [
    "llama-tied",
    "llama-biased",
    "llama3-rope",
    "linear-rope",
    "qwen2",
    "qwen3",
    "mistral-window",
];

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

fn unpack(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut out).unwrap();
    out
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// A model's folder as the hub has it; one for each process and test.
struct Folder(PathBuf);

impl Folder {
    fn new(model: &str, test: &str) -> Self {
        let name = format!("plimsoll-{}-{test}-{model}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        for entry in fs::read_dir(vectors().join("models").join(model)).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().unwrap().to_str().unwrap() {
                name if name.ends_with(".safetensors.gz") => {
                    let name = name.strip_suffix(".gz").unwrap();
                    fs::write(folder.join(name), unpack(&path)).unwrap();
                }
                name => {
                    fs::copy(&path, folder.join(name)).unwrap();
                }
            }
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn load(folder: &Path, threads: usize, keep: Keep) -> HostModel {
    let (shape, mut weights) = open_weights(folder).unwrap();
    let limits = StepLimits { tokens: 64, outputs: 64 };
    let options = ModelOptions { threads, limits, slots: 256, context: 128, keep };
    HostModel::load(&shape, &mut weights, &options).unwrap()
}

fn ids(folder: &Path) -> Vec<u32> {
    serde_json::from_str(&fs::read_to_string(folder.join("ids.json")).unwrap()).unwrap()
}

/// Logits of a text in steps of the given lengths.
fn logits(model: &mut HostModel, ids: &[u32], slots: &[u32], chunks: &[usize]) -> Vec<f32> {
    let (mut out, mut at) = (Vec::new(), 0);
    for chunk in chunks {
        let end = (at + chunk).min(ids.len());
        let sequence =
            Sequence { tokens: &ids[at..end], slots: &slots[..end], outputs: Outputs::All };
        out.extend(model.step(&[sequence]).unwrap().rows().flatten());
        at = end;
    }
    assert_eq!(at, ids.len());
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let folder = Folder::new(name, "logits");
        let ids = ids(&folder.0);
        let expected = floats(&unpack(&vectors().join("models").join(name).join("logits.f32.gz")));
        let mut model = load(&folder.0, 2, Keep::F32);
        let slots: Vec<u32> = (0..ids.len() as u32).collect();
        let found = logits(&mut model, &ids, &slots, &[ids.len()]);
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0_f32, f32::max) / largest;
        eprintln!("{name}: largest logit {largest}, apart by {apart:e} of it");
        assert!(apart < 1e-4, "{name}: {apart}");
        // The bar is one that a wrong detail breaks: logits of another position are far away.
        let vocab = model.shape().vocab as usize;
        let shifted = found[vocab..].iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(shifted.fold(0.0_f32, f32::max) / largest > 0.1);
    }
}

#[test]
fn blocks_are_decoded_as_gguf_does() {
    for encoding in [Encoding::Q8_0, Encoding::Q4_0, Encoding::Q4_1, Encoding::Q4K, Encoding::Q6K] {
        let folder = vectors().join("blocks");
        let blocks = unpack(&folder.join(format!("{}.blocks.gz", encoding.name())));
        let expected = floats(&unpack(&folder.join(format!("{}.f32.gz", encoding.name()))));
        let mut found = vec![0.0; expected.len()];
        encoding.decode(&blocks, &mut found);
        assert_eq!(bits(&found), bits(&expected), "{}", encoding.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn chunks_batches_slots_and_threads_change_no_bit(
        model in 0..MODELS.len(),
        chunks in prop::collection::vec(1_usize..20, 40),
        order in Just((0_u32..256).collect::<Vec<_>>()).prop_shuffle(),
        threads in 1_usize..4,
        others in 1_usize..6,
    ) {
        let name = MODELS[model];
        let folder = Folder::new(name, "same");
        let ids = ids(&folder.0);
        let slots: Vec<u32> = (0..ids.len() as u32).collect();
        let whole = logits(&mut load(&folder.0, 1, Keep::AsStored), &ids, &slots, &[ids.len()]);
        let mut model = load(&folder.0, threads, Keep::AsStored);
        let chunked = logits(&mut model, &ids, &order[..ids.len()], &chunks_to(ids.len(), &chunks));
        prop_assert_eq!(bits(&chunked), bits(&whole));
        // The last token in a batch with other texts, whose slots stand between its own.
        let (own, rest) = order.split_at(ids.len());
        let before = ids.len() - 1;
        logits(&mut model, &ids[..before], &own[..before], &chunks_to(before, &chunks));
        let text = &ids[5..10];
        let mut batch: Vec<Sequence<'_>> = rest
            .chunks(5)
            .take(others)
            .map(|slots| Sequence { tokens: text, slots, outputs: Outputs::Last })
            .collect();
        let sequence = Sequence { tokens: &ids[before..], slots: own, outputs: Outputs::Last };
        batch.insert(others / 2, sequence);
        let logits = model.step(&batch).unwrap();
        let vocab = whole.len() / ids.len();
        prop_assert_eq!(bits(logits.row(others / 2).unwrap()), bits(&whole[before * vocab..]));
    }
}

/// Lengths that cover `count` tokens.
fn chunks_to(count: usize, chunks: &[usize]) -> Vec<usize> {
    let mut left = count;
    let mut out = Vec::new();
    for chunk in chunks {
        let chunk = (*chunk).min(left);
        if chunk > 0 {
            out.push(chunk);
        }
        left -= chunk;
    }
    if left > 0 {
        out.push(left);
    }
    out
}

#[test]
fn what_a_plan_does_not_cover_is_refused_and_changes_nothing() {
    let folder = Folder::new("llama-tied", "refused");
    let mut model = load(&folder.0, 1, Keep::F32);
    let ids = ids(&folder.0);
    let slots: Vec<u32> = (0..200).collect();
    let first = logits(&mut model, &ids, &slots[..ids.len()], &[ids.len()]);
    let long = [3; 65];
    let step = |model: &mut HostModel, tokens: &[u32], slots: &[u32]| {
        let sequence = Sequence { tokens, slots, outputs: Outputs::Last };
        model.step(&[sequence]).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        step(&mut model, &long, &slots[..65]),
        "a step of 65 tokens and 1 outputs; planned: 64 and 64"
    );
    assert_eq!(step(&mut model, &[96], &[0]), "sequence 0: token is 96; allowed: below 96");
    assert_eq!(step(&mut model, &[1], &[256]), "sequence 0: slot is 256; allowed: below 256");
    assert_eq!(
        step(&mut model, &[1, 2], &[4]),
        "sequence 0: new tokens is 2; allowed: 1 to its 1 slots"
    );
    assert_eq!(
        step(&mut model, &[1], &slots[..129]),
        "sequence 0: positions is 129; allowed: up to 128"
    );
    assert!(model.step(&[]).is_err());
    // The pool holds what it held.
    let tail = Sequence { tokens: &ids[39..], slots: &slots[..40], outputs: Outputs::Last };
    let again = model.step(&[tail]).unwrap().row(0).unwrap().to_vec();
    assert_eq!(bits(&again), bits(&first[first.len() - 96..]));
}

#[test]
fn bfloat16_is_near() {
    let folder = Folder::new("llama-tied", "bf16");
    let ids = ids(&folder.0);
    let slots: Vec<u32> = (0..ids.len() as u32).collect();
    let exact = logits(&mut load(&folder.0, 1, Keep::F32), &ids, &slots, &[ids.len()]);
    let rounded = logits(&mut load(&folder.0, 1, Keep::Bf16), &ids, &slots, &[ids.len()]);
    let largest = exact.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let apart = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
    assert!(apart > 0.0 && apart / largest < 0.05, "{}", apart / largest);
}
