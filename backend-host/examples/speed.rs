//! Tokens a second of the forward pass: prefill of a prompt, decode alone and in a batch.
//!
//! `cargo run --release -p plimsoll-backend-host --example speed -- MODEL [THREADS] [as-stored|f32|bf16]`

use std::{
    error::Error,
    io::{Write, stdout},
    path::Path,
    time::Instant,
};

use plimsoll_backend_host::model::{HostModel, Keep, KvFormat, ModelOptions, Outputs, Sequence};
use plimsoll_checkpoint::open_weights;
use plimsoll_core::tape::own::StepLimits;

const PROMPT: usize = 256;
const STEPS: usize = 30;
const BATCH: usize = 16;
const PAGE: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("a model is needed: a folder or a .gguf file")?;
    let threads = args.next().map_or(Ok(2), |text| text.parse())?;
    let keep = match args.next().as_deref() {
        None | Some("as-stored") => Keep::AsStored,
        Some("f32") => Keep::F32,
        Some("bf16") => Keep::Bf16,
        Some(other) => return Err(format!("{other}: as-stored, f32 or bf16").into()),
    };
    let (shape, mut weights) = open_weights(Path::new(&path))?;
    let context = shape.context.min(2048);
    let limits = StepLimits { tokens: PROMPT as u64, outputs: BATCH as u64 };
    let (pages, page_tokens, kv) = (4096 / PAGE, PAGE, KvFormat::F32);
    let options = ModelOptions { threads, limits, pages, page_tokens, context, keep, kv };
    let mut model = HostModel::load(&shape, &mut weights, &options)?;
    let mut out = stdout();
    writeln!(out, "{threads} threads, {keep:?}, {:?}", model.memory())?;
    let table: Vec<u32> = (0..pages as u32).collect();
    let tokens: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7 % shape.vocab as u32).collect();
    for round in 0..3 {
        let start = Instant::now();
        let prompt = Sequence { tokens: &tokens, table: &table, before: 0, outputs: Outputs::Last };
        model.step(&[prompt])?;
        let prefill = PROMPT as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for step in 0..STEPS {
            let before = PROMPT + step;
            let one = Sequence { tokens: &[5], table: &table, before, outputs: Outputs::Last };
            model.step(&[one])?;
        }
        let decode = STEPS as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for step in 0..STEPS / 3 {
            let batch: Vec<Sequence<'_>> = table
                .chunks(128 / PAGE)
                .take(BATCH)
                .map(|table| Sequence { tokens: &[5], table, before: step, outputs: Outputs::Last })
                .collect();
            model.step(&batch)?;
        }
        let batch = (BATCH * (STEPS / 3)) as f64 / start.elapsed().as_secs_f64();
        writeln!(
            out,
            "round {round}: prefill {prefill:.0} tok/s, decode {decode:.1} tok/s, \
             {BATCH} at once {batch:.0} tok/s"
        )?;
    }
    Ok(())
}
