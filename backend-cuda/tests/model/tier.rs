//! Pages that go to the host and come back elsewhere hold what they held, and so do copies inside the pool.

use crate::common::{self, Kind, device, logits, options, shape, start};
use plimsoll_backend_cuda::model::CudaOptions;
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{Outputs, Sequence},
};

fn pages() {
    let shape = shape((4, 2, 16), Kind { tied: true, ..Kind::default() });
    let options = CudaOptions { host_pages: 8, ..options(16) };
    let mut model = device(&shape, &options, Encoding::Bf16).unwrap();
    let ids: Vec<u32> = (0..90).map(|i| i * 31 % 203).collect();
    let prompt = |table, tokens| Sequence { tokens, table, before: 0, outputs: Outputs::Last };
    let next = |table| Sequence { tokens: &[9], table, before: 90, outputs: Outputs::Last };
    let first: Vec<u32> = (0..6).collect();
    let second: Vec<u32> = (10..16).collect();
    let third: Vec<u32> = (20..26).rev().collect();
    logits(&mut model, &[prompt(&first, &ids)]);
    let due = logits(&mut model, &[next(&first)]);
    // To the host, something else into the pages, and back to others.
    let slots = [7, 2, 3, 0, 5, 1];
    model.save(&first, &slots).unwrap();
    let other: Vec<u32> = ids.iter().rev().copied().collect();
    logits(&mut model, &[prompt(&first, &other)]);
    assert!(logits(&mut model, &[next(&first)]) != due, "the pages hold another text");
    model.restore(&slots, &second).unwrap();
    assert!(logits(&mut model, &[next(&second)]) == due);
    model.copy_pages(&second, &third).unwrap();
    logits(&mut model, &[prompt(&second, &other)]);
    assert!(logits(&mut model, &[next(&third)]) == due);
    let told = |error: plimsoll_backend_cuda::model::CudaError| error.to_string();
    let error = model.save(&[0], &[8]).map_err(told).unwrap_err();
    assert_eq!(error, "slot of the host is 8; allowed: below 8");
    let error = model.restore(&[0, 1], &[0]).map_err(told).unwrap_err();
    assert!(error.starts_with("pages of a copy is 2; allowed: 1"), "{error}");
    model.lend(40).unwrap();
    let error = model.copy_pages(&[40], &[1]).map_err(told).unwrap_err();
    assert_eq!(error, "page 40 is lent already");
}

/// Not a case of its own: what the other starts.
#[test]
fn child() {
    match common::part().as_deref() {
        None => {}
        Some("pages") => pages(),
        Some(other) => panic!("no part {other}"),
    }
}

#[test]
fn pages_come_back_as_they_went() {
    if let Some(ended) = start("tier::child", "pages", &[]) {
        println!("{}", ended.text);
        ended.nothing_leaked();
    }
}
