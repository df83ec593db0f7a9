//! The device chooses the tokens that the host's sampler chooses from the same logits by the same draws.

use crate::common::{self, Kind, Random, device, options, shape, start};
use plimsoll_backend_cuda::model::{Chosen, CudaModel};
use plimsoll_backend_host::model::{Sampler, Sampling};
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{Draw, Outputs, Sequence},
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// The first draw of the host's sampler with this seed.
fn unit(seed: u64) -> f64 {
    let mut stream = ChaCha8Rng::seed_from_u64(seed);
    (stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

fn choose(model: &mut CudaModel, batch: &[Sequence<'_>], draws: &[Option<Draw>]) -> Vec<u32> {
    let step = model.step(batch, draws).unwrap();
    let token = |chosen: Chosen<'_>| match chosen {
        Chosen::Token(token) => token,
        Chosen::Logits(_) => panic!("a token was asked for"),
    };
    step.rows().map(token).collect()
}

fn sampling() {
    let shape = shape((8, 2, 64), Kind { tied: true, ..Kind::default() });
    let mut model = device(&shape, &options(16), Encoding::Bf16).unwrap();
    let mut random = Random(3);
    let tables: [[u32; 1]; 4] = [[0], [1], [2], [3]];
    let (mut count, mut kinds) = (0, std::collections::BTreeSet::new());
    for round in 0..12_u64 {
        let tokens: [u32; 4] = std::array::from_fn(|_| (random.next() % 203) as u32);
        let one = |i: usize| Sequence {
            tokens: &tokens[i..=i],
            table: &tables[i],
            before: 0,
            outputs: Outputs::Last,
        };
        let batch: [Sequence<'_>; 4] = std::array::from_fn(one);
        let logits = common::logits(&mut model, &batch);
        let options = |i: u64| {
            let kind = (round + i) % 6;
            let (temperature, top_k, top_p, min_p) = [
                (0.0, 0, 1.0, 0.0),
                (1.0, 0, 1.0, 0.0),
                (0.7, 8, 1.0, 0.0),
                (1.3, 0, 0.8, 0.0),
                (1.0, 0, 1.0, 0.2),
                (0.9, 20, 0.9, 0.05),
            ][kind as usize];
            let seed = round * 4 + i;
            Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() }
        };
        let draws: Vec<Option<Draw>> = (0..4)
            .map(|i| {
                let Sampling { temperature, top_k, top_p, min_p, seed, .. } = options(i);
                Some(Draw { temperature, top_k, top_p, min_p, unit: unit(seed) })
            })
            .collect();
        let ours = choose(&mut model, &batch, &draws);
        for (i, (ours, row)) in ours.iter().zip(&logits).enumerate() {
            let options = options(i as u64);
            let theirs = Sampler::new(options, &[]).unwrap().next(row).token;
            assert_eq!(*ours, theirs, "{options:?}");
            kinds.insert(*ours);
            count += 1;
        }
        // A row without a draw beside rows with one.
        let mixed = [draws[0], None, draws[2], None];
        let step = model.step(&batch, &mixed).unwrap();
        let rows: Vec<Chosen<'_>> = step.rows().collect();
        assert_eq!(rows[0], Chosen::Token(ours[0]));
        assert_eq!(rows[1], Chosen::Logits(&logits[1]));
        assert_eq!(rows[2], Chosen::Token(ours[2]));
        assert_eq!(rows[3], Chosen::Logits(&logits[3]));
        assert_eq!(step.chosen(4), None);
    }
    println!("{count} draws, {} different tokens", kinds.len());
    assert!(kinds.len() > 20);
}

/// Not a case of its own: what the other starts.
#[test]
fn child() {
    match common::part().as_deref() {
        None => {}
        Some("sampling") => sampling(),
        Some(other) => panic!("no part {other}"),
    }
}

#[test]
fn the_device_draws_what_the_host_draws() {
    if let Some(ended) = start("sampling::child", "sampling", &[]) {
        println!("{}", ended.text);
        ended.nothing_leaked();
    }
}
