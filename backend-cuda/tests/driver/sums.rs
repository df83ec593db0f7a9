//! Sums over two devices, by the fake NCCL.

use super::device::{Bench, bench_on, refused};
use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::device::{
    Buffer, Comms, DevicePointer, Failure, Float, Part, SumFloat, cards,
};
use plimsoll_core::model::encoding::{bf16_to_f32, f32_to_bf16, f32_to_f16};
use plimsoll_core::units::Bytes;

struct Ranks {
    benches: Vec<Bench>,
    buffers: Vec<Buffer>,
    comms: Comms,
}

impl Ranks {
    fn two() -> Self {
        let cards = cards(&[0, 1]).unwrap();
        let comms = Comms::new(&cards).unwrap();
        let buffers = cards.iter().map(|card| Buffer::take(card, Bytes(4096)).unwrap()).collect();
        Self { benches: cards.into_iter().map(bench_on).collect(), buffers, comms }
    }

    fn place(&self, rank: usize) -> DevicePointer {
        self.buffers[rank].pointer()
    }

    fn sum(&self, count: u64, float: SumFloat) -> Result<(), Failure> {
        let parts: Vec<Part<'_>> = self
            .benches
            .iter()
            .zip(&self.buffers)
            .map(|(bench, buffer)| Part { place: buffer.pointer(), stream: &bench.stream })
            .collect();
        self.comms.all_reduce(&parts, count, float)
    }
}

fn sums() {
    let mut ranks = Ranks::two();
    assert!(ranks.comms.version().unwrap() > 20_000);
    let places = [ranks.place(0), ranks.place(1)];
    let left: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let right: Vec<f32> = (0..100).map(|i| 0.25 * i as f32 - 3.0).collect();
    ranks.benches[0].put(places[0], &left);
    ranks.benches[1].put(places[1], &right);
    ranks.sum(100, None).unwrap();
    for (bench, place) in ranks.benches.iter().zip(places) {
        let due: Vec<f32> = left.iter().zip(&right).map(|(a, b)| a + b).collect();
        assert_eq!(bench.get::<f32>(place, 100), due);
    }
    ranks.benches[0].put(places[0], &[f32_to_bf16(1.5); 3]);
    ranks.benches[1].put(places[1], &[f32_to_bf16(-4.0); 3]);
    ranks.sum(3, Some(Float::Bf16)).unwrap();
    let got = ranks.benches[1].get::<u16>(places[1], 3);
    assert!(got.iter().all(|bits| bf16_to_f32(*bits) == -2.5), "{got:?}");
    ranks.benches[0].put(places[0], &[f32_to_f16(0.125), f32_to_f16(1.0)]);
    ranks.benches[1].put(places[1], &[f32_to_f16(1024.0), f32_to_f16(-1.0)]);
    ranks.sum(2, Some(Float::F16)).unwrap();
    let got = ranks.benches[0].get::<u16>(places[0], 2);
    // 1024.125 lies between two halves.
    assert_eq!(got, [f32_to_f16(1024.0), f32_to_f16(0.0)]);
}

/// A step of a model that runs on two devices: fill, sum, copy, each device's part in a graph of
/// its own. The first device waits for the second.
fn graphs() {
    let ranks = Ranks::two();
    let streams = [&ranks.benches[0].stream, &ranks.benches[1].stream];
    let (first, second) = (ranks.place(0), ranks.place(1));
    let [from, to] = [0, 64].map(|offset| first.slice(offset, 8).unwrap());
    let parts = [first, second].into_iter().zip(streams);
    let parts: Vec<Part<'_>> = parts.map(|(place, stream)| Part { place, stream }).collect();
    let mut inner = None;
    let outer = streams[0].capture(|| {
        streams[0].fill_words(from, 1_f32.to_bits())?;
        inner = Some(streams[1].capture(|| {
            streams[1].fill_words(second.slice(0, 8)?, 2_f32.to_bits())?;
            ranks.comms.all_reduce(&parts, 2, None)
        })?);
        streams[0].copy_within(to, from)
    });
    let (outer, inner) = (outer.unwrap(), inner.unwrap());
    for _ in 0..3 {
        streams[0].fill(to, 0).unwrap();
        outer.launch(streams[0]).unwrap();
        inner.launch(streams[1]).unwrap();
        for stream in streams {
            stream.synchronize().unwrap();
        }
        assert_eq!(ranks.benches[0].get::<f32>(to, 2), [3.0; 2]);
    }
    // A device that is left alone waits for ever: on a fake that is an error.
    outer.launch(streams[0]).unwrap();
    println!("{}", streams[0].synchronize().unwrap_err());
}

fn misuse() {
    let ranks = Ranks::two();
    refused(ranks.sum(2000, None), "rank 0: 4096 bytes for 2000");
    let one = [Part { place: ranks.place(0), stream: &ranks.benches[0].stream }];
    refused(ranks.comms.all_reduce(&one, 1, None), "1 parts for 2 ranks");
    let crossed = [one[0], one[0]];
    refused(ranks.comms.all_reduce(&crossed, 1, None), "rank 1");
    let card = ranks.benches[0].card.clone();
    let twice = Comms::new(&[card.clone(), card]).err().unwrap();
    assert_eq!(twice.to_string(), "ncclCommInitAll returned invalid usage (5)");
    refused(Comms::new(&[]), "no cards");
    ranks.sum(10, None).unwrap();
    for bench in &ranks.benches {
        bench.stream.synchronize().unwrap();
    }
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    match part.to_str().unwrap() {
        "sums" => sums(),
        "graphs" => graphs(),
        "misuse" => misuse(),
        other => panic!("no part {other}"),
    }
}

fn start(part: &str) -> Option<Ended> {
    let folder = build(&[])?;
    Some(run_child("sums::child", part, &folder, &[("FAKE_CUDA_DEVICES", "2")]))
}

#[test]
fn ranks_sum_in_every_type() {
    if let Some(ended) = start("sums") {
        ended.nothing_leaked();
    }
}

#[test]
fn graphs_of_two_devices_meet() {
    let Some(ended) = start("graphs") else { return };
    assert!(ended.text.contains("CUDA_ERROR_LAUNCH_TIMEOUT (702)"), "{}", ended.text);
}

#[test]
fn misuse_of_sums_is_told() {
    if let Some(ended) = start("misuse") {
        ended.nothing_leaked();
    }
}
