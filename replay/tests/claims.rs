//! Claims: what holds, what fails, and what proves nothing.

use crate::scenario::parse;
use plimsoll_core::units::Nanos;
use plimsoll_replay::{
    outcome::{Claim, Figure, Outcome, Verdict, evaluate},
    scenario::{Ending, Expect},
};

fn expect(claims: &str) -> Expect {
    let text = format!(
        "name: a\nwhy: b\nmachine: {{ device: x }}\nengine: {{ name: sglang, version: 0.5.8 }}\n\
         model: m\nexpect: {claims}\n"
    );
    parse(&text, &[]).unwrap().expect
}

fn one(claims: &str, name: &str, figure: Figure) -> Claim {
    let mut outcome = Outcome::started();
    outcome.insert(name, figure).unwrap();
    let mut claims = evaluate(&expect(claims), &outcome);
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

#[test]
fn claims_hold_to_the_unit_and_fail_beyond() {
    let count = Figure::Count;
    let number = Figure::Number;
    let bytes = Figure::Bytes;
    let time = |nanos| Figure::Duration(Nanos(nanos));
    let text = |word: &str| Figure::Text(word.to_owned());
    let tokens = "max_total_num_tokens";
    let cases = [
        ("231120", tokens, count(231_120), count(231_121)),
        ("231,120 tokens", tokens, count(231_120), count(231_119)),
        ("{ any_of: [159276, 159277] }", tokens, count(159_277), count(159_278)),
        ("{ value: 231120, within: 10 }", tokens, count(231_110), count(231_109)),
        ("{ value: 231120, within: 10 }", tokens, count(231_130), count(231_131)),
        ("{ at_least: 5, at_most: 7 }", tokens, count(7), count(8)),
        ("{ at_least: 5 }", tokens, count(5), count(4)),
        ("-1", "chunked_prefill_size", count(-1), count(8192)),
        ("0.848", "mem_fraction_static", number(0.848), number(0.847)),
        ("{ value: 2.31x, within: 0.005 }", "max_concurrency", number(2.315), number(2.3151)),
        ("1 GiB", "free_after_graphs", bytes(1 << 30), bytes((1 << 30) + 1)),
        (
            "{ value: 0.82 GiB, within: 0.01 GiB }",
            "free_after_graphs",
            bytes(880_468_296 + 10_737_418),
            bytes(880_468_296 + 10_737_419),
        ),
        ("{ at_most: 1 KiB }", "free_after_graphs", bytes(1024), bytes(1025)),
        ("48.2 s", "died_at", time(48_200_000_000), time(48_200_000_001)),
        ("{ value: 48 s, within: 500 ms }", "died_at", time(47_500_000_000), time(48_500_000_001)),
        ("{ at_least: 1 min }", "duration", time(60_000_000_000), time(59_999_999_999)),
        ("decode", "died_in", text("decode"), text("decode ")),
        ("{ any_of: [prefill, decode] }", "died_in", text("prefill"), text("host")),
        ("{ contains: output }", "died_buffer", text("moe_output"), text("moe_input")),
    ];
    for (claim, name, good, bad) in cases {
        // A quoted text stays one value in flow style.
        let claim = if claim.starts_with('{') { claim.to_owned() } else { format!("\"{claim}\"") };
        let claim = match good {
            Figure::Count(_) if !claim.contains("tokens") => claim.replace('"', ""),
            Figure::Number(_) => claim.replace('"', ""),
            _ => claim,
        };
        let claims = format!("{{ {name}: {claim} }}");
        assert_eq!(one(&claims, name, good.clone()).verdict, Verdict::Holds, "{claims} {good}");
        let failed = one(&claims, name, bad.clone());
        assert_eq!(failed.verdict, Verdict::Fails, "{claims} {bad}");
        assert_eq!(failed.path.to_string(), format!("expect.{name}"));
        assert_eq!(failed.got, bad.to_string());
    }
}

#[test]
fn a_figure_that_no_run_produced_is_no_pass() {
    let claims = expect("{ outcome: refused, refusal: not_enough_memory, num_gpu_blocks: 7 }");
    let verdicts = |outcome: &Outcome| -> Vec<Verdict> {
        evaluate(&claims, outcome).iter().map(|claim| claim.verdict).collect()
    };
    use Verdict::{Fails, Holds, NotProduced};
    assert_eq!(verdicts(&Outcome::refused("not_enough_memory")), [Holds, Holds, NotProduced]);
    assert_eq!(verdicts(&Outcome::refused("other")), [Holds, Fails, NotProduced]);
    assert_eq!(verdicts(&Outcome::started()), [Fails, NotProduced, NotProduced]);
    let claim = &evaluate(&claims, &Outcome::started())[2];
    assert_eq!(
        (claim.expected.as_str(), claim.got.as_str(), claim.holds()),
        ("7", "nothing", false)
    );
}

#[test]
fn an_outcome_holds_only_figures_that_can_be_claimed() {
    let mut outcome = Outcome::started();
    assert_eq!(outcome.ending, Ending::Started);
    assert!(outcome.insert("max_total_num_token", Figure::Count(1)).is_err());
    assert!(outcome.insert("max_total_num_tokens", Figure::Bytes(1)).is_err());
    outcome.insert("max_total_num_tokens", Figure::Count(1)).unwrap();
    outcome.insert("max_total_num_tokens", Figure::Count(2)).unwrap();
    assert_eq!(outcome.get("max_total_num_tokens"), Some(Figure::Count(2)));
    assert_eq!(outcome.figures().count(), 1);
}

#[test]
fn a_text_has_no_range() {
    for claim in
        ["{ at_least: a }", "{ value: a, within: b }", "{ contains: a, any_of: [b] }", "\"\""]
    {
        let text = format!(
            "name: a\nwhy: b\nmachine: {{ device: x }}\nengine: {{ name: sglang, version: 0.5.8 }}\n\
             model: m\nexpect: {{ died_in: {claim} }}\n"
        );
        assert!(parse(&text, &[]).is_err(), "{claim}");
    }
}
