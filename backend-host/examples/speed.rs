//! Seconds of the forward pass and of greedy sampling: requests that come at once, with or without a
//! beginning in common, and are answered together. One line of JSON a round.
//!
//! `cargo run --release -p plimsoll-backend-host --example speed -- MODEL [THREADS] [int8|as-stored|f32|bf16]
//! [REQUESTS SHARED OWN NEW [ROUNDS]]`: tokens that all prompts share, tokens of each prompt's own, new tokens.

use std::{
    error::Error,
    io::{Write, stdout},
    path::Path,
    time::Instant,
};

use plimsoll_backend_host::model::{
    HostModel, Keep, KvFormat, ModelOptions, Outputs, Sampler, Sampling, Sequence,
};
use plimsoll_checkpoint::open_weights;
use plimsoll_core::tape::own::StepLimits;

const PAGE: usize = 16;
/// Tokens of a step.
const CHUNK: usize = 512;

/// Requests at once, tokens that their prompts share, tokens of their own, new tokens of each.
#[derive(Clone, Copy)]
struct Load {
    requests: usize,
    shared: usize,
    own: usize,
    new: usize,
}

/// The loads without arguments: a long prompt, then decodes alone and together.
const LOADS: [Load; 4] = [
    Load { requests: 1, shared: 0, own: 512, new: 1 },
    Load { requests: 1, shared: 0, own: 16, new: 64 },
    Load { requests: 4, shared: 0, own: 16, new: 64 },
    Load { requests: 16, shared: 0, own: 16, new: 64 },
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("a model is needed: a folder or a .gguf file")?;
    let threads = args.next().map_or(Ok(2), |text| text.parse())?;
    let keep = match args.next().as_deref() {
        None | Some("int8") => Keep::Int8,
        Some("as-stored") => Keep::AsStored,
        Some("f32") => Keep::F32,
        Some("bf16") => Keep::Bf16,
        Some(other) => return Err(format!("{other}: int8, as-stored, f32 or bf16").into()),
    };
    let numbers: Vec<usize> = args.map(|text| text.parse()).collect::<Result<_, _>>()?;
    let (loads, rounds) = match numbers.as_slice() {
        [] => (LOADS.to_vec(), 3),
        [requests, shared, own, new, rest @ ..] => {
            let load = Load { requests: *requests, shared: *shared, own: *own, new: *new };
            (vec![load], rest.first().copied().unwrap_or(3))
        }
        _ => return Err("REQUESTS SHARED OWN NEW belong together".into()),
    };
    let (shape, mut weights) = open_weights(Path::new(&path))?;
    let context = shape.context.min(2048);
    let limits = StepLimits { tokens: CHUNK as u64, outputs: 64 };
    let (pages, page_tokens, kv) = (16384 / PAGE, PAGE, KvFormat::F32);
    let options = ModelOptions { threads, limits, pages, page_tokens, context, keep, kv };
    let mut model = HostModel::load(&shape, &mut weights, &options)?;
    let mut out = stdout();
    for load in loads {
        for _ in 0..rounds {
            let [shared, prompts, decode, sampling] = answer(&mut model, load)?;
            writeln!(
                out,
                "{{\"keep\": \"{keep:?}\", \"threads\": {threads}, \"requests\": {}, \
                 \"shared\": {}, \"own\": {}, \"new\": {}, \"prefill_s\": {:.4}, \
                 \"decode_s\": {decode:.4}, \"sampling_s\": {sampling:.4}}}",
                load.requests,
                load.shared,
                load.own,
                load.new,
                shared + prompts,
            )?;
        }
    }
    Ok(())
}

fn token(i: usize, vocab: usize) -> u32 {
    (i * 7919 % vocab) as u32
}

/// Seconds of the shared prefix, of the prompts, of the decodes, and of sampling within them.
fn answer(model: &mut HostModel, load: Load) -> Result<[f64; 4], Box<dyn Error>> {
    let vocab = model.shape().vocab as usize;
    let shared: Vec<u32> = (0..load.shared).map(|i| token(i, vocab)).collect();
    let shared_pages = load.shared / PAGE;
    let own_pages = (load.shared % PAGE + load.own + load.new).div_ceil(PAGE);
    let tables: Vec<Vec<u32>> = (0..load.requests)
        .map(|r| {
            let own = shared_pages + r * own_pages..shared_pages + (r + 1) * own_pages;
            (0..shared_pages).chain(own).map(|page| page as u32).collect()
        })
        .collect();
    // Whole pages are shared; what is left over belongs to each prompt.
    let (common, rest) = shared.split_at(shared_pages * PAGE);
    let start = Instant::now();
    for (i, tokens) in common.chunks(CHUNK).enumerate() {
        let (table, before) = (&tables[0], i * CHUNK);
        model.step(&[Sequence { tokens, table, before, outputs: Outputs::None }])?;
    }
    let shared_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let greedy = || Sampler::new(Sampling::default(), &[]);
    let mut samplers = (0..load.requests).map(|_| greedy()).collect::<Result<Vec<_>, _>>()?;
    let mut last = vec![0; load.requests];
    let prompts: Vec<Vec<u32>> = (0..load.requests)
        .map(|r| {
            let own = (0..load.own).map(|i| token(i * 31 + r * 1009 + 5, vocab));
            rest.iter().copied().chain(own).collect()
        })
        .collect();
    let at_once = (CHUNK / prompts[0].len().max(1)).clamp(1, 64);
    for (group, prompts) in prompts.chunks(at_once).enumerate() {
        let first = group * at_once;
        let ends =
            prefill(model, (&tables[first..], common.len()), prompts, &mut samplers[first..])?;
        last[first..first + ends.len()].copy_from_slice(&ends);
    }
    let prompts_s = start.elapsed().as_secs_f64();
    let (start, mut sampling) = (Instant::now(), 0.0);
    for step in 1..load.new {
        let before = common.len() + prompts[0].len() + step - 1;
        let tokens: Vec<[u32; 1]> = last.iter().map(|token| [*token]).collect();
        let batch: Vec<Sequence<'_>> = tokens
            .iter()
            .zip(&tables)
            .map(|(tokens, table)| Sequence { tokens, table, before, outputs: Outputs::Last })
            .collect();
        let logits = model.step(&batch)?;
        let start = Instant::now();
        for ((last, sampler), row) in last.iter_mut().zip(&mut samplers).zip(logits.rows()) {
            *last = sampler.next(row).token;
        }
        sampling += start.elapsed().as_secs_f64();
    }
    Ok([shared_s, prompts_s, start.elapsed().as_secs_f64(), sampling])
}

/// The prompts of some requests in as few steps as they take; their first new tokens.
fn prefill(
    model: &mut HostModel,
    (tables, before): (&[Vec<u32>], usize),
    prompts: &[Vec<u32>],
    samplers: &mut [Sampler],
) -> Result<Vec<u32>, Box<dyn Error>> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let mut next = Vec::new();
    for at in (0..longest).step_by(CHUNK) {
        let batch: Vec<Sequence<'_>> = prompts
            .iter()
            .zip(tables)
            .map(|(tokens, table)| Sequence {
                tokens: &tokens[at..tokens.len().min(at + CHUNK)],
                table,
                before: before + at,
                outputs: Outputs::Last,
            })
            .collect();
        let logits = model.step(&batch)?;
        next = samplers.iter_mut().zip(logits.rows()).map(|(s, row)| s.next(row).token).collect();
    }
    Ok(next)
}
