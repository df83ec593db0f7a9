//! Readers of workloads, by figures that were counted by hand.

use super::*;
use plimsoll_core::units::Nanos;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

fn options() -> Options {
    Options::default()
}

fn read(text: &str, options: &Options) -> Import {
    import(text.as_bytes(), options).unwrap()
}

fn error(text: &str, options: &Options) -> String {
    import(text.as_bytes(), options).unwrap_err().to_string()
}

/// Time in nanoseconds, prompt, answer of each row.
fn rows(import: &Import) -> Vec<(u64, u32, u32)> {
    import.trace.rows.iter().map(|row| (row.at.0, row.input, row.output)).collect()
}

fn runs(import: &Import, row: usize) -> Vec<(u64, u32)> {
    import.trace.blocks(row).iter().map(|run| (run.first, run.len)).collect()
}

const MOONCAKE: &str = r#"
{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 3]}

{"timestamp": 6001, "input_length": 1700, "output_length": 7, "hash_ids": [0, 1, 2, 9]}
"#;

#[test]
fn mooncake_rows_have_runs_of_ids_and_times_from_the_first() {
    let import = read(MOONCAKE, &options());
    assert_eq!(import.trace.format, Format::Mooncake);
    assert_eq!(rows(&import), [(0, 1100, 5), (0, 1024, 6), (3001 * MS, 1700, 7)]);
    assert_eq!(runs(&import, 0), [(0, 3)]);
    assert_eq!(runs(&import, 1), [(0, 1), (3, 1)]);
    assert_eq!(runs(&import, 2), [(0, 3), (9, 1)]);
    assert_eq!(import.trace.block_size, 512);
    let summary = Summary::of(&import.trace);
    // Ids in order: 0 1 2, 0 3, 0 1 2 9: 4 of 9 were there.
    assert_eq!(summary.prefix_share, Some(4.0 / 9.0));
    assert_eq!((summary.requests, summary.waiting, summary.span), (3, 0, Nanos(3001 * MS)));
    // Gaps of 0 and 3001 ms: deviation and mean are the same.
    assert_eq!(summary.gap_cv, Some(1.0));
    assert_eq!((summary.input.p50, summary.input.p90, summary.input.max), (1100, 1700, 1700));
}

#[test]
fn the_size_of_blocks_is_found_where_the_usual_one_does_not_fit() {
    let rows = r#"{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [0, 1, 2, 3, 4, 5, 6]}
{"timestamp": 0, "input_length": 33, "output_length": 5, "hash_ids": [0, 1, 2]}"#;
    let import = read(rows, &options());
    assert_eq!(import.trace.block_size, 16);
    assert_eq!(import.notes, ["blocks have 16 tokens, as the rows show"]);
    let given = Options { block_size: Some(17), ..options() };
    // 100 / 17 is 6 blocks, 33 / 17 is 2: neither fits, so what fits is taken.
    assert_eq!(read(rows, &given).trace.block_size, 16);
    let odd = r#"{"timestamp": 0, "input_length": 99, "output_length": 5, "hash_ids": [0, 1, 2]}"#;
    assert!(error(odd, &options()).contains("give `block_size`"), "33 to 49 tokens a block");
}

#[test]
fn hashes_as_ids_are_numbered_and_stay_the_same() {
    let text = r#"{"chat_id": 1, "timestamp": 61.114, "input_length": 40, "output_length": 2, "type": "text", "turn": 1, "hash_ids": [-5, "00000000000000ff", 18446744073709551615]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62, "input_length": 48, "output_length": 2, "hash_ids": [-5, 255, 7]}"#;
    let import = read(text, &options());
    assert_eq!((import.trace.format, import.trace.block_size), (Format::Alibaba, 16));
    assert_eq!(rows(&import), [(0, 40, 2), (886 * MS, 48, 2)]);
    let first = 1 << 39;
    assert_eq!(runs(&import, 0), [(first, 1), (255, 1), (first + 1, 1)]);
    assert_eq!(runs(&import, 1), [(first, 1), (255, 1), (7, 1)]);
}

#[test]
fn azure_times_have_seven_digits() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                2023-11-16 23:59:59.9800000,10,4\r\n2023-11-17 00:00:00.0195000,20,5\r\n";
    let import = read(text, &options());
    assert_eq!(rows(&import), [(0, 10, 4), (39_500_000, 20, 5)]);
    // 2024 has a zone behind some of its times.
    let zoned = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 00:00:00+00:00,1,1\n\
                 2024-03-01T00:00:00.5Z,1,1\n";
    assert_eq!(rows(&read(zoned, &options()))[1].0, 86_400 * S + S / 2);
}

#[test]
fn burstgpt_is_read_by_its_header() {
    let first = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                 5,ChatGPT,472,18,490,Conversation log\n7,GPT-4,9,0,9,API log\n\
                 1106,ChatGPT,0,0,0,Conversation log\n";
    let second = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                  5.0,abc,1.25,\"Chat,GPT\",472,18,490,Conversation log\n6,,,GPT-4,1,2,3,API log\n";
    let import = read(first, &options());
    assert_eq!(rows(&import), [(0, 472, 18)]);
    let dropped: Vec<String> = import.dropped.iter().map(ToString::to_string).collect();
    assert_eq!(
        dropped,
        [
            "1 row left out: they have no answer: they failed (line 3)",
            "1 row left out: they have no prompt (line 4)"
        ]
    );
    let keep = Options { failures: Failures::Keep, ..options() };
    assert_eq!(rows(&read(first, &keep)), [(0, 472, 18), (2 * S, 9, 1)]);
    assert_eq!(rows(&read(second, &options())), [(0, 472, 18), (S, 1, 2)]);
}

#[test]
fn vidur_and_llmservingsim_are_lengths_at_times() {
    let csv = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.125,10,4\n1.000000001,20.0,5\n";
    assert_eq!(rows(&read(csv, &options())), [(0, 10, 4), (875_000_001, 20, 5)]);
    let lengths = "num_prefill_tokens,num_decode_tokens\n10,4\n";
    assert_eq!(
        read(lengths, &options()).notes,
        ["the file has no times: all rows are due at once"]
    );
    let json = r#"{"input_toks": 27, "output_toks": 16, "arrival_time_ns": 101537000}
{"input_toks": 13, "output_toks": 5, "arrival_time_ns": 144370001}"#;
    assert_eq!(rows(&read(json, &options())), [(0, 27, 16), (42_833_001, 13, 5)]);
}

#[test]
fn sharegpt_counts_the_first_two_turns() {
    let list = r#"[{"id": "a", "conversations": [{"from": "human", "value": "12345678"},
        {"from": "gpt", "value": "größer als"}, {"from": "human", "value": "x"}]},
      {"id": "b", "conversation": [{"value": "12345678", "tokens": 30}, {"value": "", "tokens": 5}]},
      {"id": "c", "conversations": [{"value": "alone"}]}, 7, {"conversations": "none"},
      {"id": "d", "conversations": [{"value": "1234567890123456"}, {"value": "1234"}]}]"#;
    let import = read(list, &options());
    // 8 and 10 characters at 4 a token: 2 and 2.5, half up.
    assert_eq!(rows(&import), [(0, 2, 3), (0, 30, 5)]);
    let counts: Vec<(u64, &[u64])> =
        import.dropped.iter().map(|d| (d.count, d.lines.as_slice())).collect();
    assert_eq!(counts, [(1, [3].as_slice()), (2, &[4, 5]), (1, &[6])]);
    assert!(import.notes[0].starts_with("lengths are estimates, at 4 characters a token"));
    let vllm = Options { filter: Filter::Vllm, ..options() };
    assert_eq!(rows(&read(list, &vllm)), [(0, 30, 5)]);
    let one = Options { limit: Some(1), ..options() };
    assert_eq!(rows(&read(list, &one)), [(0, 2, 3)]);
    let by_line = r#"{"conversations": [{"value": "12345678"}, {"value": "12345678"}]}
{"conversations": [{"value": "1234567890123456"}, {"value": "12345678"}]}"#;
    assert_eq!(rows(&read(by_line, &options())), [(0, 2, 2), (0, 4, 2)]);
    let cut = r#"[{"conversations": [{"value": "12345678"}, {"value": "12345678"}]}, {"con"#;
    assert!(error(cut, &options()).starts_with("after 1 conversations: line 1"));
}

#[test]
fn sessions_go_on_when_the_turn_before_is_answered() {
    let text = r#"{"session_id":"s","timestamp":0,"input_length":16,"output_length":4,"hash_ids":[201]}
{"session_id":"t","timestamp":7,"input_length":3,"output_length":1}
{"session_id":"s","timestamp":10,"delay":5,"input_length":8,"output_length":4,"hash_ids":[202]}
{"session_id":"s","timestamp":25,"input_length":8,"output_length":4,"hash_ids":[203]}"#;
    let import = read(text, &options());
    assert_eq!(import.trace.format, Format::MooncakeDelta);
    let link =
        |row, on, delay| Link { row, on, trigger: Trigger::Finish, delay: Nanos(delay * MS) };
    assert_eq!(import.trace.links, [link(2, 0, 5), link(3, 2, 15)]);
    let histories: Vec<_> = import.trace.rows.iter().map(Row::history).collect();
    assert_eq!(histories, [None, None, Some(0), Some(2)]);
    let summary = Summary::of(&import.trace);
    // 16; 3; 16 + 4 + 8; 28 + 4 + 8.
    assert_eq!((summary.input.max, summary.input.mean), (40, (16.0 + 3.0 + 28.0 + 40.0) / 4.0));
    assert_eq!(summary.waiting, 2);
}

const AGENTIC: &str = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":4,"hash_id_scope":"local"}
{"request_id":"root","input_length":4,"output_length":2,"hash_ids":[301],"not_before_ms":0,"dependencies":[]}
{"request_id":"child","input_length":4,"output_length":2,"hash_ids":[302],"not_before_ms":1,"dependencies":[{"request_id":"root","trigger":"dispatch","delay_ms":5,"relation":"spawn"}]}
{"request_id":"join","input_length":8,"output_length":2,"hash_ids":[301,303],"dependencies":[{"request_id":"root","trigger":"completion"},{"request_id":"child","trigger":"finish","delay_ms":0.5}]}"#;

#[test]
fn agents_wait_for_each_other() {
    let import = read(AGENTIC, &options());
    assert_eq!((import.trace.format, import.trace.block_size), (Format::AgenticMooncake, 4));
    let link = |row, on, trigger, delay| Link { row, on, trigger, delay: Nanos(delay) };
    assert_eq!(
        import.trace.links,
        [
            link(1, 0, Trigger::Dispatch, 5 * MS),
            link(2, 0, Trigger::Finish, 0),
            link(2, 1, Trigger::Finish, MS / 2)
        ]
    );
    let lost =
        AGENTIC.replace("\"request_id\":\"child\",\"trigger\"", "\"request_id\":\"x\",\"trigger\"");
    assert!(read(&lost, &options()).notes[0].contains("line 4: `request it waits for` is `x`"));
    let strict = Options { strict: true, ..options() };
    assert!(error(&lost, &strict).contains("expected the name of a row"));
    let circle = AGENTIC.replace("\"dependencies\":[]", "\"wait_for\":[\"join\"]");
    assert!(error(&circle, &options()).contains("in a circle"));
}

#[test]
fn our_own_rows_hold_everything() {
    let text = r#"{"id":"a","t_ns":5,"in":40,"out":3,"max_out":9,"blocks":[1,2,3],"block_size":16,"lora":"x","priority":-2}
{"id":2,"t_ns":5,"in":7,"out":4,"after":[{"id":"a","on":"finish","delay_ns":12}],"lora":"y","obs":{"ttft_ns":3}}"#;
    let import = read(text, &options());
    let first = import.trace.rows[0];
    assert_eq!((first.max_tokens.map(u32::from), first.namespace), (Some(9), 1));
    assert_eq!(import.trace.rows[1].namespace, 2);
    assert_eq!(import.trace.priorities.get(&0), Some(&-2));
    assert_eq!(import.trace.block_size, 16);
    let link = Link { row: 1, on: 0, trigger: Trigger::Finish, delay: Nanos(12) };
    assert_eq!(import.trace.links, [link]);
    let strict = Options { strict: true, ..options() };
    let twice = format!("{text}\n{}", r#"{"id":"a","t_ns":5,"in":7,"out":4}"#);
    assert!(error(&twice, &strict).starts_with("line 3: `id` is `a`; expected a name that no row"));
    let slip = r#"{"id":"a","t_ns":5,"in":7,"out":4,"maxout":3}"#;
    assert!(error(slip, &strict).contains("unknown field `maxout`"), "{}", error(slip, &strict));
}

#[test]
fn results_of_the_clients_are_workloads() {
    let vllm = r#"{"date": "x", "backend": "vllm", "num_prompts": 3, "request_rate": "inf", "x": -Infinity,
        "input_lens": [10, 20, 30], "output_lens": [4, 0, 6], "ttfts": [0.1, NaN, 0.2],
        "generated_texts": ["Infinity \" NaN", "", "b"], "errors": ["", "refused", ""],
        "start_times": [100.25, 100.5, 101.25]}"#;
    let vllm = vllm.replace("-Infinity", "Infinity");
    let import = read(&vllm, &options());
    assert_eq!(import.trace.format, Format::VllmBench);
    assert_eq!(rows(&import), [(0, 10, 4), (S, 30, 6)]);
    let sglang = r#"{"tag": null, "dataset_name": "random", "max_concurrency": 8, "input_lens": [1], "output_lens": [1]}
{"tag": null, "dataset_name": "random", "max_concurrency": 32, "input_lens": [5, 6], "output_lens": [7, 8]}"#;
    let import = read(sglang, &options());
    assert_eq!(import.trace.format, Format::SglangBench);
    assert_eq!(rows(&import), [(0, 5, 7), (0, 6, 8)]);
    assert_eq!(import.trace.concurrency, Some(32));
    assert_eq!(import.notes[0], "the file has 2 results; the last one is taken");
    let plain = r#"{"dataset_name": "random", "completed": 3}"#;
    assert!(error(plain, &options()).contains("without --output-details"));
}

#[test]
fn bad_rows_are_counted_or_end_the_reading() {
    let text = "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 5}\n\
                {\"timestamp\": 0, \"input_length\": \"9\", \"output_length\": 5}\n\
                {\"timestamp\": -1, \"input_length\": 9, \"output_length\": 5}\n\
                {\"timestamp\": 0, \"output_length\": 5}\n{\"timestamp\": 0, \n\
                {\"timestamp\": 0, \"input_length\": 2000000000, \"output_length\": 5}\n";
    let import = read(text, &options());
    assert_eq!(rows(&import), [(0, 9, 5)]);
    assert_eq!(
        import.dropped[0].to_string(),
        "5 rows left out: they cannot be read (lines 2, 3, 4, …; line 2, column 36: `input_length` is \
         `string \"9\"`; expected u64)"
    );
    let strict = |line: usize| {
        let (first, other) = (text.lines().next().unwrap(), text.lines().nth(line - 1).unwrap());
        error(&format!("{first}\n{other}"), &Options { strict: true, ..options() })
    };
    assert!(
        strict(3).contains("`timestamp` is `-1`; expected a time of 0 or more"),
        "{}",
        strict(3)
    );
    assert!(strict(4).contains("`input_length` is `nothing`"), "{}", strict(4));
    assert!(strict(5).contains("expected JSON: EOF"), "{}", strict(5));
    assert!(strict(6).contains("expected 0 to 1073741824 tokens"), "{}", strict(6));
    let csv = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,ten,4\n";
    let strict = Options { strict: true, ..options() };
    assert_eq!(
        error(csv, &strict),
        "line 2, column 5: `num_prefill_tokens` is `ten`; expected a whole number of tokens"
    );
    assert!(error(csv, &options()).starts_with("no row can be used as `vidur`: 1 row left out"));
}

#[test]
fn what_is_no_workload_is_refused() {
    assert!(error("", &options()).contains("the file is empty"));
    assert!(error("hello,world\n1,2\n", &options()).contains("shows no format that is known"));
    let header = Options { format: Some(Format::Azure), ..options() };
    assert!(error("a,b\n1,2\n", &header).contains("needs a column `TIMESTAMP`; it has `a,b`"));
}

#[test]
fn percentiles_are_values_that_occur() {
    let lengths = Distribution::of((1..=200).rev().collect());
    let expected = Distribution { mean: 100.5, p50: 100, p90: 180, p95: 190, p99: 198, max: 200 };
    assert_eq!(lengths, expected);
}

/// The public traces themselves, where they lie beside the checkout; the figures were counted with another
/// program.
#[test]
fn public_traces_have_their_known_figures() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared");
    let folder = std::env::var("PLIMSOLL_SHARED").unwrap_or_else(|_| beside.to_owned());
    let file = |name: &str| std::fs::read(format!("{folder}/data/workloads/{name}"));
    let Ok(mooncake) = file("mooncake-conversation.jsonl") else {
        println!("skipped: {folder} is not there");
        return;
    };
    let import = import(mooncake.as_slice(), &options()).unwrap();
    let summary = Summary::of(&import.trace);
    assert_eq!(summary.requests, 12_031);
    assert_eq!((summary.input.p50, summary.input.max, summary.output.p99), (6909, 126_195, 1120));
    assert!((summary.prefix_share.unwrap() - 0.366).abs() < 0.0005, "{summary:?}");
    assert!((summary.gap_cv.unwrap() - 3.03).abs() < 0.01, "{summary:?}");
    assert!(import.trace.size() < 12_031 * 150, "{} bytes", import.trace.size());
    let code = file("azure-2023-code.csv").unwrap();
    let summary = Summary::of(&super::import(code.as_slice(), &options()).unwrap().trace);
    assert_eq!((summary.requests, summary.input.p90, summary.output.max), (8819, 5194, 1899));
    assert!((summary.gap_cv.unwrap() - 13.15).abs() < 0.01, "{summary:?}");
}
