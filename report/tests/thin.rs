//! Thinning: every stretch has the least and the most of what it stands for, and nothing is counted twice or lost.

use plimsoll_report::{Budget, Counts, Doing, RankLevels, Row, Span, Thin};
use proptest::prelude::*;

/// One pass: gap before it, length, level, and whether something happened in it.
fn pass() -> impl Strategy<Value = (u64, u64, u64, bool)> {
    (0_u64..5_000_000, 1_u64..3_000_000, 0_u64..1_000, prop::bool::weighted(0.05))
}

fn rows(passes: &[(u64, u64, u64, bool)]) -> Vec<Row> {
    let mut now = 0;
    let mut out = Vec::new();
    for (step, (gap, length, level, pinned)) in (0_u64..).zip(passes) {
        let from = now + gap;
        now = from + length;
        let mut row = Row::at(Doing::Decode, from, now);
        row.first_step = step;
        row.steps = 1;
        row.decode_tokens = level + 1;
        row.prefill_tokens = *level;
        row.prefill_most = *level;
        row.pinned = *pinned;
        row.live = Span::of(level * 3);
        row.used = Span::of(*level);
        row.waiting = Span { min: *level, max: level + 5 };
        let levels = RankLevels { free: Span::of(10_000 - level), ..RankLevels::default() };
        row.ranks = vec![levels];
        row.counts = Counts { arrived: level % 3, ..Counts::default() };
        out.push(row);
    }
    out
}

proptest! {
    #[test]
    fn stretches_keep_least_and_most(
        passes in proptest::collection::vec(pass(), 1..400),
        tail in 1_usize..20,
        body in 16_usize..40,
    ) {
        let whole = rows(&passes);
        let budget = Budget { head: 4, tail, pins: 3, body, items: 10 };
        let mut thin = Thin::new(budget);
        whole.iter().for_each(|row| thin.push(row.clone()));
        let stretch = thin.stretch_ns();
        let kept = thin.finish();
        prop_assert!(kept.len() <= body + tail, "{} rows", kept.len());
        prop_assert_eq!(stretch == 0, kept.len() == whole.len() && kept.iter().all(|r| r.merged == 1));
        let mut at = 0;
        for row in &kept {
            let count = usize::try_from(row.merged).unwrap();
            let of = &whole[at..at + count];
            at += count;
            let span = |pick: fn(&Row) -> Span| {
                let least = of.iter().map(|row| pick(row).min).min().unwrap();
                let most = of.iter().map(|row| pick(row).max).max().unwrap();
                Span { min: least, max: most }
            };
            prop_assert_eq!(row.live, span(|row| row.live));
            prop_assert_eq!(row.used, span(|row| row.used));
            prop_assert_eq!(row.waiting, span(|row| row.waiting));
            prop_assert_eq!(row.rank(0).free, span(|row| row.rank(0).free));
            prop_assert_eq!(row.from_ns, of[0].from_ns);
            prop_assert_eq!(row.to_ns, of[count - 1].to_ns);
            prop_assert_eq!(row.first_step, of[0].first_step);
            prop_assert_eq!(row.steps, of.iter().map(|row| row.steps).sum::<u64>());
            prop_assert_eq!(row.decode_tokens, of.iter().map(|row| row.decode_tokens).sum::<u64>());
            prop_assert_eq!(row.prefill_tokens, of.iter().map(|row| row.prefill_tokens).sum::<u64>());
            prop_assert_eq!(row.prefill_most, of.iter().map(|row| row.prefill_most).max().unwrap());
            prop_assert_eq!(row.counts.arrived, of.iter().map(|row| row.counts.arrived).sum::<u64>());
            // A stretch is no longer than was said, its last pass aside.
            let last = of[count - 1].from_ns;
            prop_assert!(count == 1 || last - row.from_ns < stretch);
        }
        prop_assert_eq!(at, whole.len());
        // Beginning and end are exact.
        let exact = |rows: &[Row]| rows.iter().all(|row| row.merged == 1);
        prop_assert!(exact(&kept[..kept.len().min(4)]));
        prop_assert!(exact(&kept[kept.len() - tail.min(kept.len())..]));
    }
}
