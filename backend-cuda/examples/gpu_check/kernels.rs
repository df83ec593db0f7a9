//! Every kernel, by its typed call, beside the same thing in doubles.

use super::{
    attention::{Case, decode, prefill, rope_store},
    bench::{Bench, Float, narrow, step, text, wide, worst},
};
use plimsoll_backend_cuda::{
    device::{Gemm, Shape},
    kernels::{CopyBlocks, Dequantise, Draw, Embed, HeadNorm, KvFloat, RmsNorm},
};
use plimsoll_core::model::encoding::{ENCODINGS, Encoding};

/// How large the cases are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scale {
    /// A few rows, for a processor that plays a device.
    Small,
    /// As a model of 8 billion parameters has them.
    Real,
}

impl Scale {
    const fn pick(self, small: usize, real: usize) -> usize {
        match self {
            Self::Small => small,
            Self::Real => real,
        }
    }
}

/// Answers with the worst difference, as a part of what is allowed.
pub(crate) type Check = fn(&mut Bench, Scale) -> Result<f64, String>;

/// All checks, by the names of the kernels.
pub(crate) const CHECKS: [(&str, Check); 13] = [
    ("embed", embed),
    ("rms_norm", rms_norm),
    ("head_norm", head_norm),
    ("bias", bias),
    ("rope_store", rope),
    ("decode_attention", decode_attention),
    ("prefill_attention", prefill_attention),
    ("swiglu", swiglu),
    ("gather", gather),
    ("sample", sample),
    ("copy_blocks", copy_blocks),
    ("dequant", dequant),
    ("gemm", gemm),
];

const FLOATS: [Float; 2] = [Float::Bf16, Float::F16];

fn exact<T: PartialEq + std::fmt::Debug>(got: &[T], want: &[T]) -> Result<f64, String> {
    let wrong = got.iter().zip(want).position(|(a, b)| a != b);
    match wrong {
        _ if got.len() != want.len() => Err(format!("{} values for {}", got.len(), want.len())),
        Some(at) => Err(format!("value {at} is {:?}, wanted {:?}", got[at], want[at])),
        None => Ok(0.0),
    }
}

fn embed(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    for float in FLOATS {
        let (vocab, width, rows) = (53, scale.pick(75, 4096), scale.pick(9, 512));
        let table = narrow(float, &bench.values(vocab * width, 1.0));
        let tokens: Vec<u32> = (0..rows).map(|_| (bench.bits() % 53) as u32).collect();
        let (on_table, on_tokens) = (bench.up(&table)?, bench.up(&tokens)?);
        let out = bench.room::<u16>(rows * width)?;
        let of = Embed {
            out: out.pointer(),
            table: on_table.pointer(),
            tokens: on_tokens.pointer(),
            rows: rows as u32,
            width: width as u32,
        };
        bench.kernels(float, 64, KvFloat::Same)?.embed(&bench.stream, &of).map_err(text)?;
        let want: Vec<u16> = tokens
            .iter()
            .flat_map(|t| table[*t as usize * width..(*t as usize + 1) * width].iter().copied())
            .collect();
        exact(&bench.down::<u16>(out.pointer())?, &want)?;
    }
    Ok(0.0)
}

fn normed(x: &[f64], weight: &[f32], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + epsilon).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * factor * f64::from(*w)).collect()
}

fn rms_norm(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let mut most = 0.0_f64;
    let (rows, epsilon) = (scale.pick(5, 512), 1e-5);
    for (float, width) in FLOATS.into_iter().zip([scale.pick(77, 4096), scale.pick(576, 5120)]) {
        for added in [false, true] {
            let x = narrow(float, &bench.values(rows * width, 3.0));
            let add = narrow(float, &bench.values(rows * width, 1.0));
            let weight = bench.values(width, 2.0);
            let (on_x, on_add) = (bench.up(&x)?, bench.up(&add)?);
            let (on_weight, out) = (bench.up(&weight)?, bench.room::<u16>(rows * width)?);
            let of = RmsNorm {
                out: Some(out.pointer()),
                x: on_x.pointer(),
                add: added.then(|| on_add.pointer()),
                weight: on_weight.pointer(),
                rows: rows as u32,
                width: width as u32,
                epsilon: epsilon as f32,
            };
            bench.kernels(float, 64, KvFloat::Same)?.rms_norm(&bench.stream, &of).map_err(text)?;
            let (mut sums, add) = (wide(float, &x), wide(float, &add));
            if added {
                let more: Vec<f32> = sums.iter().zip(&add).map(|(a, b)| a + b).collect();
                sums = wide(float, &narrow(float, &more));
            }
            let after = wide(float, &bench.down::<u16>(on_x.pointer())?);
            exact(&after, &sums)?;
            let wanted = sums.chunks(width).flat_map(|row| {
                let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
                normed(&row, &weight, epsilon)
            });
            let wanted: Vec<f64> = wanted.collect();
            let got = wide(float, &bench.down::<u16>(out.pointer())?);
            most = most.max(worst(&got, &wanted, step(float), 1e-6)?);
        }
    }
    Ok(most)
}

fn head_norm(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let (rows, row_width, start, heads, width) = (scale.pick(3, 256), 900, 38, 5, 96);
    let (float, epsilon) = (Float::Bf16, 1e-6);
    let x = narrow(float, &bench.values(rows * row_width, 2.0));
    let weight = bench.values(width, 1.0);
    let (on_x, on_weight) = (bench.up(&x)?, bench.up(&weight)?);
    let of = HeadNorm {
        x: on_x.pointer(),
        weight: on_weight.pointer(),
        rows: rows as u32,
        row_width: row_width as u32,
        start: start as u32,
        heads: heads as u32,
        head_width: width as u32,
        epsilon: epsilon as f32,
    };
    bench.kernels(float, 128, KvFloat::Same)?.head_norm(&bench.stream, &of).map_err(text)?;
    let mut want: Vec<f64> = wide(float, &x).iter().map(|v| f64::from(*v)).collect();
    for row in want.chunks_mut(row_width) {
        for head in row[start..start + heads * width].chunks_mut(width) {
            head.copy_from_slice(&normed(head, &weight, epsilon));
        }
    }
    let got = wide(float, &bench.down::<u16>(on_x.pointer())?);
    worst(&got, &want, step(float), 1e-6)
}

fn bias(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let (rows, width, float) = (scale.pick(4, 300), scale.pick(131, 6144), Float::F16);
    let x = narrow(float, &bench.values(rows * width, 1.0));
    let bias = bench.values(width, 1.0);
    let (on_x, on_bias) = (bench.up(&x)?, bench.up(&bias)?);
    let size = (rows as u32, width as u32);
    let kernels = bench.kernels(float, 64, KvFloat::Same)?;
    kernels.bias(&bench.stream, on_x.pointer(), on_bias.pointer(), size).map_err(text)?;
    let x = wide(float, &x);
    let want: Vec<f64> =
        x.iter().zip(bias.iter().cycle()).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
    let got = wide(float, &bench.down::<u16>(on_x.pointer())?);
    worst(&got, &want, step(float), 1e-6)
}

/// Shapes of attention: groups, widths, pages, windows, and both ways to keep keys and values.
fn cases(scale: Scale) -> Vec<Case> {
    let case = |(float, kv), (queries, kv_heads, width), (page_tokens, window)| Case {
        float,
        kv,
        queries,
        kv_heads,
        width,
        page_tokens,
        window,
        layers: 2,
    };
    let (same, fp8) = (KvFloat::Same, KvFloat::Fp8);
    let small = vec![
        case((Float::Bf16, same), (6, 2, 64), (16, 0)),
        case((Float::F16, same), (3, 3, 40), (1, 9)),
        case((Float::Bf16, fp8), (8, 1, 128), (16, 0)),
        case((Float::F16, fp8), (4, 2, 192), (5, 0)),
    ];
    let real = vec![
        case((Float::Bf16, same), (32, 8, 128), (16, 0)),
        case((Float::Bf16, fp8), (32, 8, 128), (16, 0)),
        case((Float::F16, same), (9, 3, 64), (16, 0)),
        case((Float::Bf16, same), (16, 8, 256), (16, 512)),
        case((Float::Bf16, same), (28, 4, 128), (1, 0)),
    ];
    if scale == Scale::Small { small } else { [small, real].concat() }
}

fn each_case(
    bench: &mut Bench,
    scale: Scale,
    mut check: impl FnMut(&mut Bench, Case) -> Result<f64, String>,
) -> Result<f64, String> {
    let mut most = 0.0_f64;
    for case in cases(scale) {
        most = most.max(check(bench, case).map_err(|error| format!("{case:?}: {error}"))?);
    }
    Ok(most)
}

fn rope(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let lengths = [(0, scale.pick(5, 200)), (scale.pick(7, 300), 3), (16, 1)];
    each_case(bench, scale, |bench, case| rope_store(bench, case, &lengths))
}

fn decode_attention(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let lengths = [0, scale.pick(17, 2000), scale.pick(40, 333), 1];
    let splits = [1, scale.pick(3, 16) as u32];
    each_case(bench, scale, |bench, case| {
        let one = decode(bench, case, &lengths, splits[0])?;
        Ok(one.max(decode(bench, case, &lengths, splits[1])?))
    })
}

fn prefill_attention(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let lengths = [(0, scale.pick(19, 300)), (scale.pick(70, 700), scale.pick(4, 90)), (3, 1)];
    each_case(bench, scale, |bench, case| prefill(bench, case, &lengths))
}

fn swiglu(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let (rows, width, float) = (scale.pick(3, 200), scale.pick(83, 14_336), Float::Bf16);
    let both = narrow(float, &bench.values(rows * width * 2, 4.0));
    let (on_both, out) = (bench.up(&both)?, bench.room::<u16>(rows * width)?);
    let size = (rows as u32, width as u32);
    let kernels = bench.kernels(float, 64, KvFloat::Same)?;
    kernels.swiglu(&bench.stream, out.pointer(), on_both.pointer(), size).map_err(text)?;
    let both = wide(float, &both);
    let want = both.chunks(2 * width).flat_map(|row| {
        (0..width).map(|i| {
            let (gate, up) = (f64::from(row[i]), f64::from(row[width + i]));
            gate / (1.0 + (-gate).exp()) * up
        })
    });
    let want: Vec<f64> = want.collect();
    let got = wide(float, &bench.down::<u16>(out.pointer())?);
    worst(&got, &want, step(float), 1e-5)
}

fn gather(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let (rows, width, float) = (50, scale.pick(61, 4096), Float::Bf16);
    let from = narrow(float, &bench.values(rows * width, 1.0));
    let numbers = [49_i32, 0, 7, 7, 31];
    let (on_from, on_numbers) = (bench.up(&from)?, bench.up(&numbers)?);
    let out = bench.room::<u16>(numbers.len() * width)?;
    let places = [out.pointer(), on_from.pointer(), on_numbers.pointer()];
    let size = (numbers.len() as u32, width as u32);
    let kernels = bench.kernels(float, 64, KvFloat::Same)?;
    kernels.gather(&bench.stream, places, size).map_err(text)?;
    let row = |n: &i32| from[*n as usize * width..(*n as usize + 1) * width].iter().copied();
    let want: Vec<u16> = numbers.iter().flat_map(row).collect();
    exact(&bench.down::<u16>(out.pointer())?, &want)
}

/// What a draw must choose; `None` where rounding decides.
fn drawn(logits: &[f32], draw: &Draw) -> Option<u32> {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    if draw.temperature == 0.0 {
        return logits.iter().position(|l| *l == most).map(|at| at as u32);
    }
    let weight = |l: f32| (f64::from(l - most) / f64::from(draw.temperature)).exp();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    if draw.top_k > 0 {
        order.truncate(draw.top_k as usize);
    }
    let total: f64 = order.iter().map(|t| weight(logits[*t as usize])).sum();
    let (mut sum, mut kept, mut near) = (0.0, Vec::new(), f64::MAX);
    for token in order {
        let own = weight(logits[token as usize]);
        near = near.min((own - f64::from(draw.min_p)).abs());
        if !kept.is_empty() && own < f64::from(draw.min_p) {
            break;
        }
        sum += own;
        kept.push(token);
        if draw.top_p < 1.0 {
            near = near.min((sum / total - f64::from(draw.top_p)).abs());
        }
        if sum >= f64::from(draw.top_p) * total {
            break;
        }
    }
    kept.sort_unstable();
    let mut left = draw.unit * sum;
    for token in kept {
        let own = weight(logits[token as usize]);
        near = near.min((left - own).abs() / sum);
        if left < own {
            return (near > 1e-5).then_some(token);
        }
        left -= own;
    }
    None
}

fn sample(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let (rows, vocab) = (scale.pick(24, 256), scale.pick(1003, 128_256));
    let mut logits = bench.values(rows * vocab, 8.0);
    // Equals among the highest.
    logits[5] = 9.0;
    logits[vocab - 1] = 9.0;
    let draws: Vec<Draw> = (0..rows)
        .map(|row| {
            let pick = |of: &[f32]| of[row % of.len()];
            Draw {
                temperature: if row == 0 { 0.0 } else { pick(&[0.0, 0.6, 1.0, 1.7]) },
                top_k: [0, 0, 1, 40, 7][row % 5],
                top_p: pick(&[1.0, 0.9, 0.3]),
                min_p: pick(&[0.0, 0.0, 0.05, 0.2, 0.0, 0.0, 0.01]),
                unit: bench.unit(),
            }
        })
        .collect();
    let (on_logits, on_draws) = (bench.up(&logits)?, bench.up(&draws)?);
    let chosen = bench.room::<u32>(rows)?;
    let places = [chosen.pointer(), on_logits.pointer(), on_draws.pointer()];
    let size = (rows as u32, vocab as u32);
    let kernels = bench.kernels(Float::Bf16, 64, KvFloat::Same)?;
    kernels.sample(&bench.stream, places, size).map_err(text)?;
    let got = bench.down::<u32>(chosen.pointer())?;
    let mut undecided = 0;
    for (row, draw) in draws.iter().enumerate() {
        match drawn(&logits[row * vocab..(row + 1) * vocab], draw) {
            Some(want) if want != got[row] => {
                return Err(format!("row {row}, {draw:?}: {}, wanted {want}", got[row]));
            }
            Some(_) => {}
            None => undecided += 1,
        }
    }
    // A vocabulary of 128,000 has draws near a border.
    if undecided * 2 > rows { Err(format!("{undecided} rows are undecided")) } else { Ok(0.0) }
}

fn copy_blocks(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let bytes = scale.pick(272, 2 << 20);
    let from: Vec<u8> = (0..bytes * 4).map(|i| (i * 7 % 251) as u8).collect();
    let pairs = [3_i64, 0, 0, 2, 1, 1];
    let (on_from, on_pairs) = (bench.up(&from)?, bench.up(&pairs)?);
    let to = bench.room::<u8>(bytes * 3)?;
    let of = CopyBlocks {
        to: to.pointer(),
        from: on_from.pointer(),
        pairs: on_pairs.pointer(),
        count: 3,
        block_bytes: bytes as u64,
    };
    let kernels = bench.kernels(Float::Bf16, 64, KvFloat::Same)?;
    kernels.copy_blocks(&bench.stream, &of).map_err(text)?;
    let block = |n: usize| from[n * bytes..(n + 1) * bytes].iter().copied();
    let want: Vec<u8> = block(3).chain(block(1)).chain(block(0)).collect();
    exact(&bench.down::<u8>(to.pointer())?, &want)
}

/// Random stored rows whose scales are ordinary numbers.
fn stored(bench: &mut Bench, encoding: Encoding, rows: usize, columns: usize) -> Vec<u8> {
    let size = encoding.row_bytes(columns).unwrap_or(0) * rows;
    if encoding == Encoding::F32 {
        return bench.values(rows * columns, 1.0).iter().flat_map(|v| v.to_le_bytes()).collect();
    }
    let mut bytes: Vec<u8> = (0..size).map(|_| bench.bits() as u8).collect();
    // Where float16 scales lie in a block; their exponents are made small.
    let (block, scales): (usize, &[usize]) = match encoding {
        Encoding::F16 | Encoding::Bf16 => (2, &[0]),
        Encoding::Q8_0 => (34, &[0]),
        Encoding::Q4_0 => (18, &[0]),
        Encoding::Q4_1 => (20, &[0, 2]),
        Encoding::Q4K => (144, &[0, 2]),
        Encoding::Q6K => (210, &[208]),
        Encoding::F32 => (4, &[]),
    };
    for block in bytes.chunks_mut(block) {
        for at in scales {
            block[at + 1] = block[at + 1] & 0x83 | 0x2c;
        }
    }
    bytes
}

fn dequant(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let (rows, columns) = (scale.pick(5, 512), scale.pick(512, 4096));
    for (float, encoding) in FLOATS.into_iter().flat_map(|f| ENCODINGS.map(move |e| (f, e))) {
        let bytes = stored(bench, encoding, rows, columns);
        let on_stored = bench.up(&bytes)?;
        for (first, width, stride) in [(0, columns, columns), (columns / 2, columns / 4, 300)] {
            let stride = stride.max(width);
            let out = bench.room::<u16>(rows * stride)?;
            let of = Dequantise {
                encoding,
                out: out.pointer(),
                stored: on_stored.pointer(),
                rows: rows as u32,
                columns: columns as u32,
                first_column: first as u32,
                width: width as u32,
                out_stride: stride as u32,
            };
            let mut kernels = bench.kernels(float, 64, KvFloat::Same)?;
            kernels.dequantise(&bench.stream, &of).map_err(text)?;
            let mut values = vec![0.0; rows * columns];
            encoding.decode(&bytes, &mut values);
            let values = narrow(float, &values);
            let mut want = vec![0xA5A5_u16; rows * stride];
            for row in 0..rows {
                let from = row * columns + first;
                want[row * stride..row * stride + width]
                    .copy_from_slice(&values[from..from + width]);
            }
            let got = bench.down::<u16>(out.pointer())?;
            exact(&got, &want).map_err(|error| format!("{encoding:?} to {float:?}: {error}"))?;
        }
    }
    Ok(0.0)
}

fn gemm(bench: &mut Bench, scale: Scale) -> Result<f64, String> {
    let workspace = bench.room::<u8>(32 << 20)?;
    let mut gemm = Gemm::new(&bench.card, workspace.pointer()).map_err(text)?;
    let mut most = 0.0_f64;
    let sizes = [(1, scale.pick(48, 512)), (scale.pick(7, 37), scale.pick(40, 96))];
    for (rows, outputs) in sizes {
        for (float, wide_out, add) in
            [(Float::Bf16, false, false), (Float::F16, false, true), (Float::Bf16, true, false)]
        {
            let inputs = scale.pick(64, 4096);
            let shape = Shape {
                rows: rows as u32,
                outputs: outputs as u32,
                inputs: inputs as u32,
                float,
                wide: wide_out,
                add,
            };
            let planned = gemm.plan(shape).map_err(text)?;
            let all = planned.rows() as usize;
            let x = narrow(float, &bench.values(all * inputs, 1.0));
            let w = narrow(float, &bench.values(outputs * inputs, 1.0));
            let y = narrow(float, &bench.values(all * outputs, 1.0));
            let (on_x, on_w) = (bench.up(&x)?, bench.up(&w)?);
            let on_y = if wide_out { bench.room::<f32>(all * outputs)? } else { bench.up(&y)? };
            gemm.run(planned, on_x.pointer(), on_w.pointer(), on_y.pointer(), &bench.stream)
                .map_err(text)?;
            let (x, w, y) = (wide(float, &x), wide(float, &w), wide(float, &y));
            let mut want = Vec::new();
            for row in 0..rows {
                for out in 0..outputs {
                    let a = &x[row * inputs..(row + 1) * inputs];
                    let b = &w[out * inputs..(out + 1) * inputs];
                    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let own = if add { f64::from(y[row * outputs + out]) } else { 0.0 };
                    want.push(products.sum::<f64>() + own);
                }
            }
            let got = if wide_out {
                bench.down::<f32>(on_y.pointer())?
            } else {
                wide(float, &bench.down::<u16>(on_y.pointer())?)
            };
            let (near, sums) = if wide_out { (1e-5, 2e-4) } else { (step(float), 2e-3) };
            let sums = sums * (inputs as f64).sqrt() / 8.0;
            most = most.max(worst(&got[..rows * outputs], &want, near, sums)?);
        }
    }
    Ok(most)
}
