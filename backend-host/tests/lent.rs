//! Lending takes memory off the process at once, and a text in other pages does not notice.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]
#![cfg(target_os = "linux")]

mod common;

use plimsoll_backend_host::{
    linux::{Roots, own_memory},
    model::{HostModel, Outputs, Sequence},
};
use plimsoll_core::{tape::own::StepLimits, units::Bytes};

fn resident() -> Bytes {
    own_memory(&Roots::default()).unwrap().resident
}

fn next(model: &mut HostModel, token: u32, (table, before): (&[u32], usize)) -> u32 {
    let tokens = [token];
    let sequence = Sequence { tokens: &tokens, table, before, outputs: Outputs::Last };
    let logits = model.step(&[sequence]).unwrap();
    let row = logits.row(0).unwrap();
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
}

#[test]
fn lent_pages_leave_the_process_and_texts_go_on() {
    const PAGES: u32 = 256;
    const STEPS: usize = 60;
    let limits = StepLimits { tokens: 8, outputs: 1 };
    let mut model = common::load(&common::shape(8), &common::options(limits, 256, 256));
    let page = model.pool().page_bytes();
    assert_eq!(page, Bytes::kib(256), "16 tokens of 8 layers, 4 heads of 64, keys and values");
    let table = [17, 200, 3, 90];
    let mut quiet = vec![5];
    for step in 0..STEPS {
        quiet.push(next(&mut model, quiet[step], (&table, step)));
    }
    let whole = resident();
    let lent: Vec<u32> = (0..PAGES).filter(|page| !table.contains(page)).rev().collect();
    let given = Bytes(page.0 * lent.len() as u64);
    // The kernel counts a process's pages in batches.
    let near = Bytes::mib(1);
    let mut tokens = vec![5];
    for step in 0..STEPS {
        tokens.push(next(&mut model, tokens[step], (&table, step)));
        if step == 20 {
            lent.iter().for_each(|page| model.lend(*page).unwrap());
            let less = whole.saturating_sub(resident());
            eprintln!("{given} lent, {less} less in RAM");
            assert!(less + near > given && less < given + near, "{less} of {given}");
        }
        if step == 40 {
            lent.iter().for_each(|page| model.take_back(*page).unwrap());
            assert!(resident() + near > whole, "{} of {whole}", resident());
        }
    }
    assert_eq!(tokens, quiet);
    assert!(tokens.iter().any(|token| *token != tokens[1]), "a text that could differ");
}
