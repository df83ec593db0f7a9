//! Timelines and ledgers that are read from logs.

use crate::life::{GIB, Life, MIB, MS, dies, survives};
use plimsoll_core::memory::ledger::Account;
use plimsoll_replay::{
    ledger_at::{Moment, NoMoment, ledger_at},
    timeline::{Column, End, Glyphs, Timeline, columns, plot, svg, time},
    wire::{Closing, Log},
};
use proptest::prelude::*;

fn timeline(life: &Life) -> Timeline {
    Timeline::of(&life.log()).unwrap()
}

fn text(timeline: &Timeline, width: usize, glyphs: Glyphs) -> String {
    let line = |line: Vec<(_, String)>| line.into_iter().map(|(_, text)| text).collect::<String>();
    plot(timeline, width, glyphs).into_iter().map(|l| line(l) + "\n").collect()
}

#[test]
fn a_timeline_says_what_the_log_says() {
    let timeline = timeline(&dies());
    assert_eq!((timeline.rank, timeline.ranks, timeline.capacity), (1, 2, 41 * GIB));
    assert_eq!(timeline.floor(), 38 * GIB);
    // 3 GiB were free; 768 MiB of segments, 1 GiB of others and 64 MiB of a leak were taken.
    assert_eq!(timeline.least_free(), 3 * GIB - GIB - 768 * MIB - 64 * MIB);
    assert_eq!((timeline.peak_live(), timeline.peak_used()), (768 * MIB, 330));
    let End::Crash(crash) = &timeline.end else { panic!("{:?}", timeline.end) };
    assert_eq!((crash.rank, crash.step, crash.tokens), (Some(1), 31, 400));
    assert_eq!(crash.requested, crash.free + 2 * MIB);
    assert_eq!((crash.mode.as_str(), crash.at_ns), ("prefill", 750 * MS));
    assert_eq!(Timeline::of(&Life::ready(1).log()), None);
}

#[test]
fn every_point_closes_and_columns_keep_the_worst() {
    for life in [survives(), dies()] {
        let timeline = timeline(&life);
        for point in &timeline.points {
            let sum = timeline.floor() + point.layers.sum() + point.free;
            assert_eq!(sum, timeline.capacity, "{point:?}");
        }
        for count in [1, 2, 7, 80, 400] {
            let columns = columns(&timeline, count);
            assert_eq!(columns.len(), count);
            let least = columns.iter().map(|c| c.free).min().unwrap();
            assert_eq!(least, timeline.least_free(), "{count}");
            let most = |of: fn(&Column) -> u64| columns.iter().map(of).max().unwrap();
            assert_eq!(most(|c| c.used), timeline.peak_used());
            assert_eq!(most(|c| c.layers.sum()), timeline.capacity - timeline.floor() - least);
            let prefills: u64 = columns.iter().map(|c| c.prefills).sum();
            let there = life.log().records.iter().filter(|r| r.kind == "step").count() as u64;
            let failed = u64::from(matches!(timeline.end, End::Crash(_)));
            assert_eq!(prefills, there + failed);
        }
    }
}

#[test]
fn plots_are_as_they_are() {
    insta::assert_snapshot!("plot-dies", text(&timeline(&dies()), 80, Glyphs::Blocks));
    insta::assert_snapshot!("plot-survives-ascii", text(&timeline(&survives()), 72, Glyphs::Ascii));
    insta::assert_snapshot!("svg-dies", svg(&timeline(&dies())));
}

#[test]
fn a_plot_fits_its_width_and_ascii_is_ascii() {
    for life in [survives(), dies()] {
        let timeline = timeline(&life);
        for width in [0, 40, 63, 80, 100] {
            for glyphs in [Glyphs::Ascii, Glyphs::Blocks] {
                let text = text(&timeline, width, glyphs);
                let cells = text.lines().filter(|line| line.contains(['|', '│']));
                for line in cells {
                    assert!(line.chars().count() <= width.max(40), "{width}: {line}");
                    assert_eq!(line, line.trim_end());
                }
                assert!(glyphs == Glyphs::Blocks || text.is_ascii());
            }
        }
    }
}

#[test]
fn an_svg_is_one_closed_document_whatever_the_name() {
    let mut timeline = timeline(&dies());
    timeline.name = "a <b> & \"c\"\u{1}".to_owned();
    let text = svg(&timeline);
    assert!(text.contains("a &lt;b&gt; &amp; &quot;c&quot; ") && !text.contains("<b>"));
    for tag in ["svg", "text", "style", "defs"] {
        let opened = text.matches(&format!("<{tag}>")).count();
        let opened = opened + text.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // The only address is the name of the format.
    assert!(text.matches("http").count() == 1 && !text.contains("href"));
}

#[test]
fn a_log_that_was_cut_has_a_timeline_up_to_the_cut() {
    let whole = dies().text(Closing::Complete);
    for (end, _) in whole.match_indices('\n') {
        let log = Log::read(&whole.as_bytes()[..end]).unwrap();
        if let Some(timeline) = Timeline::of(&log) {
            assert!(!text(&timeline, 60, Glyphs::Ascii).is_empty());
            assert!(!svg(&timeline).is_empty());
        }
    }
}

#[test]
fn ledgers_close_at_every_moment() {
    let log = dies().log();
    for moment in (0..=31).map(Moment::Step).chain([Moment::Ready, Moment::Crash, Moment::End]) {
        let at = ledger_at(&log, moment).unwrap();
        assert_eq!(at.ranks.len(), 2);
        for rank in &at.ranks {
            let sum: u64 = rank.rows().iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(Some(sum), rank.capacity(), "{moment}");
        }
    }
    let of = |moment, account| ledger_at(&log, moment).unwrap().ranks[1].of(account);
    assert_eq!(of(Moment::Ready, Account::Activations), 0);
    assert_eq!(of(Moment::Step(0), Account::Activations), 512 * MIB);
    assert_eq!(of(Moment::Step(20), Account::OtherPrograms), 0);
    assert_eq!(of(Moment::Step(21), Account::OtherPrograms), GIB);
    assert_eq!(of(Moment::Step(30), Account::Activations), 512 * MIB);
    // The step that failed, and the crash, have the segment that it took.
    assert_eq!(of(Moment::Step(31), Account::Activations), 768 * MIB);
    assert_eq!(of(Moment::Crash, Account::Unaccounted), 64 * MIB);
    let pool = ledger_at(&log, Moment::Step(25)).unwrap().pool.unwrap();
    assert_eq!((pool.used, pool.running), (330, 1));
}

#[test]
fn moments_that_are_not_there_are_said() {
    let log = survives().log();
    assert_eq!(ledger_at(&log, Moment::Crash), Err(NoMoment::Crash));
    let error = ledger_at(&log, Moment::Step(99)).unwrap_err();
    assert_eq!(error.to_string(), "there is no step 99: the last is step 16");
    assert_eq!("crash".parse(), Ok(Moment::Crash));
    assert_eq!("12".parse(), Ok(Moment::Step(12)));
    assert!("-1".parse::<Moment>().unwrap_err().contains("`-1` is no moment"));
}

#[test]
fn times_are_short() {
    let cases = [(0, "0 ms"), (900, "0 us"), (12_000, "12 us"), (999 * MS, "999 ms")];
    let more = [(12_450 * MS, "12.4 s"), (119_999 * MS, "119.9 s"), (200_000 * MS, "3 min 20 s")];
    let longer = [(7_260_000 * MS, "2 h 1 min"), (1_436_401_376 * MS, "16 d 15 h")];
    for (ns, expected) in cases.into_iter().chain(more).chain(longer) {
        assert_eq!(time(ns), expected);
    }
}

proptest! {
    /// Whatever a log holds, reading it neither panics nor makes a plot that is too wide.
    #[test]
    fn any_numbers_have_a_timeline(
        change in proptest::collection::vec((0_usize..60, 0_usize..16, any::<u64>()), 1..6),
        width in 0_usize..120,
    ) {
        let mut log = dies().log();
        for (record, field, value) in change {
            let count = log.records.len();
            let fields = &mut log.records[record % count].fields.decided;
            let count = fields.len();
            if count > 0 {
                fields[field % count].1 = value.into();
            }
        }
        let _ = plimsoll_replay::checker::check(&log);
        let _ = ledger_at(&log, Moment::Crash);
        if let Some(timeline) = Timeline::of(&log) {
            let _ = svg(&timeline);
            for line in text(&timeline, width, Glyphs::Ascii).lines().filter(|l| l.contains('|')) {
                prop_assert!(line.chars().count() <= width.max(40) + 20);
            }
        }
    }
}
