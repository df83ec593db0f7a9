//! Measured times: every form, what is refused, and the order of what is read.

use super::*;
use proptest::prelude::*;

#[test]
fn rows_on_two_clocks() {
    let text = r#"
{"request_id": "a", "input_toks": 100, "output_toks": 3, "arrival_time": 1777000001.5, "queued_ts": 11.7, "first_token_ts": 12.0, "last_token_ts": 12.5}
{"request_id": "b", "input_toks": 50, "output_toks": 1, "arrival_time": 1777000000.0, "queued_ts": 10.0, "first_token_ts": 10.25, "last_token_ts": 10.25}
{"request_id": "c", "input_toks": 50, "output_toks": 0, "arrival_time": 1777000000.0}
"#;
    let read = requests(text).unwrap();
    assert_eq!(read.form, Form::Rows);
    assert_eq!(read.notes.len(), 2, "{:?}", read.notes);
    let [b, a] = read.list[..] else { panic!("{:?}", read.list) };
    assert_eq!((b.arrival, b.input, b.tpot()), (Nanos(0), 50, None));
    assert_eq!(a.arrival, Nanos(1_500_000_000));
    let near = |at: Nanos, to: u64| at.0.abs_diff(to) < 1000;
    assert!(near(a.queued.unwrap(), 1_700_000_000), "{a:?}");
    assert!(near(a.ttft(), 300_000_000) && near(a.tpot().unwrap(), 250_000_000), "{a:?}");
}

#[test]
fn spans_instead_of_times() {
    let text = r#"{"prompt_tokens": 7, "completion_tokens": 5, "start_time": 3.0, "ttft": 0.5, "latency": 2.5}"#;
    let [one] = requests(text).unwrap().list[..] else { panic!() };
    assert_eq!((one.ttft(), one.last), (Nanos(500_000_000), Nanos(2_500_000_000)));
}

#[test]
fn a_closed_loop_is_put_together() {
    let text = r#"{"date": "x", "request_rate": "inf", "max_concurrency": 1, "input_lens": [10, 20, 30],
        "output_lens": [2, 0, 3], "ttfts": [0.5, 0.0, 0.25], "itls": [[0.5], [], [0.25, 0.5]],
        "errors": ["", "lost", ""], "mean_ttft_ms": 1.0}"#;
    let read = requests(text).unwrap();
    assert_eq!(read.form, Form::VllmBench);
    let [first, second] = read.list[..] else { panic!("{:?}", read.list) };
    assert_eq!((first.arrival, first.last), (Nanos(0), Nanos(1_000_000_000)));
    assert_eq!((second.arrival, second.last), (Nanos(1_000_000_000), Nanos(2_000_000_000)));
    let dated = text.replace("\"max_concurrency\": 1", "\"start_times\": [5.0, 5.5, 6.5]");
    let read = requests(&dated.replace("\"inf\"", "2.0")).unwrap();
    assert_eq!(read.list[1].arrival, Nanos(1_500_000_000));
    let sglang = text.replace("\"date\"", "\"tag\"");
    assert_eq!(requests(&sglang).unwrap().form, Form::SglangBench);
}

#[test]
fn what_is_wrong_is_named() {
    let say = |text: &str| requests(text).unwrap_err().to_string();
    let said = [
        say(""),
        say("{"),
        say("[1]"),
        say(r#"{"input_tokens": 1}"#),
        say(r#"{"input_tokens": -1, "output_tokens": 1, "arrival": 0}"#),
        say(r#"{"input_tokens": 1, "output_tokens": 1, "arrival": "soon"}"#),
        say(r#"{"input_tokens": 1, "output_tokens": 1, "arrival": 0, "ttft": 2, "latency": 1}"#),
        say(r#"{"input_tokens": 1, "output_tokens": 0, "arrival": 0}"#),
        say(r#"{"mean_ttft_ms": 3.5}"#),
        say(r#"{"input_lens": [1], "output_lens": [1], "ttfts": [0.1], "itls": []}"#),
        say(r#"{"input_lens": [1], "output_lens": [1], "ttfts": [-0.1], "itls": [[]]}"#),
        say(
            r#"{"input_lens": [1], "output_lens": [1], "ttfts": [0.1], "itls": [[]], "request_rate": 2.0}"#,
        ),
    ];
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn windows_are_steady() {
    let log = "\
INFO Decode batch, #running-req: 8, #token: 9000, token usage: 0.10, gen throughput (token/s): 400.5, #queue-req: 0
INFO Decode batch, #running-req: 8, #token: 9320, token usage: 0.11, gen throughput (token/s): 410.0, #queue-req: 0,
INFO Prefill batch, #new-seq: 1, #new-token: 512
INFO Decode batch, #running-req: 9, #token: 9832, token usage: 0.11, gen throughput (token/s): 300.0, #queue-req: 0
INFO Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 500.0 tokens/s, Running: 9 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%
";
    let found = windows(log);
    assert_eq!(found.iter().map(|w| w.line).collect::<Vec<_>>(), [2, 5]);
    assert_eq!((found[0].running, found[0].held_tokens), (8.0, Some(9320.0)));
    assert_eq!((found[1].usage, found[1].prompt_per_second), (Some(0.125), 10.0));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = requests(&text);
        let _ = windows(&text);
    }

    /// What was measured comes back in the order of arrival, whatever the order of the file.
    #[test]
    fn rows_read_back(rows in prop::collection::vec((0..100_000_u64, 1..9999_u64, 1..9999_u64, 1..500_u64, 0..9999_u64), 1..40)) {
        let line = |(at, input, output, ttft, rest): &(u64, u64, u64, u64, u64)| {
            let s = |ms: u64| ms as f64 / 1000.0;
            format!(
                "{{\"arrival\": {}, \"input_len\": {input}, \"output_len\": {output}, \"first_token\": {}, \"last_token\": {}}}",
                s(*at), s(at + ttft), s(at + ttft + rest)
            )
        };
        let text: String = rows.iter().map(|row| line(row) + "\n").collect();
        let read = requests(&text).unwrap();
        prop_assert_eq!(read.list.len(), rows.len());
        prop_assert!(read.list.is_sorted_by_key(|request| request.arrival));
        let mut wanted: Vec<u64> = rows.iter().map(|row| row.3).collect();
        let mut found: Vec<u64> = read.list.iter().map(|r| (r.ttft().0 + 500_000) / 1_000_000).collect();
        wanted.sort_unstable();
        found.sort_unstable();
        prop_assert_eq!(wanted, found);
    }
}
