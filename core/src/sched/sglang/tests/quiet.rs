//! Turns that are skipped against turns that are taken.

use super::*;

/// What a server did, turn by turn: decisions, batches of more than one kind of turn, and use at each turn
/// in which something happened.
#[derive(PartialEq, Debug, Default)]
struct Story {
    decisions: Vec<(u64, Decision)>,
    batches: Vec<(u64, Batch)>,
    usage: Vec<(u64, Usage)>,
    ratios: Vec<(u64, f64)>,
    end: Option<Fatal>,
    turns: u64,
    skipped: u64,
}

/// Runs up to `turns` turns; `skips`: quiet ones are skipped, of which nothing is noted. Slots are counted
/// then, and known by number otherwise.
fn story(config: &SglangConfig, arrivals: &[(u64, NewRequest)], turns: u64, skips: bool) -> Story {
    let mut scheduler = SglangScheduler::new(config.clone()).unwrap();
    let (mut story, mut log, mut turn) = (Story::default(), Vec::new(), 0);
    let mut idle = 0;
    if skips {
        scheduler.set_detail(LogDetail::Decisions);
    }
    while turn < turns && idle < 5 {
        if skips {
            let next = arrivals.iter().map(|(at, _)| *at).filter(|at| *at >= turn).min();
            let quiet = scheduler.quiet_turns().min(next.unwrap_or(turns) - turn);
            if quiet > 0 {
                scheduler.skip(quiet);
                turn += quiet;
                story.skipped += quiet;
                story.usage.push((turn, scheduler.usage()));
                story.ratios.push((turn, scheduler.state().new_token_ratio));
                continue;
            }
        }
        for (_, request) in arrivals.iter().filter(|(at, _)| *at == turn) {
            scheduler.submit(request.clone(), &mut log);
        }
        let ran = scheduler.turn(&mut log);
        let completed = ran.clone().and_then(|_| scheduler.complete(&mut log));
        let over = arrivals.iter().all(|(at, _)| *at < turn);
        match ran {
            Ok(Turn::Run(batch)) => {
                idle = 0;
                story.batches.push((turn, batch));
            }
            _ => idle += u64::from(over),
        }
        turn += 1;
        story.decisions.extend(log.drain(..).map(|decision| (turn, decision)));
        if let Err(fatal) = completed {
            story.end = Some(fatal);
            break;
        }
        story.usage.push((turn, scheduler.usage()));
        story.ratios.push((turn, scheduler.state().new_token_ratio));
    }
    story.turns = turn;
    story
}

/// Both ways are the same, but that the skipped turns are not told.
fn check(config: &SglangConfig, arrivals: &[(u64, NewRequest)], turns: u64) -> u64 {
    let mut stepped = story(config, arrivals, turns, false);
    let mut skipped = story(config, arrivals, turns, true);
    let count = std::mem::take(&mut skipped.skipped);
    assert_eq!(skipped.decisions, stepped.decisions);
    let told = |at: u64| skipped.batches.binary_search_by_key(&at, |(at, _)| *at).is_ok();
    stepped.batches.retain(|(at, _)| told(*at));
    assert_eq!(skipped.batches, stepped.batches);
    let told = |at: u64| skipped.usage.binary_search_by_key(&at, |(at, _)| *at).is_ok();
    stepped.usage.retain(|(at, _)| told(*at));
    stepped.ratios.retain(|(at, _)| told(*at));
    assert_eq!(skipped.usage, stepped.usage);
    assert_eq!(skipped.ratios, stepped.ratios, "to the last bit");
    assert_eq!((skipped.end, skipped.turns), (stepped.end, stepped.turns));
    count
}

#[test]
fn a_long_answer_is_a_few_turns() {
    for (version, loop_kind) in
        [(V8, LoopKind::Normal), (V8, LoopKind::Overlap), (V23, LoopKind::Overlap)]
    {
        let config = SglangConfig { loop_kind, ..SglangConfig::new(version, 3_000_000, 2_000_000) };
        let skipped = check(&config, &[(0, plain(0, 0, 100, 10_000))], 20_000);
        assert!(skipped > 9_990, "{skipped}");
    }
}

#[test]
fn an_end_of_sequence_that_is_ignored_stands_among_the_tokens() {
    let mut first = plain(0, 0, 100, 20);
    first.max_new_tokens = Some(60);
    first.eos = EosRule::Ignored;
    let ids = crate::sched::OutputIds::default();
    // The next turn of the conversation: what the first request made is found again where the release
    // stores it.
    let mut prompt = Runs::of(0, 100);
    prompt.extend(&ids.outputs(RequestId(0), 19));
    prompt.push_value(ids.eos);
    let after = Run { first: ids.token(RequestId(0), 20, 0), len: 30 };
    prompt.push(after);
    let next = NewRequest::plain(RequestId(1), prompt, 5);
    let config = SglangConfig::new(V23, 4000, 2000);
    check(&config, &[(0, first.clone()), (100, next.clone())], 300);
    let told = story(&config, &[(0, first), (100, next)], 300, true);
    let hit = told.decisions.iter().find_map(|(_, decision)| match decision {
        Decision::Admitted { request: RequestId(1), prefix, .. } => Some(*prefix),
        _ => None,
    });
    assert_eq!(hit, Some(149));
}

#[test]
fn the_last_pages_are_used_up_before_a_turn_is_taken() {
    // 20 pages of 16; two requests of 33 tokens hold 3 each. 14 are free: 12 beyond one for each.
    let config = SglangConfig {
        page_size: 16,
        chunked_prefill_size: Some(512),
        ..SglangConfig::new(V8, 320, 1000)
    };
    let arrivals = [(0, plain(0, 0, 33, 200)), (0, plain(1, 5000, 33, 200))];
    assert!(check(&config, &arrivals, 2000) > 80);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn skipping_is_stepping(
        config in any_config(),
        shapes in proptest::collection::vec(
            (0_u64..200, 0_u64..3, 0_u64..60, 1_u64..80, 1_u64..200), 1..20),
        ignored in any::<bool>(),
    ) {
        let mut arrivals = requests(&shapes, &config);
        for (_, request) in arrivals.iter_mut().filter(|_| ignored) {
            request.eos = EosRule::Ignored;
            request.max_new_tokens = Some(request.output_len * 2);
        }
        check(&config, &arrivals, 4000);
    }
}
