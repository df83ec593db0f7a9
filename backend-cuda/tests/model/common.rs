//! Models made of noise, the same on the host and on the device, and one scenario for both.

use crate::support::{CHILD, Ended, build, child};
use plimsoll_backend_cuda::model::{
    Arithmetic, Chosen, CudaError, CudaModel, CudaOptions, LoadError, OpenedCuda,
};
use plimsoll_backend_host::model::{HostModel, Keep, KvFormat, ModelOptions};
use plimsoll_core::{
    model::encoding::{Encoding, f32_to_bf16, f32_to_f16},
    policy::plimsoll::Settings,
    tape::own::{
        DecoderShape, LayerShape, Matrix, Outputs, Sequence, StepLimits, WeightId, WeightSource,
    },
};
use std::convert::Infallible;

/// Requests at a time.
pub(crate) const RUNNING: usize = 6;
/// Tokens of prompts in a step.
pub(crate) const CHUNK: usize = 96;
/// Longest request.
pub(crate) const CONTEXT: u64 = 256;
/// Tokens of the pool.
pub(crate) const POOL: u64 = 1024;

/// What a model is made of beside its sizes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) tied: bool,
    pub(crate) biased: bool,
    pub(crate) qk_norm: bool,
    pub(crate) window: Option<u64>,
}

/// A decoder of two layers.
pub(crate) fn shape((q_heads, kv_heads, head_dim): (u64, u64, u64), kind: Kind) -> DecoderShape {
    DecoderShape {
        vocab: 203,
        hidden: 64,
        layers: vec![
            LayerShape { intermediate: 96, window: None },
            LayerShape { intermediate: 96, window: kind.window },
        ],
        q_heads,
        kv_heads,
        head_dim,
        norm_eps: 1e-5,
        rope: (0..head_dim / 2).map(|i| 0.7_f64.powi(i as i32)).collect(),
        tied: kind.tied,
        qkv_bias: kind.biased,
        o_bias: kind.biased,
        mlp_bias: kind.biased,
        qk_norm: kind.qk_norm,
        context: 4096,
    }
}

/// A generator that is the same everywhere.
#[derive(Clone, Copy)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Weights of noise; matrices stored as asked, vectors in float32.
#[derive(Clone)]
pub(crate) struct Noise {
    pub(crate) shape: DecoderShape,
    pub(crate) encoding: Encoding,
}

impl WeightSource for Noise {
    type Error = Infallible;

    fn weight(&mut self, id: WeightId) -> Result<Matrix, Infallible> {
        let extent = self.shape.extent(id).unwrap();
        let seed = (u64::from(id.layer.unwrap_or(99)) << 8) | id.role as u64;
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = (extent.rows * extent.columns) as usize;
        if extent.rows == 1 {
            let one = if format!("{:?}", id.role).ends_with("Norm") { 1.0 } else { 0.0 };
            let bytes = (0..count).flat_map(|_| (one + 0.2 * random.number()).to_le_bytes());
            return Ok(Matrix { extent, encoding: Encoding::F32, bytes: bytes.collect() });
        }
        let scale = 1.5 / (extent.columns as f32).sqrt();
        let bytes = stored(self.encoding, count, scale, &mut random);
        Ok(Matrix { extent, encoding: self.encoding, bytes })
    }
}

/// Values of about `scale` as an encoding stores them.
fn stored(encoding: Encoding, count: usize, scale: f32, random: &mut Random) -> Vec<u8> {
    let half = |value: f32| f32_to_f16(value).to_le_bytes();
    let (block, size) = encoding.block();
    let mut bytes = Vec::new();
    for _ in 0..count / block {
        match encoding {
            Encoding::F32 => bytes.extend((random.number() * scale).to_le_bytes()),
            Encoding::F16 => bytes.extend(half(random.number() * scale)),
            Encoding::Bf16 => bytes.extend(f32_to_bf16(random.number() * scale).to_le_bytes()),
            _ => {
                let start = bytes.len();
                bytes.extend((0..size).map(|_| random.next() as u8));
                let own = &mut bytes[start..];
                // Scales stand where the block has them; all else may be any bits.
                match encoding {
                    Encoding::Q8_0 => own[..2].copy_from_slice(&half(scale / 128.0)),
                    Encoding::Q4_0 => own[..2].copy_from_slice(&half(scale / 8.0)),
                    Encoding::Q4_1 => {
                        own[..2].copy_from_slice(&half(scale / 8.0));
                        own[2..4].copy_from_slice(&half(-scale));
                    }
                    Encoding::Q4K => {
                        own[..2].copy_from_slice(&half(scale / 500.0));
                        own[2..4].copy_from_slice(&half(scale / 63.0));
                    }
                    _ => own[208..210].copy_from_slice(&half(scale / 4096.0)),
                }
            }
        }
    }
    bytes
}

/// Settings of the tests.
pub(crate) fn settings() -> Settings {
    Settings {
        max_running_requests: RUNNING as u64,
        chunked_prefill_size: CHUNK as u64,
        context_length: CONTEXT,
        limits: StepLimits { tokens: (CHUNK + RUNNING) as u64, outputs: (CHUNK + RUNNING) as u64 },
    }
}

/// Options with a pool of [`POOL`] tokens.
pub(crate) fn options(page_tokens: u64) -> CudaOptions {
    let mut options = CudaOptions::new(settings(), page_tokens);
    options.args.max_total_tokens = Some(POOL);
    options
}

pub(crate) fn device(
    shape: &DecoderShape,
    options: &CudaOptions,
    encoding: Encoding,
) -> Result<CudaModel, CudaError> {
    let opened = OpenedCuda::open(shape, options)?;
    let loaded = opened.load(&mut Noise { shape: shape.clone(), encoding });
    loaded.map_err(|error| match error {
        LoadError::Cuda(error) => error,
        LoadError::Extent(id) => panic!("{id}"),
        LoadError::Source(never) => match never {},
    })
}

pub(crate) fn host(
    shape: &DecoderShape,
    (page_tokens, kv): (u64, KvFormat),
    encoding: Encoding,
) -> HostModel {
    let options = ModelOptions {
        threads: 1,
        limits: settings().limits,
        pages: (POOL / page_tokens) as usize,
        page_tokens: page_tokens as usize,
        context: CONTEXT,
        keep: Keep::AsStored,
        kv,
    };
    HostModel::load(shape, &mut Noise { shape: shape.clone(), encoding }, &options).unwrap()
}

/// The encoding whose values an arithmetic keeps as they are.
pub(crate) const fn plain(arithmetic: Arithmetic) -> Encoding {
    match arithmetic {
        Arithmetic::Bf16 => Encoding::Bf16,
        Arithmetic::F16 => Encoding::F16,
    }
}

/// Logits of a step, all rows.
pub(crate) type Logits = Vec<Vec<f32>>;

/// A step of either model.
pub(crate) fn logits(model: &mut CudaModel, sequences: &[Sequence<'_>]) -> Logits {
    let step = model.step(sequences, &[]).unwrap();
    let row = |chosen: Chosen<'_>| match chosen {
        Chosen::Logits(row) => row.to_vec(),
        Chosen::Token(token) => panic!("token {token} was not asked for"),
    };
    step.rows().map(row).collect()
}

/// Three requests, their prompts in chunks, one beside another's decode; then a few tokens of all, and all
/// logits of it. Their pages are scattered. The tokens are given, so that all models do the same.
pub(crate) fn scenario(
    page_tokens: u64,
    mut step: impl FnMut(&[Sequence<'_>]) -> Logits,
) -> Logits {
    let mut random = Random(5);
    let ids: Vec<u32> = (0..200).map(|_| (random.next() % 203) as u32).collect();
    let pages = POOL / page_tokens;
    let table = |request: u64| -> Vec<u32> {
        let scattered = |page: u64| ((page * 3 + request) * 37 % pages) as u32;
        (0..(150_u64).div_ceil(page_tokens)).map(scattered).collect()
    };
    let tables = [0, 1, 2].map(table);
    let part = |request: usize, before: usize, new: usize, outputs| Sequence {
        tokens: &ids[before + request..before + request + new],
        table: &tables[request],
        before,
        outputs,
    };
    let mut all = Vec::new();
    // 70 tokens and 9 at once; then the rest of the first beside a decode, and the third one.
    all.extend(step(&[part(0, 0, 70, Outputs::None), part(1, 0, 9, Outputs::Last)]));
    all.extend(step(&[part(0, 70, 60, Outputs::Last), part(1, 9, 1, Outputs::Last)]));
    all.extend(step(&[part(2, 0, 5, Outputs::All)]));
    for at in 0..4 {
        let batch =
            [(0, 130 + at), (1, 10 + at), (2, 5 + at)].map(|(r, b)| part(r, b, 1, Outputs::Last));
        all.extend(step(&batch[..3 - at % 3]));
        if at % 3 > 0 {
            all.extend(step(&batch[3 - at % 3..]));
        }
    }
    all
}

/// Steps of requests that come, go on in chunks of any length, decode beside each other and go, all of it drawn;
/// tokens are given, so that all models do the same.
pub(crate) fn random_steps(
    (page_tokens, seed, steps): (u64, u64, usize),
    mut step: impl FnMut(&[Sequence<'_>]) -> Logits,
) -> Logits {
    let mut random = Random(seed);
    let mut below = |most: u64| (random.next() % most) as usize;
    // Each place has pages of its own for the longest request, in a drawn order.
    let own = POOL / page_tokens / RUNNING as u64;
    let mut tables: Vec<Vec<u32>> = (0..RUNNING as u64)
        .map(|place| (place * own..(place + 1) * own).map(|page| page as u32).collect())
        .collect();
    for table in &mut tables {
        for at in (1..table.len()).rev() {
            table.swap(at, below(at as u64 + 1));
        }
    }
    let longest = ((own * page_tokens) as usize).min(CONTEXT as usize);
    let mut before = [0_usize; RUNNING];
    let mut all = Vec::new();
    for _ in 0..steps {
        let (mut left, mut parts) = (CHUNK + RUNNING, Vec::new());
        let decodes = below(3) == 0;
        for (place, before) in before.iter_mut().enumerate() {
            if below(3) == 0 {
                continue;
            }
            let new = if decodes || below(2) == 0 { 1 } else { 1 + below(80) };
            if *before + new > longest {
                *before = 0;
            }
            if new <= left {
                let ids: Vec<u32> = (0..new).map(|_| below(203) as u32).collect();
                let outputs = [Outputs::None, Outputs::Last, Outputs::Last, Outputs::All];
                parts.push((place, *before, ids, outputs[below(4)]));
                (*before, left) = (*before + new, left - new);
            }
        }
        let sequences = parts.iter().map(|(place, before, ids, outputs)| Sequence {
            tokens: ids,
            table: &tables[*place],
            before: *before,
            outputs: *outputs,
        });
        let sequences: Vec<Sequence<'_>> = sequences.collect();
        if !sequences.is_empty() {
            all.extend(step(&sequences));
        }
    }
    all
}

/// By how much `ours` is apart from `theirs`: root of squares, relative, over all rows; and the worst row's.
pub(crate) fn apart(ours: &Logits, theirs: &Logits) -> (f64, f64) {
    assert_eq!(ours.len(), theirs.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let (mut all, mut whole, mut worst) = (0.0, 0.0, 0.0_f64);
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.len(), theirs.len());
        assert!(ours.iter().all(|logit| logit.is_finite()), "{ours:?}");
        let both = ours.iter().zip(theirs);
        let apart = square(&mut both.map(|(a, b)| f64::from(a - b)));
        let size = square(&mut theirs.iter().map(|b| f64::from(*b)));
        worst = worst.max((apart / size).sqrt());
        (all, whole) = (all + apart, whole + size);
    }
    ((all / whole).sqrt(), worst)
}

/// In a child: the part it plays.
pub(crate) fn part() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// Starts a part as a child over the fake driver; `None` without a compiler.
pub(crate) fn start(test: &str, part: &str, settings: &[(&str, &str)]) -> Option<Ended> {
    let folder = build(&[])?;
    Some(child(test, part, &folder, settings))
}
