//! Servers that have not crashed: what is said of them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod made;

use std::path::Path;

use made::GIB;
use plimsoll_diagnosis::reconstruct::{ledgers, what_if};
use plimsoll_diagnosis::{
    Capacity, Case, Cause, Direction, Finding, Level, Raising, Report, diagnose,
};
use plimsoll_ingest::log::{
    Activity, Amount, Kind, Rank, Refused, Server, Sglang, Spread, Vllm, read_text,
};

fn gib(value: f64) -> Amount {
    Amount::gib(value, 2)
}

/// A start of a large mixture of experts on eight cards: 72.33 GiB of weights, a chunk of 8,192.
struct Start {
    fraction: f64,
    tokens: u64,
    pool: f64,
    left: f64,
    ranks: u32,
}

const TIGHT: Start = Start { fraction: 0.93, tokens: 231_120, pool: 15.13, left: 0.82, ranks: 8 };
const ROOMY: Start = Start { fraction: 0.88, tokens: 159_276, pool: 10.42, left: 5.52, ranks: 8 };

impl Start {
    fn lines(&self) -> Vec<(Rank, Sglang)> {
        (0..self.ranks)
            .flat_map(|rank| self.rank(rank).into_iter().map(move |line| (Rank::tp(rank), line)))
            .collect()
    }

    fn rank(&self, rank: u32) -> Vec<Sglang> {
        let table = 2.03;
        let after_pool = 21.71 - self.pool - table;
        let mut lines = vec![
            Sglang::LoadBegin { avail: gib(94.04) },
            Sglang::LoadEnd {
                model_class: Some("KimiK25ForConditionalGeneration".into()),
                form: None,
                avail: Some(gib(21.71)),
                usage: Some(gib(72.33)),
                draft: None,
            },
            Sglang::KvAllocated {
                label: None,
                tokens: Some(self.tokens),
                k: Some(gib(self.pool)),
                v: None,
                dtype: None,
            },
            Sglang::PoolEnd { avail: gib(after_pool) },
            Sglang::CaptureEnd {
                what: "cuda graph".into(),
                usage: Some(gib(after_pool - self.left)),
                avail: Some(gib(self.left)),
            },
        ];
        if rank == 0 {
            lines.push(Sglang::Summary {
                max_total_num_tokens: self.tokens,
                chunked_prefill_size: Some(8192),
                max_prefill_tokens: Some(16_384),
                max_running_requests: Some(2048),
                context_len: Some(262_144),
                available_gpu_mem: Some(gib(self.left)),
            });
            lines.push(Sglang::Ready);
        }
        lines
    }

    fn case(&self, model: &str) -> Case {
        let command = format!(
            "python -m sglang.launch_server --model-path {model} --tp 8 --mem-fraction-static {}",
            self.fraction
        );
        made::sglang(Some(&command), self.lines())
    }
}

const KIMI: &str = "moonshotai/Kimi-K2.5";

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code).collect()
}

fn found<'a>(report: &'a Report, code: &str) -> &'a Finding {
    let names = codes(report);
    report.findings.iter().find(|f| f.code == code).unwrap_or_else(|| panic!("{names:?}"))
}

fn spread(count: u64, most: f64) -> Spread {
    Spread { count, least: 0.0, most, last: most, most_line: 9 }
}

fn served(case: &mut Case, activity: Activity) {
    case.log.activity.insert((0, Rank::tp(0)), activity);
}

#[test]
fn a_margin_below_one_chunk_is_an_error_before_anything_crashed() {
    let report = diagnose(&TIGHT.case(KIMI));
    assert_eq!(codes(&report)[0], "margin-too-small");
    assert_eq!(report.level(), Some(Level::Error));
    let finding = &report.findings[0];
    assert_eq!(
        (finding.cause, finding.fraction),
        (Cause::ActivationsOutsidePool, Direction::Lower)
    );
    assert!(finding.headline.contains("0.82 GiB left"), "{}", finding.headline);
    assert!(finding.headline.contains("a single prompt of "), "{}", finding.headline);
    let lever = &finding.help[0];
    assert_eq!((&*lever.flag, lever.value.as_deref()), ("--mem-fraction-static", Some("0.88")));
    let gives = lever.gives.as_deref().unwrap();
    assert!(gives.contains("5.52 GiB left") && gives.contains("159,"), "{gives}");
    assert_eq!(finding.evidence.len(), 1);
}

#[test]
fn the_way_back_is_healthy() {
    let mut case = ROOMY.case(KIMI);
    let activity = Activity { prefill_tokens: spread(40, 8192.0), ..Activity::default() };
    served(&mut case, activity);
    let report = diagnose(&case);
    assert_eq!(codes(&report)[0], "healthy");
    assert_eq!(report.level(), Some(Level::Note));
    assert_eq!(report.findings[0].fraction, Direction::NoEffect);
}

#[test]
fn a_chunk_that_was_served_outranks_the_estimate() {
    let mut case = TIGHT.case(KIMI);
    let activity = Activity { prefill_tokens: spread(3, 8192.0), ..Activity::default() };
    served(&mut case, activity);
    assert!(!codes(&diagnose(&case)).contains(&"margin-too-small"));
}

#[test]
fn an_unknown_model_is_at_most_warned_about() {
    let thin = Start { left: 0.30, ..TIGHT };
    let report = diagnose(&thin.case("none/such"));
    assert_eq!(found(&report, "margin-too-small").level, Level::Warning);
    let report = diagnose(&TIGHT.case("none/such"));
    assert!(!codes(&report).contains(&"margin-too-small"));
}

#[test]
fn a_death_is_none_of_these() {
    let mut case = TIGHT.case(KIMI);
    let mut event = case.log.events[0].clone();
    event.kind = Kind::Sglang(Sglang::SchedulerException);
    case.log.events.push(event);
    for code in codes(&diagnose(&case)) {
        assert!(!["margin-too-small", "healthy", "never-proven"].contains(&code), "{code}");
    }
}

#[test]
fn health_checks_prove_nothing() {
    let mut case = ROOMY.case(KIMI);
    served(&mut case, Activity { probes: 12, ..Activity::default() });
    let report = diagnose(&case);
    let headline = &found(&report, "never-proven").headline;
    assert!(headline.contains("only health checks"), "{headline}");
    let half = Activity { prefill_tokens: spread(5, 4096.0), ..Activity::default() };
    served(&mut case, half);
    assert!(!codes(&diagnose(&case)).contains(&"never-proven"));
}

#[test]
fn each_start_that_finds_less_is_a_warning() {
    let start = |number: u32, free: f64| {
        let line = Vllm::FreeAtStart {
            free: gib(free),
            total: gib(79.18),
            utilization: Some(0.9),
            wanted: Some(gib(71.26)),
            refused: Refused::No,
        };
        let mut event =
            made::log(Server::Vllm, vec![(Rank::NONE, Kind::Vllm(line))]).events.remove(0);
        event.start = number;
        event.line = 100 * u64::from(number) + 1;
        event
    };
    let with = |free: [f64; 3]| {
        let mut log = made::log(Server::Vllm, Vec::new());
        log.events = (0..).zip(free).map(|(number, free)| start(number, free)).collect();
        diagnose(&made::case(None, log))
    };
    let report = with([78.6, 76.1, 72.4]);
    let finding = found(&report, "shared-memory-machine");
    assert_eq!(finding.level, Level::Warning);
    assert!(finding.headline.contains("78.60 GiB") && finding.headline.contains("72.40 GiB"));
    assert_eq!(finding.evidence.len(), 2);
    assert!(!codes(&report).contains(&"healthy"), "a warning stands first");
    assert!(!codes(&with([78.6, 78.61, 78.6])).contains(&"shared-memory-machine"));
    assert!(!codes(&with([72.4, 76.1, 78.6])).contains(&"shared-memory-machine"));
}

#[test]
fn raising_is_allowed_on_a_full_pool_with_retractions_only() {
    let with = |usage: f64, retractions: u64| {
        let mut case = ROOMY.case(KIMI);
        let activity = Activity {
            usage: spread(400, usage),
            retractions,
            prefill_tokens: spread(9, 8192.0),
            ..Activity::default()
        };
        served(&mut case, activity);
        diagnose(&case).capacity.unwrap().raising
    };
    assert_eq!(with(0.05, 0), Raising::NoReason);
    assert_eq!(with(0.99, 0), Raising::FullOnly);
    assert_eq!(with(0.99, 3), Raising::Allowed);
}

#[test]
fn an_idle_pool_on_a_shared_device_is_a_note() {
    let mut case = ROOMY.case(KIMI);
    served(&mut case, Activity { usage: spread(400, 0.05), ..Activity::default() });
    assert!(!codes(&diagnose(&case)).contains(&"pool-oversized"), "nobody else needs it");
    case.asked.device = Some("H200".to_owned());
    let report = diagnose(&case);
    let finding = found(&report, "pool-oversized");
    assert_eq!((finding.level, finding.fraction), (Level::Note, Direction::Lower));
}

#[test]
fn a_known_model_narrows_what_another_fraction_gives() {
    let what_if = what_if(&TIGHT.case(KIMI)).unwrap();
    assert_eq!(what_if.cell, Some(70_272.0));
    let (low, high) = what_if.at_fraction(0.88).tokens.unwrap();
    assert!(low <= 159_276 && 159_277 <= high && high - low <= 64, "{low} to {high}");
}

#[test]
fn the_next_refusal_of_vllm_is_foreseen() {
    let with = |kv: f64, lines: Vec<Vllm>| {
        let mut lines: Vec<_> = lines.into_iter().map(|line| (Rank::NONE, line)).collect();
        lines.push((Rank::NONE, Vllm::AvailableKv { amount: gib(kv) }));
        let command = "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.9";
        diagnose(&made::vllm(Some(command), lines))
    };
    // 40,960 tokens of 144 KiB are 5.63 GiB.
    let report = with(4.9, Vec::new());
    let finding = found(&report, "pool-too-small");
    assert_eq!((finding.level, finding.fraction), (Level::Error, Direction::Raise));
    assert!(!codes(&with(6.1, Vec::new())).contains(&"pool-too-small"));
    let sized = vec![Vllm::KvTokens { tokens: 35_000, per_request: None }];
    assert!(!codes(&with(4.9, sized)).contains(&"pool-too-small"), "it went on");
}

#[test]
fn a_pool_below_the_context_is_said() {
    let report = diagnose(&ROOMY.case(KIMI));
    let finding = found(&report, "pool-too-small");
    assert_eq!(finding.level, Level::Note);
    assert!(finding.headline.contains("the pool holds 159,276 tokens"), "{}", finding.headline);
}

#[test]
fn a_cap_is_another_way_to_leave_memory() {
    let rank = ledgers(&TIGHT.case(KIMI)).remove(0);
    let cap = rank.cap_for_free(2 * GIB).unwrap();
    // 1.18 GiB and half a digit, of 70,272 B a token.
    assert!((212_900..213_200).contains(&cap), "{cap}");
    assert_eq!(rank.cap_for_free(GIB / 2), None, "there is as much");
    let mut capped = TIGHT.case(KIMI);
    capped.log.args.insert("max_total_tokens".into(), "100000".into());
    let rank = ledgers(&capped).remove(0);
    assert!(rank.capped && rank.what_if.is_none(), "the pool does not follow the fraction");
}

#[test]
fn the_automatic_fraction_is_the_releases_own() {
    let command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B";
    let lines = vec![
        Sglang::LoadBegin { avail: gib(78.5) },
        Sglang::LoadEnd {
            model_class: None,
            form: None,
            avail: Some(gib(63.1)),
            usage: Some(gib(15.4)),
            draft: None,
        },
    ];
    let mut case =
        made::sglang(Some(command), lines.into_iter().map(|line| (Rank::NONE, line)).collect());
    assert!(what_if(&case).is_none(), "which device it is decides");
    case.asked.device = Some("H100 80GB".to_owned());
    let what_if = what_if(&case).unwrap();
    assert!((0.8..0.92).contains(&what_if.fraction) && what_if.pool.least() > 40 * GIB);
}

#[test]
fn a_log_that_stops_early_says_what_is_missing() {
    let case = made::sglang(None, vec![(Rank::NONE, Sglang::LoadBegin { avail: gib(40.0) })]);
    let report = diagnose(&case);
    assert_eq!(codes(&report), ["healthy"]);
    assert!(report.missing.iter().any(|line| line.contains("max_total_num_tokens")));
    assert_eq!(report.relaunch.unwrap().baseline.bytes, 40 * GIB);
}

/// Logs as people have them, in `tests/alive/`.
#[test]
fn logs_in_full() {
    let logs = [
        ("margin", None),
        ("way-back", None),
        ("death", None),
        ("laptop", None),
        ("draft-in-budget", None),
        ("restarts", None),
        ("vllm-v0", Some("vllm serve meta-llama/Meta-Llama-3-8B")),
        ("vllm-v1", Some("vllm serve Qwen/Qwen3-8B")),
    ];
    for (name, command) in logs {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/alive/{name}.log"));
        let log = read_text(&std::fs::read_to_string(path).unwrap());
        let report = diagnose(&made::case(command, log));
        insta::assert_snapshot!(name, shown(&report));
    }
}

/// A report as text, for snapshots.
fn shown(report: &Report) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{}\n", report.verdict);
    for finding in &report.findings {
        let (level, code) = (finding.level, finding.code);
        writeln!(text, "\n[{level}] {code}: {}", finding.headline).unwrap();
        for line in &finding.arithmetic {
            writeln!(text, "  = {line}").unwrap();
        }
        for lever in &finding.help {
            let value = lever.value.as_deref().unwrap_or("");
            let gives = lever.gives.as_deref().unwrap_or("");
            writeln!(text, "  {} {} {value}: {gives}", lever.change, lever.flag).unwrap();
        }
    }
    for rank in report.ledgers.iter().take(2) {
        writeln!(text, "\n{} ({:?})", rank.rank, rank.check.map(|check| check.words())).unwrap();
        for stage in &rank.stages {
            writeln!(text, "  {} of {} {}", stage.stage.name(), stage.bytes, stage.whole.name())
                .unwrap();
            for row in &stage.rows {
                let bytes = row.bytes.map_or("not printed".to_owned(), |bytes| bytes.to_string());
                let detail = row.detail.map_or_else(String::new, |text| format!(" ({text})"));
                writeln!(text, "    {}{detail}: {bytes}", row.account.name()).unwrap();
            }
        }
    }
    for fact in &report.facts {
        writeln!(text, "{} {} ({})", fact.name, fact.value, fact.source).unwrap();
    }
    writeln!(text, "missing {:?}", report.missing).unwrap();
    if let Some(relaunch) = &report.relaunch {
        writeln!(text, "{relaunch} (line {})", relaunch.line).unwrap();
    }
    if let Some(view) = &report.capacity {
        capacity(&mut text, view);
    }
    text
}

fn capacity(text: &mut String, view: &Capacity) {
    use std::fmt::Write as _;
    let Capacity { pool_tokens, peak_usage, peak_tokens, largest_prefill, .. } = view;
    writeln!(text, "pool {pool_tokens:?}, used {peak_usage:?} {peak_tokens:?}").unwrap();
    writeln!(text, "largest prefill {largest_prefill:?}, {} retractions", view.retractions)
        .unwrap();
    let amount = |amount: Option<Amount>| amount.map(|amount| amount.to_string());
    writeln!(text, "left {:?}, need {:?}", amount(view.left), amount(view.need)).unwrap();
    let short = |f: Option<f64>| f.map(|f| format!("{f:.3}"));
    let (now, floor, ceiling) = (short(view.fraction), short(view.floor), short(view.ceiling));
    writeln!(text, "fraction {now:?} of {floor:?} to {ceiling:?}, {}", view.raising.name())
        .unwrap();
    if let Some(next) = &view.next {
        writeln!(text, "next {}: {}", next.fraction, next.words()).unwrap();
    }
}
