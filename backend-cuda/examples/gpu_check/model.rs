//! A decoder on the card: that it answers as the host's, what it takes, and how fast it is beside what the card
//! can move and multiply at most.

use super::{
    bench::{Bench, Float, text},
    noise::{Noise, Size},
};
use plimsoll_backend_cuda::{
    device::{Event, Gemm, Shape},
    model::{Chosen, CudaModel, CudaOptions, OpenedCuda},
};
use plimsoll_backend_host::model::{HostModel, Keep, KvFormat, ModelOptions};
use plimsoll_core::{
    policy::plimsoll::device::{DevicePart, DevicePlan},
    tape::own::{Draw, Outputs, Sequence},
    units::{Bytes, Nanos},
};
use serde_json::{Value, json};
use std::time::Instant;

const PAGE: usize = 16;

fn opened(size: Size) -> Result<(OpenedCuda, f64), String> {
    let mut options = CudaOptions::new(size.settings()?, PAGE as u64);
    if size == Size::Tiny {
        options.args.max_total_tokens = Some(1024);
    }
    let started = Instant::now();
    let opened = OpenedCuda::open(&size.shape(), &options).map_err(text)?;
    Ok((opened, started.elapsed().as_secs_f64()))
}

/// Pages of a request that has pages of its own: `pages` a request.
fn table(request: usize, pages: usize) -> Vec<u32> {
    (request * pages..(request + 1) * pages).map(|page| page as u32).collect()
}

fn row(chosen: Option<Chosen<'_>>) -> Result<Vec<f32>, String> {
    match chosen {
        Some(Chosen::Logits(row)) => Ok(row.to_vec()),
        _ => Err("no logits".to_owned()),
    }
}

/// A prompt in two chunks and some tokens after it, on both; by how much the logits are apart, relative.
pub(crate) fn agrees_with_host() -> Result<Value, String> {
    let size = Size::Tiny;
    let (shape, settings) = (size.shape(), size.settings()?);
    let (device, _) = opened(size)?;
    let mut device = device.load(&mut Noise::new(&shape)).map_err(text)?;
    let options = ModelOptions {
        threads: 1,
        limits: settings.limits,
        pages: 64,
        page_tokens: PAGE,
        context: settings.context_length,
        keep: Keep::AsStored,
        kv: KvFormat::Bf16,
    };
    let mut host = HostModel::load(&shape, &mut Noise::new(&shape), &options).map_err(text)?;
    let ids: Vec<u32> = (0..60).map(|i| i * 37 % 320).collect();
    let (table, outputs) = ([9, 3, 5, 60], Outputs::Last);
    let mut apart = 0.0_f64;
    for (from, to) in [(0, 30), (30, 50), (50, 51), (51, 52), (52, 53)] {
        let step = Sequence { tokens: &ids[from..to], table: &table, before: from, outputs };
        let theirs = host.step(&[step]).map_err(text)?.row(0).unwrap_or_default().to_vec();
        let ours = row(device.step(&[step], &[]).map_err(text)?.chosen(0))?;
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let both = ours.iter().zip(&theirs).map(|(a, b)| f64::from(a - b));
        let own = square(&mut theirs.iter().map(|v| f64::from(*v)));
        apart = apart.max((square(&mut both.into_iter()) / own).sqrt());
    }
    let value = json!({ "relative_difference": apart, "allowed": 0.03 });
    if apart < 0.03 { Ok(value) } else { Err(value.to_string()) }
}

fn rows(plan: &DevicePlan) -> Value {
    let row = |row: &plimsoll_core::policy::plimsoll::device::DeviceRow| {
        json!({
            "part": row.part.name(),
            "planned_bytes": row.planned.0,
            "measured_bytes": row.measured.map(|bytes| bytes.0),
        })
    };
    plan.rows.iter().map(row).collect()
}

/// What the card moves and multiplies at most.
struct Ceilings {
    /// Bytes a second of a copy on the card, read and written.
    copy: f64,
    /// Operations a second of a large product.
    product: f64,
}

fn ceilings(size: Size) -> Result<Ceilings, String> {
    let bench = Bench::open(0, 3)?;
    let (bytes, side) = match size {
        Size::Tiny => (1 << 20, 64),
        Size::Llama8b => (2_usize << 30, 8192),
    };
    let (from, to) =
        (Event::timed(&bench.card).map_err(text)?, Event::timed(&bench.card).map_err(text)?);
    let timed = |times: u32, work: &dyn Fn() -> Result<(), String>| {
        work()?;
        from.record(&bench.stream).map_err(text)?;
        for _ in 0..times {
            work()?;
        }
        to.record(&bench.stream).map_err(text)?;
        bench.stream.synchronize().map_err(text)?;
        let Nanos(nanos) = to.since(&from).map_err(text)?;
        Ok::<_, String>(nanos.max(1) as f64 / 1e9 / f64::from(times))
    };
    let (a, b) = (bench.room::<u8>(bytes)?, bench.room::<u8>(bytes)?);
    let copy = timed(10, &|| bench.stream.copy_within(a.pointer(), b.pointer()).map_err(text))?;
    drop((a, b));
    let workspace = bench.room::<u8>(32 << 20)?;
    let mut gemm = Gemm::new(&bench.card, workspace.pointer()).map_err(text)?;
    let (rows, outputs, inputs) = (side, side, side);
    let shape = Shape { rows, outputs, inputs, float: Float::Bf16, wide: false, add: false };
    let planned = gemm.plan(shape).map_err(text)?;
    let square = (side * side) as usize;
    // Zeros take less power than numbers, and clocks would be higher than in earnest.
    let noise: Vec<u16> =
        (0..square).map(|i| 0x3c00 | ((i * 2_654_435_761) >> 9) as u16 & 0x83ff).collect();
    let (x, w) = (bench.up(&noise)?, bench.up(&noise)?);
    let y = bench.room::<u16>(square)?;
    let product = timed(20, &|| {
        gemm.run(planned, x.pointer(), w.pointer(), y.pointer(), &bench.stream).map_err(text)
    })?;
    let operations = 2.0 * f64::from(side).powi(3);
    Ok(Ceilings { copy: 2.0 * bytes as f64 / copy, product: operations / product })
}

/// Parameters that a token is multiplied with, and those of them before the head.
fn parameters(size: Size) -> (f64, f64) {
    let shape = size.shape();
    let matrices = shape.weights().filter_map(|id| shape.extent(id)).filter(|e| e.rows > 1);
    let all: u64 = matrices.map(|e| e.rows * e.columns).sum();
    let one = shape.vocab * shape.hidden;
    // The embedding is looked up, not multiplied.
    ((all - one) as f64, (all - 2 * one) as f64)
}

const GREEDY: Option<Draw> =
    Some(Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, unit: 0.0 });

/// Seconds of a decode step of so many requests with `before` tokens each.
fn decode(model: &mut CudaModel, batch: usize, before: usize, steps: usize) -> Result<f64, String> {
    let pages = (before + steps).div_ceil(PAGE) + 1;
    if pages * batch > model.pages() {
        return Err(format!("{batch} requests do not fit"));
    }
    let tables: Vec<Vec<u32>> = (0..batch).map(|request| table(request, pages)).collect();
    let mut started = Instant::now();
    for step in 0..steps + 2 {
        // The first two are not counted.
        if step == 2 {
            started = Instant::now();
        }
        let sequences: Vec<Sequence<'_>> = tables
            .iter()
            .map(|table| Sequence {
                tokens: &[1],
                table,
                before: before + step.min(steps - 1),
                outputs: Outputs::Last,
            })
            .collect();
        model.step(&sequences, &vec![GREEDY; batch]).map_err(text)?;
    }
    Ok(started.elapsed().as_secs_f64() / steps as f64)
}

/// Seconds of a prefill of one prompt.
fn prefill(model: &mut CudaModel, tokens: usize, times: usize) -> Result<f64, String> {
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i % 300).collect();
    let table = table(0, tokens.div_ceil(PAGE));
    let step = Sequence { tokens: &ids, table: &table, before: 0, outputs: Outputs::Last };
    model.step(&[step], &[GREEDY]).map_err(text)?;
    let started = Instant::now();
    for _ in 0..times {
        model.step(&[step], &[GREEDY]).map_err(text)?;
    }
    Ok(started.elapsed().as_secs_f64() / times as f64)
}

/// Memory that has gone since the model was ready.
fn grown(model: &CudaModel, ready: Option<Bytes>) -> Option<i64> {
    let (now, then) = (model.room().least()?.0, ready?.0);
    Some(then.cast_signed() - now.cast_signed())
}

/// Opens, loads and drives a model; the targets that it misses are an error.
pub(crate) fn served(size: Size) -> Result<Value, String> {
    let Ceilings { copy, product } = ceilings(size)?;
    let (opened, open_seconds) = opened(size)?;
    let graphs: Vec<Value> =
        opened.graphs().iter().map(|g| json!([g.batch, g.bytes.0, g.nodes])).collect();
    let started = Instant::now();
    let shape = size.shape();
    let mut model = opened.load(&mut Noise::new(&shape)).map_err(text)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let ready = model.room().least();
    let (multiplied, inner) = parameters(size);
    let (batches, before, steps, prompts): (&[usize], _, _, &[usize]) = match size {
        Size::Tiny => (&[1, 3], 20, 2, &[40]),
        Size::Llama8b => (&[1, 2, 4, 8, 16, 32, 64, 128, 256], 512, 50, &[128, 1024, 8192]),
    };
    let cell = model.plan().cell.token_bytes().0 as f64;
    let mut decodes = Vec::new();
    for batch in batches {
        let seconds = decode(&mut model, *batch, before, steps)?;
        let read = multiplied * 2.0 + cell * (before * batch) as f64;
        decodes.push(json!({
            "batch": batch,
            "ms": seconds * 1e3,
            "tokens_per_second": *batch as f64 / seconds,
            "part_of_copy_ceiling": read / seconds / copy,
        }));
    }
    let mut prefills = Vec::new();
    for tokens in prompts {
        let seconds = prefill(&mut model, *tokens, 3)?;
        let width = (shape.q_width() * shape.layers.len() as u64) as f64;
        let n = *tokens as f64;
        // Products with the weights, the head's for one row, and the causal half of scores and sums.
        let operations = 2.0 * inner * n + 2.0 * (multiplied - inner) + 2.0 * n * n * width;
        prefills.push(json!({
            "tokens": tokens,
            "ms": seconds * 1e3,
            "tokens_per_second": n / seconds,
            "part_of_product_ceiling": operations / seconds / product,
        }));
    }
    let grown = grown(&model, ready);
    let value = json!({
        "copy_ceiling_bytes_per_second": copy,
        "product_ceiling_operations_per_second": product,
        "open_seconds": open_seconds,
        "load_seconds": load_seconds,
        "pool_tokens": model.plan().pool_tokens(),
        "plan": rows(model.plan()),
        "unexplained_bytes": model.plan().of(DevicePart::Unexplained).0,
        "graph_batch_bytes_nodes": graphs,
        "decode": decodes,
        "prefill": prefills,
        "grown_since_ready_bytes": grown,
    });
    let targets = [
        (
            "decode at batch 1 below 75 % of the copy ceiling",
            value["decode"][0]["part_of_copy_ceiling"].as_f64(),
            0.75,
        ),
        (
            "prefill below 50 % of the product ceiling",
            value["prefill"][2]["part_of_product_ceiling"].as_f64(),
            0.5,
        ),
        ("start with graphs above 15 s", Some(15.0 / open_seconds), 1.0),
    ];
    let missed = targets.iter().filter(|(_, part, least)| part.is_some_and(|part| part < *least));
    let mut missed: Vec<&str> = missed.map(|(what, ..)| *what).collect();
    if size == Size::Tiny {
        missed.clear();
    }
    if grown != Some(0) {
        missed.push("free memory has changed since it was ready");
    }
    if missed.is_empty() { Ok(value) } else { Err(format!("{}: {value}", missed.join("; "))) }
}
