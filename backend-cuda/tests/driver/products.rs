//! Matrix products over the fake cuBLASLt, against sums in double precision.

use super::device::{Bench, bench, refused};
use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::device::{Buffer, DevicePointer, Failure, Float, Gemm, Shape, bucket};
use plimsoll_core::model::encoding::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use plimsoll_core::units::Bytes;

const SHAPE: Shape =
    Shape { rows: 3, outputs: 24, inputs: 40, float: Float::Bf16, wide: false, add: false };

/// The workspace, and room for the three matrices.
struct Room {
    workspace: Buffer,
    memory: Buffer,
}

impl Room {
    fn new(bench: &Bench) -> Self {
        let workspace = Buffer::take(&bench.card, Bytes::mib(9)).unwrap();
        Self { workspace, memory: Buffer::take(&bench.card, Bytes::mib(12)).unwrap() }
    }

    fn places(&self) -> [DevicePointer; 3] {
        [0, 4, 8].map(|mib| self.memory.pointer().slice(mib << 20, 4 << 20).unwrap())
    }
}

/// Numbers between -1 and 1 that repeat nowhere soon, exact in either type.
fn numbers(count: u64, salt: u64) -> Vec<f32> {
    let one = |i: u64| {
        let mixed = (i + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57;
        (mixed as f32 - 64.0) / 64.0
    };
    (0..count).map(one).collect()
}

fn narrow(float: Float, value: f32) -> u16 {
    match float {
        Float::Bf16 => f32_to_bf16(value),
        Float::F16 => f32_to_f16(value),
    }
}

fn widen(float: Float, bits: u16) -> f32 {
    match float {
        Float::Bf16 => bf16_to_f32(bits),
        Float::F16 => f16_to_f32(bits),
    }
}

/// One product, run `times` times, against a reference.
fn agrees(bench: &mut Bench, gemm: &mut Gemm, room: &Room, shape: Shape, times: u32) {
    let [x, w, y] = room.places();
    let planned = gemm.plan(shape).unwrap();
    assert_eq!(planned.rows(), bucket(shape.rows));
    assert_eq!(gemm.plan(shape).unwrap(), planned, "asked again, it is the same plan");
    let (rows, outputs, inputs) =
        (u64::from(planned.rows()), u64::from(shape.outputs), u64::from(shape.inputs));
    let (xs, ws) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2));
    let bits = |values: &[f32]| -> Vec<u16> {
        values.iter().map(|value| narrow(shape.float, *value)).collect()
    };
    bench.put(x, &bits(&xs));
    bench.put(w, &bits(&ws));
    let old = numbers(rows * outputs, 3);
    if shape.wide {
        bench.put(y, &old)
    } else {
        bench.put(y, &bits(&old))
    }
    let graph = bench.stream.capture(|| gemm.run(planned, x, w, y, &bench.stream)).unwrap();
    for _ in 0..times {
        graph.launch(&bench.stream).unwrap();
    }
    let count = usize::try_from(rows * outputs).unwrap();
    let got: Vec<f32> = if shape.wide {
        bench.get(y, count)
    } else {
        bench.get(y, count).into_iter().map(|bits| widen(shape.float, bits)).collect()
    };
    let inputs = usize::try_from(inputs).unwrap();
    let outputs = usize::try_from(outputs).unwrap();
    for (at, got) in got.iter().enumerate() {
        let row = &xs[at / outputs * inputs..][..inputs];
        let column = &ws[at % outputs * inputs..][..inputs];
        let product: f64 = row.iter().zip(column).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let rest = if shape.add { f64::from(old[at]) } else { 0.0 };
        let due = rest + if shape.add { f64::from(times) } else { 1.0 } * product;
        let step = match (shape.wide, shape.float) {
            (true, _) => 1e-5,
            (false, Float::Bf16) => 1.0 / 128.0,
            (false, Float::F16) => 1.0 / 1024.0,
        };
        let apart = (f64::from(*got) - due).abs();
        assert!(
            apart <= step * due.abs().max(1.0) * f64::from(times),
            "{shape:?} {at}: {got} {due}"
        );
    }
}

fn products() {
    let mut bench = bench();
    let room = Room::new(&bench);
    let mut gemm = Gemm::new(&bench.card, room.workspace.pointer()).unwrap();
    assert!(gemm.version() >= 130_000);
    for (rows, outputs, inputs) in [
        (1, 8, 8),
        (1, 24, 40),
        (3, 24, 40),
        (7, 72, 16),
        (9, 56, 128),
        (65, 136, 72),
        (2, 1000, 576),
    ] {
        for float in [Float::Bf16, Float::F16] {
            for (wide, add) in [(false, false), (true, false), (false, true), (true, true)] {
                let shape = Shape { rows, outputs, inputs, float, wide, add };
                agrees(&mut bench, &mut gemm, &room, shape, if add { 2 } else { 1 });
            }
        }
    }
    // A row's sum does not depend on how many rows there are.
    let [x, w, y] = room.places();
    let mut sums = Vec::new();
    for rows in [1, 2, 5, 64] {
        let planned = gemm.plan(Shape { rows, wide: true, ..SHAPE }).unwrap();
        gemm.run(planned, x, w, y, &bench.stream).unwrap();
        sums.push(bench.get::<u32>(y, 24));
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    let timed = gemm.timed(SHAPE, [x, w, y], &bench.stream).unwrap();
    gemm.run(timed, x, w, y, &bench.stream).unwrap();
    bench.stream.synchronize().unwrap();
}

/// What a product needs is checked before the library is asked, and by it.
fn misuse() {
    let bench = bench();
    let room = Room::new(&bench);
    let [x, w, y] = room.places();
    let mut gemm = Gemm::new(&bench.card, room.workspace.pointer()).unwrap();
    let planned = gemm.plan(SHAPE).unwrap();
    let short = |p: DevicePointer, bytes| p.slice(0, bytes).unwrap();
    refused(gemm.run(planned, short(x, 4 * 40 * 2 - 1), w, y, &bench.stream), "x has 319 bytes");
    refused(gemm.run(planned, x, short(w, 24 * 40 * 2 - 1), y, &bench.stream), "w has 1919 bytes");
    refused(gemm.run(planned, x, w, short(y, 4 * 24 * 2 - 1), &bench.stream), "y has 191 bytes");
    refused(gemm.run(planned, x.tail(8).unwrap(), w, y, &bench.stream), "x has");
    // The plan is the first product's: the second's rows are another bucket.
    let other = gemm.plan(Shape { rows: 9, ..SHAPE }).unwrap();
    assert_ne!(other, planned);
    let odd = gemm.plan(Shape { inputs: 41, ..SHAPE }).unwrap_err();
    assert!(matches!(&odd, Failure::Library { code: 15, .. }), "{odd}");
    let text = "cublasLtMatmulAlgoGetHeuristic returned CUBLAS_STATUS_NOT_SUPPORTED (15)";
    assert_eq!(odd.to_string(), text);
    // Without a workspace there is a way that needs none.
    let mut bare = Gemm::new(&bench.card, DevicePointer::NULL).unwrap();
    let planned = bare.plan(SHAPE).unwrap();
    bare.run(planned, x, w, y, &bench.stream).unwrap();
    // A workspace that was given back is the device's end.
    drop(room);
    let gone = gemm.run(other, x, w, y, &bench.stream).and_then(|()| bench.stream.synchronize());
    println!("{}", gone.unwrap_err());
}

/// What the library takes for itself shows in the card's free memory.
fn costs() {
    let bench = bench();
    let room = Room::new(&bench);
    let [x, w, y] = room.places();
    let free = || bench.card.memory().unwrap().0;
    let start = free();
    let mut gemm = Gemm::new(&bench.card, room.workspace.pointer()).unwrap();
    println!("handle {}", start.saturating_sub(free()));
    for shape in [SHAPE, Shape { rows: 1, ..SHAPE }, Shape { wide: true, ..SHAPE }] {
        let before = free();
        let planned = gemm.plan(shape).unwrap();
        gemm.run(planned, x, w, y, &bench.stream).unwrap();
        println!("product {}", before.saturating_sub(free()));
    }
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    match part.to_str().unwrap() {
        "products" => products(),
        "misuse" => misuse(),
        "costs" => costs(),
        other => panic!("no part {other}"),
    }
}

fn start(part: &str) -> Option<Ended> {
    let folder = build(&[])?;
    Some(run_child("products::child", part, &folder, &[]))
}

#[test]
fn products_agree_with_sums_in_double_precision() {
    if let Some(ended) = start("products") {
        ended.nothing_leaked();
    }
}

#[test]
fn misuse_of_products_is_told() {
    let Some(ended) = start("misuse") else { return };
    assert!(ended.text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{}", ended.text);
}

#[test]
fn the_library_has_costs_of_its_own() {
    let Some(ended) = start("costs") else { return };
    ended.nothing_leaked();
    let due = "handle 8.00 MiB\nproduct 2.00 MiB\nproduct 0 B\nproduct 2.00 MiB\n";
    assert!(ended.text.contains(due), "{}", ended.text);
}
