//! What a model holds is what its plan says, a step takes nothing, and pages are lent and taken back.

use crate::common::{self, Kind, Noise, RUNNING, device, logits, options, scenario, shape, start};
use plimsoll_backend_cuda::{
    device::{Buffer, Card, cards},
    model::{CudaError, CudaModel, CudaOptions, LoadError, OpenedCuda},
};
use plimsoll_core::{
    model::encoding::Encoding,
    policy::plimsoll::device::{DevicePart, DevicePlan, DeviceRow},
    tape::own::{DecoderShape, Draw, Matrix, Outputs, Sequence, WeightId, WeightSource},
    units::Bytes,
};
use std::{convert::Infallible, rc::Rc};

fn small() -> DecoderShape {
    shape((8, 2, 64), Kind { tied: true, ..Kind::default() })
}

fn model(options: &CudaOptions) -> CudaModel {
    device(&small(), options, Encoding::Bf16).unwrap()
}

fn sum(plan: &DevicePlan) -> Bytes {
    plan.rows.iter().map(DeviceRow::bytes).sum()
}

/// Regions and the pool hold what was planned, libraries what was measured, and nobody else anything.
fn plan() {
    let options = CudaOptions { strict: true, host_pages: 4, ..options(16) };
    let opened = OpenedCuda::open(&small(), &options).unwrap();
    let plan = opened.plan().clone();
    assert_eq!(sum(&plan), plan.total);
    for row in &plan.rows {
        println!("{:>18} {:>12} {:?}", row.part.name(), row.planned.0, row.measured);
        assert!(row.measured.is_some(), "{:?} was not measured", row.part);
    }
    assert_eq!(plan.of(DevicePart::Unexplained), Bytes::ZERO);
    // What the fake takes: 4 MiB a module, 8 MiB for the handle and 2 MiB for each kind of product.
    assert_eq!(plan.of(DevicePart::Kernels), Bytes::mib(4));
    assert!(plan.of(DevicePart::Gemm) >= Bytes::mib(10));
    assert_eq!(plan.pages * 16, common::POOL);
    let graphs = opened.graphs();
    let batches: Vec<u64> = graphs.iter().map(|graph| graph.batch).collect();
    assert_eq!(batches, [1, 2, 4, 6]);
    assert!(graphs.iter().all(|graph| graph.nodes > 20));
    let cost: Bytes = graphs.iter().map(|graph| graph.bytes).sum();
    assert!(cost > Bytes::ZERO);
    assert_eq!(cost, plan.of(DevicePart::Graphs));
    let mut source = Noise { shape: small(), encoding: Encoding::Bf16 };
    let mut model = opened.load(&mut source).unwrap();
    scenario(16, |sequences| logits(&mut model, sequences));
    let held = &model.memory().unwrap()[0];
    for part in [
        DevicePart::Weights,
        DevicePart::Rotary,
        DevicePart::Inputs,
        DevicePart::Arena,
        DevicePart::Scratch,
        DevicePart::Workspace,
        DevicePart::KvPool,
    ] {
        let row = held.plan.row(part).unwrap();
        assert_eq!(row.measured, Some(row.planned), "{part:?}");
    }
    assert_eq!(held.plan.of(DevicePart::Unexplained), Bytes::ZERO);
    assert_eq!(sum(&held.plan), held.plan.total);
    assert_eq!(model.room().least(), Some(held.free));
}

/// Decode steps of all requests, tokens and logits by turns.
fn steps(model: &mut CudaModel, count: usize) {
    let tables: [[u32; 2]; RUNNING] = std::array::from_fn(|i| [2 * i as u32, 2 * i as u32 + 1]);
    let draw = Draw { temperature: 0.8, top_k: 5, top_p: 0.9, min_p: 0.0, unit: 0.3 };
    let draws = [Some(draw), None, Some(draw), None, Some(draw), Some(draw)];
    for step in 0..count {
        let sequence = |i: usize| Sequence {
            tokens: &[7, 11, 3, 200, 0, 5][i..=i],
            table: &tables[i],
            before: step % 31,
            outputs: Outputs::Last,
        };
        let batch: [Sequence<'_>; RUNNING] = std::array::from_fn(sequence);
        let batch = &batch[..1 + step % RUNNING];
        let done = model.step(batch, &draws[..batch.len()]).unwrap();
        assert_eq!(done.rows().count(), batch.len());
    }
    let prompt =
        Sequence { tokens: &[1, 2, 3, 4, 5], table: &tables[0], before: 0, outputs: Outputs::Last };
    assert_eq!(model.step(&[prompt], &draws[..1]).unwrap().count(), 1);
}

/// Steps allocate neither on the device nor on the host.
fn steady(count: usize) {
    let mut model = model(&options(16));
    steps(&mut model, 12);
    let before = model.memory().unwrap();
    let region = stats_alloc::Region::new(crate::COUNTING);
    steps(&mut model, count);
    let change = region.change();
    assert_eq!(change.allocations, 0, "{change:?}");
    assert_eq!(model.memory().unwrap(), before);
}

fn lend() {
    let mut options = options(16);
    // 16 KiB a page: 1024 pages in eight chunks of 2 MiB.
    options.args.max_total_tokens = Some(1024 * 16);
    let theirs = {
        let mut whole = model(&options);
        scenario(16, |sequences| logits(&mut whole, sequences))
    };
    let mut model = model(&options);
    let free = |model: &CudaModel| model.memory().unwrap()[0].free;
    let (all, chunk) = (free(&model), model.plans()[0].chunk);
    assert_eq!((chunk, model.pages()), (Bytes::mib(2), 1024));
    // The scenario's pages are below 64; the second chunk and the last page of the third.
    for page in (128..256).chain([383]) {
        model.lend(page).unwrap();
    }
    assert_eq!((free(&model), model.lent()), (all + chunk, 129));
    let held = &model.memory().unwrap()[0];
    assert_eq!(held.plan.of(DevicePart::KvPool), Bytes::mib(14));
    assert_eq!(held.plan.of(DevicePart::Unexplained), Bytes::ZERO);
    let again = model.lend(130).unwrap_err().to_string();
    assert_eq!(again, "page 130 is lent already");
    let nowhere = model.lend(1024).unwrap_err().to_string();
    assert_eq!(nowhere, "page 1024 is not one of the pool's 1024");
    let lent = Sequence { tokens: &[1], table: &[130], before: 0, outputs: Outputs::Last };
    let refused = model.step(&[lent], &[]).map(|_| ()).unwrap_err().to_string();
    assert_eq!(refused, "sequence 0: page is 130; allowed: below 1024, not lent");
    assert!(scenario(16, |sequences| logits(&mut model, sequences)) == theirs);
    // Somebody else takes it all: the page stays lent.
    let card: Rc<Card> = cards(&[0]).unwrap().remove(0);
    let other = Buffer::take(&card, free(&model)).unwrap();
    let error = model.take_back(200).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_lost(), "{error}");
    println!("{error}");
    assert_eq!(model.lent(), 129);
    // A page of a chunk that is here needs no memory.
    model.take_back(383).unwrap();
    drop(other);
    for page in 128..256 {
        model.take_back(page).unwrap();
    }
    assert_eq!((free(&model), model.lent()), (all, 0));
    let here = model.take_back(200).unwrap_err().to_string();
    assert_eq!(here, "page 200 is here already");
    assert!(scenario(16, |sequences| logits(&mut model, sequences)) == theirs);
}

/// A device without virtual memory serves, and lends nothing.
fn plain() {
    let mut model = model(&options(16));
    scenario(16, |sequences| logits(&mut model, sequences));
    let error = model.lend(3).unwrap_err().to_string();
    let why = "page 3 cannot be lent: the device's memory is one plain allocation";
    assert_eq!(error, why);
    println!("{:?}", model.memory().unwrap()[0].plan.row(DevicePart::KvPool));
}

/// Weights, and memory that is taken while they are read.
struct Thief {
    noise: Noise,
    card: Rc<Card>,
    taken: Option<Buffer>,
}

impl WeightSource for Thief {
    type Error = Infallible;

    fn weight(&mut self, id: WeightId) -> Result<Matrix, Infallible> {
        if self.taken.is_none() {
            self.taken = Some(Buffer::take(&self.card, Bytes::mib(6)).unwrap());
        }
        self.noise.weight(id)
    }
}

fn thief() {
    for strict in [false, true] {
        let options = CudaOptions { strict, ..options(16) };
        let opened = OpenedCuda::open(&small(), &options).unwrap();
        let noise = Noise { shape: small(), encoding: Encoding::Bf16 };
        let mut source = Thief { noise, card: cards(&[0]).unwrap().remove(0), taken: None };
        match opened.load(&mut source) {
            Ok(model) => {
                assert!(!strict);
                let plan = &model.memory().unwrap()[0].plan;
                assert_eq!(plan.of(DevicePart::Unexplained), Bytes::mib(6));
                assert_eq!(sum(plan), plan.total);
            }
            Err(LoadError::Cuda(CudaError::Unexplained { unexplained, .. })) => {
                assert!(strict);
                assert_eq!(unexplained, Bytes::mib(6));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

fn refusals() {
    let told = |result: Result<OpenedCuda, CudaError>| match result {
        Ok(_) => "opened".to_owned(),
        Err(error) => format!("{} {error}", error.is_refusal()),
    };
    println!("{}", told(OpenedCuda::open(&small(), &options(16))));
    let mut wide = small();
    wide.vocab = 1 << 22;
    println!("{}", told(OpenedCuda::open(&wide, &options(16))));
    let two = CudaOptions { devices: vec![0, 3], ..options(16) };
    println!("{}", told(OpenedCuda::open(&small(), &two)));
}

fn wrong_steps() {
    let mut model = model(&options(16));
    let right = Sequence { tokens: &[1], table: &[0], before: 0, outputs: Outputs::Last };
    let mut told = |sequences: &[Sequence<'_>], draws: &[Option<Draw>]| {
        model.step(sequences, draws).map(|_| ()).unwrap_err().to_string()
    };
    let due = "sequence 0: token is 203; allowed: below 203";
    assert_eq!(told(&[Sequence { tokens: &[203], ..right }], &[]), due);
    let due = "sequence 1: pages is 1; allowed: 2 for its 18 positions";
    assert_eq!(told(&[right, Sequence { before: 17, ..right }], &[]), due);
    assert_eq!(told(&[], &[]), "a step of 0 tokens and 0 outputs; planned: 102 and 102");
    assert_eq!(told(&[right; 7], &[]), "a step of 7 requests; planned: 6");
    let draw = Draw { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, unit: 1.0 };
    assert_eq!(told(&[right], &[Some(draw)]), "draw 0: unit is 1");
    assert_eq!(told(&[right], &[None, None]), "a step of 2 draws; planned: 1");
    let hot = Draw { temperature: f32::NAN, ..draw };
    assert_eq!(told(&[right], &[Some(hot)]), "draw 0: temperature is NaN");
    // Nothing has changed.
    assert_eq!(model.step(&[right], &[]).unwrap().count(), 1);
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    match common::part().as_deref() {
        None => {}
        Some("plan") => plan(),
        Some("few steps") => steady(1),
        Some("many steps") => steady(200),
        Some("lend") => lend(),
        Some("plain") => plain(),
        Some("thief") => thief(),
        Some("refusals") => refusals(),
        Some("wrong steps") => wrong_steps(),
        Some(other) => panic!("no part {other}"),
    }
}

#[track_caller]
fn passes(part: &str, settings: &[(&str, &str)]) -> Option<crate::support::Ended> {
    let ended = start("memory::child", part, settings)?;
    println!("{}", ended.text);
    ended.nothing_leaked();
    Some(ended)
}

#[test]
fn what_is_held_is_what_was_planned() {
    passes("plan", &[]);
}

#[test]
fn steps_take_nothing() {
    let Some(few) = passes("few steps", &[]) else { return };
    let many = passes("many steps", &[]).unwrap();
    assert_eq!(few.report["requests"], many.report["requests"], "a step asked for memory");
    assert!(many.report["launches"] > few.report["launches"]);
}

#[test]
fn pages_are_lent_and_taken_back() {
    passes("lend", &[]);
}

#[test]
fn a_device_without_virtual_memory_serves() {
    passes("plain", &[("FAKE_CUDA_VMM", "0")]);
}

#[test]
fn memory_that_nobody_claims_shows_and_is_fatal_when_asked() {
    passes("thief", &[]);
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    // 512 MiB of context on a device of 800.
    let Some(ended) = passes("refusals", &[("FAKE_CUDA_TOTAL", "838860800")]) else { return };
    for due in [
        "true device 0: without a pool the engine holds",
        "true device 0: the weights of this rank take 514.00 MiB, and 288.00 MiB of the device's 800.00 MiB",
        "true there is no CUDA device 3: the driver shows 1",
    ] {
        assert!(ended.text.contains(due), "{due}: {}", ended.text);
    }
}

#[test]
fn wrong_steps_are_errors_and_change_nothing() {
    passes("wrong steps", &[]);
}
