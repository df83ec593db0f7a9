//! Properties of the log reader: how a log reached us does not change what it says.

use std::io::{BufReader, Cursor};

use plimsoll_ingest::log::{Event, Input, Log, Rank, Redact, read, read_text};
use proptest::prelude::*;

/// One rank's lines of a start, with figures of its own.
fn start(rank: u32, free: u32, used: u32, tokens: u32) -> Vec<String> {
    let tag = format!("[2026-04-05 06:07:08 TP{rank}]");
    let gb = |hundredths: u32| format!("{}.{:02} GB", hundredths / 100, hundredths % 100);
    let after = free - used;
    vec![
        format!("{tag} Load weight begin. avail mem={}", gb(free)),
        format!(
            "{tag} Load weight end. type=AForCausalLM, avail mem={}, mem usage={}.",
            gb(after),
            gb(used)
        ),
        format!("{tag} KV Cache is allocated. #tokens: {tokens}, K size: 1.00 GB, V size: 1.00 GB"),
        format!("{tag} Memory pool end. avail mem={}", gb(after / 2)),
        format!(
            "{tag} Decode batch. #running-req: 3, #token: {tokens}, token usage: 0.50, gen throughput (token/s): 7.25, #queue-req: 1"
        ),
        format!("{tag} max_total_num_tokens={tokens}, chunked_prefill_size=8192, context_len=4096"),
    ]
}

fn of_rank(log: &Log, rank: u32) -> Vec<String> {
    let own = |event: &&Event| event.rank == Rank::tp(rank);
    let mut said: Vec<String> = log
        .events
        .iter()
        .filter(own)
        .map(|event| format!("{} {:?}", event.start, event.kind))
        .collect();
    let counted = log.activity.iter().filter(|((_, by), _)| *by == Rank::tp(rank));
    said.extend(counted.map(|((start, _), activity)| {
        format!("{start} {:?} {:?}", activity.held_tokens.last, activity.usage.most)
    }));
    said
}

fn read_in(parts: &[&str], buffer: usize) -> Log {
    let mut readers: Vec<_> =
        parts.iter().map(|part| BufReader::with_capacity(buffer, Cursor::new(part))).collect();
    let mut inputs: Vec<Input<'_>> =
        readers.iter_mut().map(|text| Input { name: "part", text }).collect();
    read(&mut inputs, Redact::Yes).unwrap_or_default()
}

fn kinds(log: &Log) -> Vec<String> {
    log.events
        .iter()
        .map(|event| format!("{} {} {:?}", event.start, event.rank, event.kind))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn interleaved_ranks_keep_their_figures(
        free in prop::collection::vec((2000_u32..9000, 100_u32..1900, 1_u32..9_000_000), 2..4),
        order in prop::collection::vec(0_usize..4, 0..40),
    ) {
        let mut queues: Vec<_> = free
            .iter()
            .zip(0..)
            .map(|((free, used, tokens), rank)| start(rank, *free, *used, *tokens).into_iter())
            .collect();
        let alone: Vec<_> = queues.iter().map(|lines| lines.as_slice().join("\n")).collect();
        let ranks = queues.len();
        let mut mixed = String::new();
        for pick in order.into_iter().chain((0..ranks).flat_map(|rank| [rank; 6])) {
            if let Some(line) = queues[pick % ranks].next() {
                mixed += &line;
                mixed.push('\n');
            }
        }
        let log = read_text(&mixed);
        for (rank, text) in (0..).zip(&alone) {
            prop_assert_eq!(of_rank(&log, rank), of_rank(&read_text(text), rank));
        }
    }

    #[test]
    fn files_and_buffers_do_not_matter(
        free in 2000_u32..9000,
        tokens in 1_u32..9_000_000,
        cut in 0_usize..12,
        buffer in 1_usize..90,
    ) {
        let lines: Vec<_> =
            start(0, free, 700, tokens).into_iter().chain(start(1, free, 900, tokens)).collect();
        let (first, second) = lines.split_at(cut);
        let (first, second) = (first.join("\n") + "\n", second.join("\n"));
        let whole = format!("{first}{second}");
        let once = read_text(&whole);
        prop_assert_eq!(kinds(&read_in(&[&whole], buffer)), kinds(&once));
        let parts = read_in(&[&first, &second], buffer);
        prop_assert_eq!(kinds(&parts), kinds(&once));
        prop_assert_eq!(parts.activity.len(), once.activity.len());
    }

    #[test]
    fn any_bytes_are_read_in_bounds(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut text = Cursor::new(&bytes);
        let log = read(&mut [Input { name: "any", text: &mut text }], Redact::Yes);
        prop_assert!(log.is_ok_and(|log| log.events.len() <= Log::EVENTS));
    }
}
