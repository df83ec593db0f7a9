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

use plimsoll_backend_host::model::{HostModel, Keep, KvFormat, ModelOptions, Outputs, Sequence};
use plimsoll_checkpoint::{CheckpointError, WeightFiles, open_weights};
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{Matrix, StepLimits, WeightId, WeightSource},
};
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

/// A pool of 256 positions.
const POSITIONS: usize = 256;

/// How a test loads a model.
#[derive(Clone, Copy)]
struct Way {
    threads: usize,
    keep: Keep,
    page_tokens: usize,
    kv: KvFormat,
    /// What the matrices are turned into first.
    blocks: Option<Encoding>,
}

const PLAIN: Way =
    Way { threads: 1, keep: Keep::AsStored, page_tokens: 16, kv: KvFormat::F32, blocks: None };

/// A model's weights, matrices as blocks where their rows are whole ones.
struct Blocks {
    files: WeightFiles,
    blocks: Option<Encoding>,
}

impl WeightSource for Blocks {
    type Error = CheckpointError;

    fn weight(&mut self, id: WeightId) -> Result<Matrix, CheckpointError> {
        let matrix = self.files.weight(id)?;
        let columns = matrix.extent.columns as usize;
        let Some(encoding) =
            self.blocks.filter(|_| matrix.extent.rows > 1 && columns.is_multiple_of(32))
        else {
            return Ok(matrix);
        };
        let mut values = vec![0.0; columns * matrix.extent.rows as usize];
        matrix.encoding.decode(&matrix.bytes, &mut values);
        let bytes = values.as_chunks().0.iter().flat_map(|v| block(v, encoding)).collect();
        Ok(Matrix { encoding, bytes, ..matrix })
    }
}

/// A small multiple of a power of two as a half.
fn half(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let magnitude = if value == 0.0 { 0 } else { ((bits & 0x7fff_ffff) - (112 << 23)) >> 13 };
    (((bits >> 16 & 0x8000) | magnitude) as u16).to_le_bytes()
}

/// Rounded to multiples of a power of two: Q4_1 from the least value on, or Q8_0.
fn block(values: &[f32; 32], encoding: Encoding) -> Vec<u8> {
    let power = |x: f32| x.max(1e-3).log2().ceil().exp2();
    if encoding == Encoding::Q8_0 {
        let scale = power(values.iter().fold(0.0_f32, |m, v| m.max(v.abs())) / 127.0);
        let bytes = values.iter().map(|v| (v / scale).round() as i8 as u8);
        return half(scale).into_iter().chain(bytes).collect();
    }
    let least = values.iter().fold(f32::MAX, |m, v| m.min(*v));
    let most = values.iter().fold(f32::MIN, |m, v| m.max(*v));
    let scale = power((most - least) / 14.0);
    let least = (least / scale).floor() * scale;
    let nibble = |i: usize| ((values[i] - least) / scale).round().clamp(0.0, 15.0) as u8;
    let bytes = (0..16).map(|i| nibble(i) | nibble(i + 16) << 4);
    half(scale).into_iter().chain(half(least)).chain(bytes).collect()
}

fn load(folder: &Path, way: Way) -> HostModel {
    let (shape, files) = open_weights(folder).unwrap();
    let mut weights = Blocks { files, blocks: way.blocks };
    let limits = StepLimits { tokens: 64, outputs: 64 };
    let Way { threads, keep, page_tokens, kv, .. } = way;
    let pages = POSITIONS / page_tokens;
    let options = ModelOptions { threads, limits, pages, page_tokens, context: 128, keep, kv };
    HostModel::load(&shape, &mut weights, &options).unwrap()
}

fn ids(folder: &Path) -> Vec<u32> {
    serde_json::from_str(&fs::read_to_string(folder.join("ids.json")).unwrap()).unwrap()
}

/// Logits of a text in steps of the given lengths.
fn logits(model: &mut HostModel, ids: &[u32], table: &[u32], chunks: &[usize]) -> Vec<f32> {
    let (mut out, mut at) = (Vec::new(), 0);
    for chunk in chunks {
        let end = (at + chunk).min(ids.len());
        let sequence = Sequence { tokens: &ids[at..end], table, before: at, outputs: Outputs::All };
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
        let mut model = load(&folder.0, Way { threads: 2, keep: Keep::F32, ..PLAIN });
        let found = logits(&mut model, &ids, &[5, 6, 7], &[ids.len()]);
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
    #![proptest_config(ProptestConfig::with_cases(36))]
    #[test]
    fn chunks_batches_pages_and_threads_change_no_bit(
        model in 0..MODELS.len(),
        chunks in prop::collection::vec(1_usize..20, 40),
        order in Just((0_u32..256).collect::<Vec<_>>()).prop_shuffle(),
        page_tokens in prop::sample::select(vec![1_usize, 3, 16, 64]),
        format in prop::sample::select(KvFormat::ALL.to_vec()),
        threads in 1_usize..4,
        others in 1_usize..6,
        (keep, blocks) in prop::sample::select(vec![
            (Keep::AsStored, None),
            (Keep::AsStored, Some(Encoding::Q4_1)),
            (Keep::Int8, Some(Encoding::Q4_1)),
            (Keep::Int8, Some(Encoding::Q8_0)),
        ]),
    ) {
        let name = MODELS[model];
        let folder = Folder::new(name, "same");
        let ids = ids(&folder.0);
        let plain = Way { kv: format, keep, blocks, ..PLAIN };
        let whole = logits(&mut load(&folder.0, plain), &ids, &[0, 1, 2], &[ids.len()]);
        let mut model = load(&folder.0, Way { threads, page_tokens, ..plain });
        let pages = (POSITIONS / page_tokens) as u32;
        let order: Vec<u32> = order.into_iter().filter(|page| *page < pages).collect();
        let (own, rest) = order.split_at(ids.len().div_ceil(page_tokens));
        let chunked = logits(&mut model, &ids, own, &chunks_to(ids.len(), &chunks));
        prop_assert_eq!(bits(&chunked), bits(&whole));
        // The last token in a batch with other texts, whose pages stand between its own.
        let before = ids.len() - 1;
        logits(&mut model, &ids[..before], own, &chunks_to(before, &chunks));
        let mut batch: Vec<Sequence<'_>> = rest
            .chunks(5_usize.div_ceil(page_tokens))
            .take(others)
            .map(|table| {
                let tokens = &ids[5..10];
                Sequence { tokens, table, before: 0, outputs: Outputs::Last }
            })
            .collect();
        let at = batch.len() / 2;
        let tokens = &ids[before..];
        batch.insert(at, Sequence { tokens, table: own, before, outputs: Outputs::Last });
        let logits = model.step(&batch).unwrap();
        let vocab = whole.len() / ids.len();
        prop_assert_eq!(bits(logits.row(at).unwrap()), bits(&whole[before * vocab..]));
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
    let mut model = load(&folder.0, PLAIN);
    let ids = ids(&folder.0);
    let table: Vec<u32> = (0..16).collect();
    let first = logits(&mut model, &ids, &table, &[ids.len()]);
    model.lend(15).unwrap();
    let step = |model: &mut HostModel, tokens: &[u32], table: &[u32], before: usize| {
        let sequence = Sequence { tokens, table, before, outputs: Outputs::Last };
        model.step(&[sequence]).map(|_| ()).unwrap_err().to_string()
    };
    let refused = [
        step(&mut model, &[3; 65], &table, 0),
        step(&mut model, &[96], &table, 0),
        step(&mut model, &[1], &[16], 0),
        step(&mut model, &[1], &[0, 15], 16),
        step(&mut model, &[1, 2], &[4], 15),
        step(&mut model, &[], &table, 3),
        step(&mut model, &[1], &table, 128),
        step(&mut model, &[1], &table, usize::MAX),
    ];
    let expected = [
        "a step of 65 tokens and 1 outputs; planned: 64 and 64",
        "sequence 0: token is 96; allowed: below 96",
        "sequence 0: page is 16; allowed: below 16",
        "sequence 0: page is 15; allowed: below 16, not lent",
        "sequence 0: pages is 1; allowed: 2 for its 17 positions",
        "sequence 0: new tokens is 0; allowed: at least 1",
        "sequence 0: positions is 129; allowed: up to 128",
        "sequence 0: positions is 18446744073709551615; allowed: up to 128",
    ];
    assert_eq!(refused, expected);
    assert!(model.step(&[]).is_err());
    // The pool holds what it held.
    let (tokens, before) = (&ids[39..], 39);
    let tail = Sequence { tokens, table: &table, before, outputs: Outputs::Last };
    let again = model.step(&[tail]).unwrap().row(0).unwrap().to_vec();
    assert_eq!(bits(&again), bits(&first[first.len() - 96..]));
}

#[test]
fn pages_are_lent_and_taken_back() {
    let folder = Folder::new("qwen3", "lent");
    let mut model = load(&folder.0, PLAIN);
    let ids = ids(&folder.0);
    let whole = logits(&mut model, &ids, &[3, 9, 4], &[ids.len()]);
    let all = model.memory().kv;
    for page in [0, 15, 7] {
        model.lend(page).unwrap();
    }
    assert_eq!((model.pool().lent(), model.memory().kv), (3, all / 16 * 13));
    // What is lent does not touch what stays.
    let (tokens, before) = (&ids[39..], 39);
    let tail = Sequence { tokens, table: &[3, 9, 4], before, outputs: Outputs::Last };
    let again = model.step(&[tail]).unwrap().row(0).unwrap().to_vec();
    assert_eq!(bits(&again), bits(&whole[whole.len() - again.len()..]));
    let refused = [model.lend(7), model.take_back(9), model.lend(16), model.take_back(16)];
    assert_eq!(
        refused.map(|answer| answer.unwrap_err().to_string()),
        [
            "page 7 is lent already",
            "page 9 is here already",
            "page 16 is not one of the pool's 16",
            "page 16 is not one of the pool's 16"
        ]
    );
    for page in [7, 0, 15] {
        model.take_back(page).unwrap();
    }
    assert_eq!((model.pool().lent(), model.memory().kv), (0, all));
    // The pages that were taken back serve as any other.
    assert_eq!(bits(&logits(&mut model, &ids, &[7, 15, 0], &[7, 40])), bits(&whole));
}

#[test]
fn sixteen_bits_are_near() {
    let folder = Folder::new("llama-tied", "bf16");
    let ids = ids(&folder.0);
    let run = |way: Way| logits(&mut load(&folder.0, way), &ids, &[0, 1, 2], &[ids.len()]);
    let exact = run(Way { keep: Keep::F32, ..PLAIN });
    let largest = exact.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    for (way, most) in [
        (Way { keep: Keep::Bf16, ..PLAIN }, 0.05),
        (Way { keep: Keep::F32, kv: KvFormat::Bf16, ..PLAIN }, 0.02),
        (Way { keep: Keep::F32, kv: KvFormat::F16, ..PLAIN }, 0.002),
    ] {
        let apart = run(way).iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
        assert!(apart > 0.0 && apart / largest < most, "{}", apart / largest);
    }
}

#[test]
fn inputs_in_eight_bits_are_near() {
    let folder = Folder::new("llama-tied", "int8");
    let ids = ids(&folder.0);
    for blocks in [Encoding::Q4_1, Encoding::Q8_0] {
        let way = Way { blocks: Some(blocks), ..PLAIN };
        let whole = [ids.len()];
        let floats = logits(&mut load(&folder.0, way), &ids, &[0, 1, 2], &whole);
        let way = Way { keep: Keep::Int8, ..way };
        let integers = logits(&mut load(&folder.0, way), &ids, &[0, 1, 2], &whole);
        let largest = floats.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let apart = floats.iter().zip(&integers).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0_f32, f32::max) / largest;
        eprintln!("{}: apart by {apart:e} of the largest logit", blocks.name());
        assert!(apart > 0.0 && apart < 0.05, "{}: {apart}", blocks.name());
    }
}
