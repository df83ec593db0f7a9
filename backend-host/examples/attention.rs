//! Time of one decode step by context, batch and storage of keys and values, on a model that is nearly all
//! attention, and what of it the pages cost: pages of 16 positions beside one that holds all.
//!
//! `cargo run --release -p plimsoll-backend-host --example attention -- [THREADS]`

#[path = "../tests/common/mod.rs"]
mod common;

use std::{
    error::Error,
    io::{Write, stdout},
    time::Instant,
};

use plimsoll_backend_host::model::{KvFormat, ModelOptions, Outputs, Sequence};
use plimsoll_core::tape::own::{LayerShape, StepLimits};

const STEPS: u32 = 8;
/// A batch shares the pages of one text: what is read of each is as much as with its own.
const BATCHES: [usize; 2] = [1, 16];

fn main() -> Result<(), Box<dyn Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(2), |text| text.parse())?;
    let mut shape = common::shape(8);
    shape.layers.fill(LayerShape { intermediate: 1, window: None });
    (shape.q_heads, shape.kv_heads, shape.context) = (9, 3, 8448);
    let mut out = stdout();
    for context in [128_usize, 2048, 8192] {
        for kv in KvFormat::ALL {
            for page_tokens in [16, 1 << 14] {
                let limits = StepLimits { tokens: 256, outputs: 16 };
                let pages = 8448_usize.div_ceil(page_tokens) + 16;
                let options = ModelOptions {
                    threads,
                    pages,
                    page_tokens,
                    kv,
                    ..common::options(limits, 1, 8448)
                };
                let mut model = common::load(&shape, &options);
                let table: Vec<u32> = (0..pages as u32).rev().collect();
                let start = Instant::now();
                for before in (0..context).step_by(128) {
                    let (tokens, outputs) = (&[1; 128][..], Outputs::None);
                    model.step(&[Sequence { tokens, table: &table, before, outputs }])?;
                }
                let prefill = context as f64 / start.elapsed().as_secs_f64();
                write!(
                    out,
                    "{context:5} {kv:?} pages of {page_tokens:5}: prefill {prefill:6.0} tok/s"
                )?;
                let (tokens, outputs) = (&[5][..], Outputs::Last);
                for batch in BATCHES {
                    // Each of a batch writes to a last page of its own.
                    let last = (context - 1) / page_tokens;
                    let tables: Vec<Vec<u32>> = (0..batch)
                        .map(|i| {
                            let mut table = table.clone();
                            table[last] = i as u32;
                            table
                        })
                        .collect();
                    let sequences: Vec<_> = tables
                        .iter()
                        .map(|table| Sequence { tokens, table, before: context - 1, outputs })
                        .collect();
                    model.step(&sequences)?;
                    let start = Instant::now();
                    for _ in 0..STEPS {
                        model.step(&sequences)?;
                    }
                    let step = start.elapsed() / STEPS;
                    let bytes = model.pool().cell().token_bytes().0 * (context * batch) as u64;
                    let rate = bytes as f64 / step.as_secs_f64() / 1e9;
                    write!(
                        out,
                        "  x{batch:2} {:8.3} ms {rate:5.1} GB/s",
                        step.as_secs_f64() * 1e3
                    )?;
                }
                writeln!(out)?;
            }
        }
    }
    Ok(())
}
