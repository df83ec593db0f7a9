//! After one step of each largest kind, steps and greedy sampling allocate nothing. A counting allocator
//! stands under the whole program, so this test has a program of its own.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

mod common;

use plimsoll_backend_host::model::{HostModel, ModelMemory, Outputs, Sampler, Sampling, Sequence};
use plimsoll_core::tape::own::StepLimits;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RUNNING: usize = 8;
const CHUNK: usize = 64;
/// Pages of one request: 48 positions beyond the chunk.
const PAGES: usize = 7;
/// A step is one call from outside of rayon's threads; its queue takes a block for every 63 of them.
const CALLS_OF_A_BLOCK: usize = 63;

/// A chunk of a prompt beside running requests, then those alone, many times; answers the steps.
fn serve(model: &mut HostModel, samplers: &mut [Sampler], tokens: &mut [u32; RUNNING]) -> usize {
    let table: [u32; PAGES * RUNNING] = std::array::from_fn(|page| page as u32);
    let prompt: [u32; CHUNK] = std::array::from_fn(|i| i as u32 * 7 % 300);
    let mut steps = 0;
    for (index, token) in tokens.iter_mut().enumerate() {
        let table = &table[index * PAGES..(index + 1) * PAGES];
        let sequence = Sequence { tokens: &prompt, table, before: 0, outputs: Outputs::Last };
        let logits = model.step(&[sequence]).unwrap();
        *token = samplers[index].next(logits.row(0).unwrap()).token;
        steps += 1;
    }
    for step in 0..PAGES * 16 - CHUNK {
        let before = CHUNK + step;
        let batch: [Sequence<'_>; RUNNING] = std::array::from_fn(|index| Sequence {
            tokens: std::slice::from_ref(&tokens[index]),
            table: &table[index * PAGES..(index + 1) * PAGES],
            before,
            outputs: Outputs::Last,
        });
        let logits = model.step(&batch).unwrap();
        let mut next = [0; RUNNING];
        for ((next, sampler), row) in next.iter_mut().zip(&mut *samplers).zip(logits.rows()) {
            *next = sampler.next(row).token;
        }
        *tokens = next;
        steps += 1;
    }
    steps
}

#[test]
fn after_the_largest_steps_nothing_is_allocated() {
    let shape = common::shape(3);
    let limits = StepLimits { tokens: (CHUNK + RUNNING) as u64, outputs: RUNNING as u64 };
    let options = common::options(limits, PAGES * RUNNING + 1, 256);
    let mut model = common::load(&shape, &options);
    // What is planned is what is held.
    let planned = ModelMemory::planned(&shape, &options).unwrap();
    let held = model.memory();
    assert_eq!(ModelMemory { weights: held.weights, ..planned }, held);
    let mut samplers: Vec<_> =
        (0..RUNNING).map(|_| Sampler::new(Sampling::default(), &[]).unwrap()).collect();
    let mut tokens = [0; RUNNING];
    // The same texts once before: the samplers' counts have a place for each token then.
    serve(&mut model, &mut samplers, &mut tokens);
    let region = Region::new(COUNTING);
    let steps = serve(&mut model, &mut samplers, &mut tokens);
    let change = region.change();
    eprintln!("{steps} steps: {change:?}");
    let blocks = steps.div_ceil(CALLS_OF_A_BLOCK);
    assert!(change.allocations <= blocks, "{} allocations in {steps} steps", change.allocations);
    assert!(change.bytes_allocated <= blocks * 2048, "{change:?}");
    assert_eq!(change.reallocations, 0);
    // The counter counts.
    let region = Region::new(COUNTING);
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(region.change().allocations, 1);
}
