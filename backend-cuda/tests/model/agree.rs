//! Logits of the device agree with those of the host, whatever the model, the pages, the type; graphs change
//! nothing, and neither do ranks beyond rounding.

use crate::common::{
    self, Kind, Logits, apart, device, host, logits, options, plain, random_steps, scenario, shape,
    start,
};
use plimsoll_backend_cuda::model::{Arithmetic, CudaOptions};
use plimsoll_backend_host::model::{HostModel, KvFormat};
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{DecoderShape, Sequence},
};

/// Two layers in bfloat16 against float32: activations are rounded some twenty times on their way.
const BF16: f64 = 0.02;
/// float16 has three more bits.
const F16: f64 = 0.003;
/// Rounding before fp8 moves a value to the next one now and then.
const FP8: f64 = 0.04;

fn on_host(shape: &DecoderShape, page: u64, kv: KvFormat, encoding: Encoding) -> Logits {
    let mut model: HostModel = host(shape, (page, kv), encoding);
    scenario(page, |sequences: &[Sequence<'_>]| {
        model.step(sequences).unwrap().rows().map(<[f32]>::to_vec).collect()
    })
}

fn on_device(shape: &DecoderShape, options: &CudaOptions, encoding: Encoding) -> Logits {
    let mut model = device(shape, options, encoding).unwrap();
    scenario(options.page_tokens, |sequences| logits(&mut model, sequences))
}

#[track_caller]
fn near(name: &str, ours: &Logits, theirs: &Logits, most: f64) {
    let (all, worst) = apart(ours, theirs);
    println!("{name}: {all:.5} apart, the worst row {worst:.5}");
    assert!(all < most && worst < 2.5 * most, "{name}: {all} apart, the worst row {worst}");
    // A model that answers the same to everything would agree too.
    let same = apart(&vec![theirs[0].clone(); theirs.len()], theirs).0;
    assert!(same > 2.0 * most, "{name}: {same}");
}

fn shapes() {
    let plain_kind = Kind { tied: true, ..Kind::default() };
    let all = Kind { biased: true, qk_norm: true, window: Some(20), tied: false };
    for (name, heads, kind, page) in [
        ("grouped, tied", (8, 2, 64), plain_kind, 16),
        ("biased, normed, window", (6, 3, 16), all, 16),
        ("wide heads, single slots", (4, 4, 128), Kind { window: Some(7), ..plain_kind }, 1),
        ("odd heads, odd pages", (5, 1, 40), Kind { biased: true, ..Kind::default() }, 8),
        ("widest heads", (2, 1, 256), plain_kind, 32),
    ] {
        let shape = shape(heads, kind);
        let theirs = on_host(&shape, page, KvFormat::Bf16, Encoding::Bf16);
        let ours = on_device(&shape, &options(page), Encoding::Bf16);
        near(name, &ours, &theirs, BF16);
    }
}

fn types() {
    let shape = shape((8, 2, 64), Kind { tied: true, ..Kind::default() });
    for (arithmetic, kv, most) in [
        (Arithmetic::F16, KvFormat::F16, F16),
        (Arithmetic::Bf16, KvFormat::Fp8E4m3, FP8),
        (Arithmetic::F16, KvFormat::Fp8E4m3, FP8),
    ] {
        let encoding = plain(arithmetic);
        let theirs = on_host(&shape, 16, kv, encoding);
        let options = CudaOptions { arithmetic, kv, ..options(16) };
        let name = format!("{} with {}", arithmetic.name(), kv.name());
        near(&name, &on_device(&shape, &options, encoding), &theirs, most);
    }
}

/// Weights as files store them; rows of 256 columns for the blocks of that many.
fn quantised() {
    let mut shape = shape((4, 2, 64), Kind { tied: true, ..Kind::default() });
    shape.hidden = 256;
    shape.layers.iter_mut().for_each(|layer| layer.intermediate = 256);
    for encoding in [
        Encoding::F32,
        Encoding::F16,
        Encoding::Q8_0,
        Encoding::Q4_0,
        Encoding::Q4_1,
        Encoding::Q4K,
        Encoding::Q6K,
    ] {
        let theirs = on_host(&shape, 16, KvFormat::Bf16, encoding);
        let ours = on_device(&shape, &options(16), encoding);
        near(encoding.name(), &ours, &theirs, BF16);
    }
}

/// The same bits with and without graphs: a batch takes the splits and products of its graph in both.
fn graphs() {
    let shape = shape((8, 2, 64), Kind { window: Some(30), ..Kind::default() });
    let with = options(16);
    let without = CudaOptions { graphs: Vec::new(), ..with.clone() };
    let ours = on_device(&shape, &with, Encoding::Bf16);
    let plain = on_device(&shape, &without, Encoding::Bf16);
    let (all, worst) = apart(&ours, &plain);
    println!("with and without graphs: {all:.6} {worst:.6}");
    assert!(all < 0.01, "{all}");
    // Graphs of the same sizes as the steps leave nothing to differ.
    let exact = CudaOptions { graphs: vec![1, 2, 3], ..with };
    let mut bare = device(&shape, &without, Encoding::Bf16).unwrap();
    let bare = scenario(16, |sequences| logits(&mut bare, sequences));
    let exact = on_device(&shape, &exact, Encoding::Bf16);
    assert!(exact == bare, "graphs changed bits");
}

fn ranks() {
    let kind = Kind { biased: true, qk_norm: true, ..Kind::default() };
    let shape = shape((8, 4, 32), kind);
    let one = CudaOptions { graphs: Vec::new(), ..options(16) };
    let two = CudaOptions { devices: vec![0, 1], ..one.clone() };
    let theirs = on_host(&shape, 16, KvFormat::Bf16, Encoding::Bf16);
    let single = on_device(&shape, &one, Encoding::Bf16);
    let ours = on_device(&shape, &two, Encoding::Bf16);
    near("one rank", &single, &theirs, BF16);
    near("two ranks", &ours, &theirs, BF16);
    // Quantised columns are cut in the middle of their blocks.
    let mut shape = common::shape((4, 2, 64), Kind { tied: true, ..Kind::default() });
    shape.layers.iter_mut().for_each(|layer| layer.intermediate = 96);
    let theirs = on_host(&shape, 16, KvFormat::Bf16, Encoding::Q8_0);
    near("two ranks, quantised", &on_device(&shape, &two, Encoding::Q8_0), &theirs, BF16);
}

/// Products whose algorithms are measured are the same products.
fn timed() {
    let shape = shape((4, 2, 64), Kind::default());
    let options = CudaOptions { timed_products: true, ..options(16) };
    let theirs = on_host(&shape, 16, KvFormat::Bf16, Encoding::Bf16);
    near("timed", &on_device(&shape, &options, Encoding::Bf16), &theirs, BF16);
}

/// Steps as a server forms them, on one rank with graphs and on two without.
fn random() {
    let kind = Kind { qk_norm: true, window: Some(40), ..Kind::default() };
    let shape = shape((4, 2, 32), kind);
    for (page, seed) in [(16, 1), (5, 2)] {
        let mut theirs = host(&shape, (page, KvFormat::Bf16), Encoding::Bf16);
        let theirs = random_steps((page, seed, 25), |sequences| {
            theirs.step(sequences).unwrap().rows().map(<[f32]>::to_vec).collect()
        });
        for devices in [vec![0], vec![0, 1]] {
            let name = format!("pages of {page} on {} ranks, {} rows", devices.len(), theirs.len());
            let options = CudaOptions { devices, ..options(page) };
            let mut ours = device(&shape, &options, Encoding::Bf16).unwrap();
            let ours = random_steps((page, seed, 25), |sequences| logits(&mut ours, sequences));
            near(&name, &ours, &theirs, BF16);
        }
    }
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    match common::part().as_deref() {
        None => {}
        Some("shapes") => shapes(),
        Some("types") => types(),
        Some("quantised") => quantised(),
        Some("graphs") => graphs(),
        Some("ranks") => ranks(),
        Some("timed") => timed(),
        Some("random") => random(),
        Some(other) => panic!("no part {other}"),
    }
}

#[track_caller]
fn passes(part: &str, settings: &[(&str, &str)]) {
    if let Some(ended) = start("agree::child", part, settings) {
        println!("{}", ended.text);
        ended.nothing_leaked();
    }
}

#[test]
fn shapes_agree_with_the_host() {
    passes("shapes", &[]);
}

#[test]
fn types_agree_with_the_host() {
    passes("types", &[]);
}

#[test]
fn quantised_weights_agree_with_the_host() {
    passes("quantised", &[]);
}

#[test]
fn graphs_change_nothing() {
    passes("graphs", &[]);
}

#[test]
fn timed_products_agree_with_the_host() {
    passes("timed", &[]);
}

#[test]
fn random_steps_agree_with_the_host() {
    passes("random", &[("FAKE_CUDA_DEVICES", "2")]);
}

#[test]
fn two_ranks_agree_with_one() {
    passes("ranks", &[("FAKE_CUDA_DEVICES", "2")]);
}

#[test]
fn another_order_of_threads_changes_nothing() {
    passes("graphs", &[("FAKE_CUDA_SEED", "7")]);
}
