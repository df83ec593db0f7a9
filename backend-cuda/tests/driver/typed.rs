//! Every kernel once, by its typed call: the arguments are the kernel's, in its order. What the
//! kernels compute is proved by tests of their own; here small cases tell a mixed-up argument.

use super::device::{Bench, bench, refused};
use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::device::{Buffer, DevicePointer, Float};
use plimsoll_backend_cuda::kernels::{
    Attention, CopyBlocks, DecodeAttention, Dequantise, Draw, Embed, HeadNorm, Heads, Kernels,
    KvFloat, Pages, PrefillAttention, RmsNorm, RopeStore, Tile,
};
use plimsoll_core::model::encoding::{Encoding, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use plimsoll_core::units::Bytes;

/// Device memory from which parts are cut, each at a multiple of 256 bytes.
struct Cut {
    memory: Buffer,
    next: u64,
}

impl Cut {
    fn new(bench: &Bench) -> Self {
        Self { memory: Buffer::take(&bench.card, Bytes::mib(4)).unwrap(), next: 0 }
    }

    fn take(&mut self, bytes: u64) -> DevicePointer {
        let part = self.memory.pointer().slice(self.next, bytes).unwrap();
        self.next = (self.next + bytes).next_multiple_of(256);
        part
    }

    fn with<T: bytemuck::Pod>(&mut self, bench: &mut Bench, values: &[T]) -> DevicePointer {
        let part = self.take(size_of_val(values) as u64);
        bench.put(part, values);
        part
    }
}

struct Case {
    bench: Bench,
    cut: Cut,
    kernels: Kernels,
    float: Float,
}

impl Case {
    fn new(float: Float, kv: KvFloat) -> Self {
        let bench = bench();
        let kernels = Kernels::load(&bench.card, float, 16, kv).unwrap();
        assert_eq!(kernels.float(), float);
        Self { cut: Cut::new(&bench), bench, kernels, float }
    }

    /// Values in the model's type on the device.
    fn with(&mut self, values: &[f32]) -> DevicePointer {
        let narrow = |value: &f32| match self.float {
            Float::Bf16 => f32_to_bf16(*value),
            Float::F16 => f32_to_f16(*value),
        };
        let bits: Vec<u16> = values.iter().map(narrow).collect();
        self.cut.with(&mut self.bench, &bits)
    }

    fn raw<T: bytemuck::Pod>(&mut self, values: &[T]) -> DevicePointer {
        self.cut.with(&mut self.bench, values)
    }

    fn get(&self, from: DevicePointer, count: usize) -> Vec<f32> {
        let widen = |bits: u16| match self.float {
            Float::Bf16 => bf16_to_f32(bits),
            Float::F16 => f16_to_f32(bits),
        };
        self.bench.get::<u16>(from, count).into_iter().map(widen).collect()
    }

    #[track_caller]
    fn near(&self, from: DevicePointer, due: &[f32]) {
        let got = self.get(from, due.len());
        let near = |(got, due): (&f32, &f32)| (got - due).abs() <= 0.02 * due.abs().max(0.25);
        assert!(got.iter().zip(due).all(near), "{got:?}\n{due:?}");
    }
}

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0).collect()
}

/// Rows of 24: embedding, gather, bias, norms, gate.
fn rows(case: &mut Case) {
    let table = ramp(24 * 5);
    let on_device = case.with(&table);
    let tokens = case.raw(&[4_u32, 0, 2]);
    let out = case.cut.take(3 * 48);
    let embed = Embed { out, table: on_device, tokens, rows: 3, width: 24 };
    case.kernels.embed(&case.bench.stream, &embed).unwrap();
    let row = |n: usize| table[n * 24..][..24].to_vec();
    let x = [row(4), row(0), row(2)].concat();
    case.near(out, &x);
    let short = Embed { rows: 4, ..embed };
    refused(case.kernels.embed(&case.bench.stream, &short), "out has 144 bytes for 192");
    let (numbers, picked) = (case.raw(&[2_u32, 1]), case.cut.take(2 * 48));
    case.kernels.gather(&case.bench.stream, [picked, out, numbers], (2, 24)).unwrap();
    case.near(picked, &[row(2), row(0)].concat());
    let biases: Vec<f32> = (0..24).map(|i| i as f32 / 8.0).collect();
    let bias = case.raw(&biases);
    case.kernels.bias(&case.bench.stream, picked, bias, (2, 24)).unwrap();
    let moved: Vec<f32> =
        [row(2), row(0)].concat().iter().enumerate().map(|(i, v)| v + biases[i % 24]).collect();
    case.near(picked, &moved);
    norms(case, out, &x);
    let both = case.with(&ramp(2 * 48));
    case.kernels.swiglu(&case.bench.stream, picked, both, (2, 24)).unwrap();
    let gates = ramp(2 * 48);
    let gated = |i: usize| {
        let (gate, up) = (gates[i / 24 * 48 + i % 24], gates[i / 24 * 48 + 24 + i % 24]);
        gate / (1.0 + (-gate).exp()) * up
    };
    case.near(picked, &(0..48).map(gated).collect::<Vec<_>>());
}

fn normed(row: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mean = row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32;
    row.iter().zip(weight).map(|(v, w)| v / (mean + epsilon).sqrt() * w).collect()
}

/// `x` holds three rows of 24, as in `values`.
fn norms(case: &mut Case, x: DevicePointer, values: &[f32]) {
    let weights: Vec<f32> = (0..24).map(|i| 1.0 + i as f32 / 16.0).collect();
    let (weight, added) = (case.raw(&weights), case.with(&[0.5; 72]));
    let out = case.cut.take(144);
    let norm =
        RmsNorm { out: Some(out), x, add: Some(added), weight, rows: 3, width: 24, epsilon: 0.125 };
    case.kernels.rms_norm(&case.bench.stream, &norm).unwrap();
    let sums: Vec<f32> = values.iter().map(|v| v + 0.5).collect();
    case.near(x, &sums);
    let due: Vec<f32> = sums.chunks(24).flat_map(|row| normed(row, &weights, 0.125)).collect();
    case.near(out, &due);
    let only_read = RmsNorm { add: None, ..norm };
    case.kernels.rms_norm(&case.bench.stream, &only_read).unwrap();
    case.near(x, &sums);
    let heads = HeadNorm {
        x,
        weight,
        rows: 3,
        row_width: 24,
        start: 8,
        heads: 2,
        head_width: 8,
        epsilon: 0.125,
    };
    case.kernels.head_norm(&case.bench.stream, &heads).unwrap();
    let due: Vec<f32> = sums
        .chunks(24)
        .flat_map(|row| {
            let head = |at: usize| normed(&row[at..at + 8], &weights, 0.125);
            [row[..8].to_vec(), head(8), head(16)].concat()
        })
        .collect();
    case.near(x, &due);
    let outside = HeadNorm { heads: 3, ..heads };
    refused(case.kernels.head_norm(&case.bench.stream, &outside), "heads that do not lie");
}

const HEADS: Heads = Heads { queries: 4, kv: 2, width: 16 };

/// Five tokens of the second sequence, in two pages of four: prefill and decode, whole and split,
/// give the same; the first token sees its own value alone.
fn attention(case: &mut Case) {
    let row = usize::try_from(HEADS.row()).unwrap();
    let values = ramp(5 * row);
    let qkv = case.with(&values);
    let page_bytes = 2 * 4 * 16 * 2 * 2 * case.kernels.kv_bytes();
    let pages = Pages {
        pool: case.cut.take(page_bytes * 4),
        page_bytes,
        page_tokens: 4,
        table_start: case.raw(&[0_i32, 1]),
        tables: case.raw(&[0_i32, 3, 1]),
    };
    let angles: Vec<f32> = (0..64).map(|i| (i / 8) as f32 / (1.0 + (i % 8) as f32)).collect();
    let cos = case.raw(&angles.iter().map(|a| a.cos()).collect::<Vec<_>>());
    let sin = case.raw(&angles.iter().map(|a| a.sin()).collect::<Vec<_>>());
    let positions = case.raw(&[0_i32, 1, 2, 3, 4]);
    let sequences = case.raw(&[1_i32; 5]);
    let store = RopeStore { qkv, positions, sequences, cos, sin, layer: 1, rows: 5 };
    let stream = &case.bench.stream;
    case.kernels.rope_store(stream, (&HEADS, &pages), &store).unwrap();
    let outs: Vec<DevicePointer> = (0..3).map(|_| case.cut.take(5 * 64 * 2)).collect();
    let tiles = case.raw(&[Tile { row: 0, rows: 5, sequence: 1, position: 0 }, Tile::default()]);
    let attention = Attention { out: outs[0], qkv, layer: 1, window: 0, scale: 0.25 };
    let prefill = PrefillAttention { attention, tiles, count: 2 };
    let stream = &case.bench.stream;
    case.kernels.prefill_attention(stream, (&HEADS, &pages), &prefill).unwrap();
    let partial = case.cut.take(Kernels::partial_bytes(&HEADS, 5, 3));
    for (out, splits) in outs[1..].iter().zip([1, 3]) {
        let attention = Attention { out: *out, ..attention };
        let decode = DecodeAttention { attention, partial, positions, sequences, rows: 5, splits };
        let stream = &case.bench.stream;
        case.kernels.decode_attention(stream, (&HEADS, &pages), &decode).unwrap();
    }
    let due = case.get(outs[0], 5 * 64);
    case.near(outs[1], &due);
    case.near(outs[2], &due);
    let own: Vec<f32> = (0..64).map(|i| values[row - 32 + i / 32 * 16 + i % 16]).collect();
    let loose = case.get(outs[0], 64);
    let near = |(got, due): (&f32, &f32)| (got - due).abs() <= 0.07 * due.abs().max(0.25);
    assert!(loose.iter().zip(&own).all(near), "{loose:?}\n{own:?}");
    let wide = Heads { width: 80, ..HEADS };
    let refusal = case.kernels.prefill_attention(&case.bench.stream, (&wide, &pages), &prefill);
    refused(refusal, "another width");
}

/// Tokens, blocks, stored weights.
fn rest(case: &mut Case) {
    let logits = case.raw(&[0.0_f32, 3.0, 1.0, 3.0, -1.0, 0.0, 0.0, 9.0, 0.0, 9.0]);
    let draw = Draw { temperature: 1.0, top_k: 1, top_p: 1.0, min_p: 0.0, unit: 0.5 };
    let draws = case.raw(&[Draw::default(), draw]);
    let chosen = case.cut.take(8);
    case.kernels.sample(&case.bench.stream, [chosen, logits, draws], (2, 5)).unwrap();
    let got = case.bench.get::<u32>(chosen, 2);
    assert!(got[0] == 1 && (got[1] == 2 || got[1] == 4), "{got:?}");
    let from = case.raw(&(0..64_u32).collect::<Vec<_>>());
    let (to, pairs) = (case.cut.take(256), case.raw(&[3_i64, 0, 0, 2]));
    let copy = CopyBlocks { to, from, pairs, count: 2, block_bytes: 64 };
    case.bench.stream.fill(to, 0).unwrap();
    case.kernels.copy_blocks(&case.bench.stream, &copy).unwrap();
    let got = case.bench.get::<u32>(to, 64);
    assert_eq!((got[0], got[15], got[16], got[32], got[47]), (48, 63, 0, 0, 15));
    refused(
        case.kernels.copy_blocks(&case.bench.stream, &CopyBlocks { block_bytes: 8, ..copy }),
        "multiple of 16",
    );
    // Columns 32 to 64 of two rows of 64, a scale of 1/2.
    let block = |at: i8| -> Vec<u8> {
        let scale = f32_to_f16(0.5).to_le_bytes();
        scale.into_iter().chain((0..32).map(|i| (i + at).cast_unsigned())).collect()
    };
    let stored = case.raw(&[block(0), block(-40), block(1), block(2)].concat());
    let dequantise = Dequantise {
        encoding: Encoding::Q8_0,
        out: case.cut.take(2 * 40 * 2),
        stored,
        rows: 2,
        columns: 64,
        first_column: 32,
        width: 32,
        out_stride: 40,
    };
    case.kernels.dequantise(&case.bench.stream, &dequantise).unwrap();
    case.near(dequantise.out, &(0..32).map(|i| (i as f32 - 40.0) / 2.0).collect::<Vec<_>>());
    let second = dequantise.out.tail(80).unwrap();
    case.near(second, &(0..32).map(|i| (i as f32 + 2.0) / 2.0).collect::<Vec<_>>());
    for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16, Encoding::Q4_0, Encoding::Q4_1] {
        let stored = case.cut.take(2 * 64 * 4);
        let other = Dequantise { encoding, stored, ..dequantise };
        case.kernels.dequantise(&case.bench.stream, &other).unwrap();
    }
    for encoding in [Encoding::Q4K, Encoding::Q6K] {
        let stored = case.cut.take(512);
        let other = Dequantise { encoding, stored, columns: 256, ..dequantise };
        case.kernels.dequantise(&case.bench.stream, &other).unwrap();
    }
    case.bench.stream.synchronize().unwrap();
    let odd = Dequantise { columns: 65, ..dequantise };
    refused(case.kernels.dequantise(&case.bench.stream, &odd), "whole number of blocks");
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    for float in [Float::Bf16, Float::F16] {
        for kv in [KvFloat::Same, KvFloat::Fp8] {
            let mut case = Case::new(float, kv);
            rows(&mut case);
            attention(&mut case);
            rest(&mut case);
        }
        let bench = bench();
        for width in [64, 66, 128, 130, 256] {
            Kernels::load(&bench.card, float, width, KvFloat::Same).unwrap();
            Kernels::load(&bench.card, float, width, KvFloat::Fp8).unwrap();
        }
        refused(Kernels::load(&bench.card, float, 258, KvFloat::Same), "heads 258 wide");
    }
}

#[test]
fn every_kernel_has_its_call() {
    let Some(folder) = build(&[]) else { return };
    // As much shared memory as compute capability 9.0 and 12.0 have.
    for (shared, seed) in [("232448", "0"), ("101376", "5")] {
        let settings = [("FAKE_CUDA_SHARED", shared), ("FAKE_CUDA_SEED", seed)];
        let ended: Ended = run_child("typed::child", "all", &folder, &settings);
        ended.nothing_leaked();
        assert_eq!(ended.report["kernels"], 4 * 22);
    }
}
