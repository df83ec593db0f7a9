//! Faults at every point: a refused request and a lost device are answers that say what they are, and nothing
//! leaks or panics.

use crate::common::{self, Kind, Noise, options, shape, start};
use plimsoll_backend_cuda::model::{CudaError, CudaModel, CudaOptions, LoadError, OpenedCuda};
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{DecoderShape, Outputs, Sequence, StepLimits},
};

fn tiny() -> DecoderShape {
    let mut shape = shape((2, 2, 16), Kind { tied: true, ..Kind::default() });
    (shape.hidden, shape.vocab) = (32, 40);
    shape.layers.iter_mut().for_each(|layer| layer.intermediate = 32);
    shape
}

fn few(devices: Vec<u32>) -> CudaOptions {
    let mut options = options(16);
    let settings = &mut options.settings;
    settings.max_running_requests = 2;
    settings.chunked_prefill_size = 6;
    settings.limits = StepLimits { tokens: 8, outputs: 2 };
    options.graphs = vec![1, 2];
    CudaOptions { devices, host_pages: 2, ..options }
}

fn answered(error: &CudaError) {
    match error {
        error if error.is_out_of_memory() => println!("out of memory: {error}"),
        error if error.is_lost() => println!("lost: {error}"),
        // The driver does not even begin.
        CudaError::Open(error) => println!("lost: {error}"),
        // What a failed call left as it was.
        CudaError::Page(error) => println!("page: {error}"),
        // What NCCL says to everything that its own calls were refused.
        CudaError::Device { what: "NCCL", .. } => println!("out of memory: {error}"),
        other => panic!("{other:?}"),
    }
}

/// A life: opened, loaded, steps, lending, pages to the host and back.
fn live(devices: Vec<u32>) {
    let options = few(devices);
    let opened = match OpenedCuda::open(&tiny(), &options) {
        Ok(opened) => opened,
        Err(error) => return answered(&error),
    };
    let mut source = Noise { shape: tiny(), encoding: Encoding::Q8_0 };
    let mut model = match opened.load(&mut source) {
        Ok(model) => model,
        Err(LoadError::Cuda(error)) => return answered(&error),
        Err(other) => panic!("{other}"),
    };
    for result in serve(&mut model) {
        match result {
            Ok(()) => println!("done"),
            Err(error) => answered(&error),
        }
    }
}

fn serve(model: &mut CudaModel) -> Vec<Result<(), CudaError>> {
    let prompt = Sequence { tokens: &[1, 2, 3], table: &[0], before: 0, outputs: Outputs::Last };
    let next = Sequence { tokens: &[4], before: 3, ..prompt };
    let mut all = vec![
        model.step(&[prompt], &[]).map(|_| ()),
        model.step(&[next], &[]).map(|_| ()),
        model.step(&[next, Sequence { table: &[1], ..next }], &[]).map(|_| ()),
        model.save(&[0, 1], &[0, 1]),
        model.restore(&[0, 1], &[2, 3]),
        model.copy_pages(&[2], &[4]),
    ];
    let last = model.pages() as u32;
    all.extend((1..last).map(|page| model.lend(page)));
    all.push(model.lend(0));
    all.push(model.take_back(0));
    all.push(model.take_back(0).or_else(|error| match error {
        // It came back at the first try.
        CudaError::Page(_) => Ok(()),
        error => Err(error),
    }));
    all.push(model.step(&[prompt], &[]).map(|_| ()));
    all
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    match common::part().as_deref() {
        None => {}
        Some("one") => live(vec![0]),
        Some("two") => live(vec![0, 1]),
        Some(other) => panic!("no part {other}"),
    }
}

const DEVICES: (&str, &str) = ("FAKE_CUDA_DEVICES", "2");

#[test]
fn a_refusal_at_any_request_is_told_and_leaks_nothing() {
    for part in ["one", "two"] {
        let Some(calm) = start("faults::child", part, &[DEVICES]) else { return };
        calm.nothing_leaked();
        assert!(
            !calm.text.contains("out of memory") && !calm.text.contains("lost"),
            "{}",
            calm.text
        );
        let requests = calm.report["requests"];
        assert!(requests > 20, "{:?}", calm.report);
        // Every request of one rank; samples of two.
        let step = if part == "one" { 1 } else { 5 };
        for at in (1..=requests).step_by(step) {
            let setting = ("FAKE_CUDA_FAIL_AT", &*at.to_string());
            let ended = start("faults::child", part, &[DEVICES, setting]).unwrap();
            ended.nothing_leaked();
            let told = ended.text.contains("out of memory") || ended.text.contains("lost: ");
            assert!(told, "request {at} of {part}: {}", ended.text);
        }
    }
}

#[test]
fn a_lost_device_at_any_call_is_told() {
    let Some(calm) = start("faults::child", "one", &[DEVICES]) else { return };
    let calls = calm.report["calls"];
    assert!(calls > 300, "{:?}", calm.report);
    let mut named = 0;
    let points = (1..10).chain((10..calls).step_by(usize::try_from(calls / 40).unwrap()));
    let points: Vec<i64> = points.collect();
    for at in &points {
        let setting = ("FAKE_CUDA_LOST_AT", &*at.to_string());
        let ended = start("faults::child", "one", &[DEVICES, setting]).unwrap();
        let text = &ended.text;
        named += usize::from(text.contains("719") && text.contains("lost: "));
        assert!(!text.contains("out of memory"), "{text}");
        assert_eq!(ended.report["contexts"], 0, "a lost context is released as well");
    }
    // The last calls are those of giving back.
    assert!(named * 5 > points.len() * 4, "only {named} of {} losses were told", points.len());
}
