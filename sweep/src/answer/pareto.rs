//! Values that nothing else beats: the Pareto front over several objectives.

use super::groups::Group;
use crate::row::{Kind, RESULTS};
use plimsoll_replay::problem::near;
use std::str::FromStr;

/// Which way is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    /// More.
    Higher,
    /// Less.
    Lower,
}

/// What is weighed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Objective {
    /// `crash`, or a column.
    pub name: String,
    /// Which way is better.
    pub better: Better,
}

/// The name of the chance of a crash among the objectives.
pub const CRASH: &str = "crash";

/// Short names of columns.
const SHORT: [(&str, &str); 4] = [
    ("throughput", "throughput_output_milli_per_s"),
    ("requests", "throughput_requests_milli_per_s"),
    ("margin", "margin_bytes"),
    ("least_free", "margin_bytes"),
];

/// Beginnings of columns of which more is better; of the others less is.
const HIGHER: [&str; 9] = [
    "throughput",
    "goodput",
    "slo_share",
    "hit_rate",
    "pool_tokens",
    "free_after",
    "least_free",
    "margin",
    "finished",
];

impl Objective {
    /// Those that are weighed where none are named: throughput, p99 TTFT, the chance of a crash.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let column = |name: &str, better| Self { name: name.to_owned(), better };
        vec![
            column("throughput_output_milli_per_s", Better::Higher),
            column("ttft_p99_ns", Better::Lower),
            column(CRASH, Better::Lower),
        ]
    }

    /// Its value for a group: a memory figure at its worst seed, others at the median of the runs that lived.
    #[must_use]
    pub fn value(&self, group: &Group<'_>) -> Option<f64> {
        match self.name.as_str() {
            CRASH => Some(group.chance().share),
            "margin_bytes" | "least_free_bytes" => {
                group.least(&self.name).map(|(value, _)| value as f64)
            }
            column => group.median(column).map(|value| value as f64),
        }
    }

    /// The same, so that less is better, and nothing is worst.
    fn cost(&self, group: &Group<'_>) -> f64 {
        match (self.value(group), self.better) {
            (None, _) => f64::INFINITY,
            (Some(value), Better::Higher) => -value,
            (Some(value), Better::Lower) => value,
        }
    }
}

impl FromStr for Objective {
    type Err = String;

    /// `throughput`, `ttft_p99`, `crash`, `margin`, or any column of integers; `+` or `-` before it says which
    /// way is better.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (better, name) = match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(name), _) => (Some(Better::Higher), name),
            (_, Some(name)) => (Some(Better::Lower), name),
            _ => (None, text),
        };
        let columns = || RESULTS.iter().filter(|column| column.kind == Kind::Int);
        let short = SHORT.iter().find(|(short, _)| *short == name).map(|(_, column)| *column);
        let units = ["_ns", "_bytes", "_ppm", "_milli_per_s"];
        let bare = |column: &'static str| {
            units.iter().find_map(|unit| column.strip_suffix(unit)).unwrap_or(column)
        };
        let found = short.or_else(|| {
            let mut names = columns().map(|column| column.name);
            names.find(|column| *column == name || bare(column) == name)
        });
        let found = if name == CRASH { Some(CRASH) } else { found };
        let Some(found) = found else {
            let names = SHORT.iter().map(|(short, _)| *short);
            let names = names.chain([CRASH]).chain(columns().map(|column| bare(column.name)));
            let help = near(name, names).map(|name| format!("; did you mean `{name}`?"));
            let help = help.unwrap_or_default();
            return Err(format!(
                "`{name}` is no objective; allowed: throughput, crash, margin or a column of \
                 integers{help}"
            ));
        };
        let higher = HIGHER.iter().any(|begin| found.starts_with(begin));
        let usual = if higher { Better::Higher } else { Better::Lower };
        Ok(Self { name: found.to_owned(), better: better.unwrap_or(usual) })
    }
}

/// For each group, whether no other of its scenario is at least as good in everything and better in something.
/// Equal groups stand together. Groups that do not start are never among them.
#[must_use]
pub fn front(groups: &[Group<'_>], objectives: &[Objective]) -> Vec<bool> {
    let costs: Vec<Vec<f64>> = groups
        .iter()
        .map(|group| objectives.iter().map(|objective| objective.cost(group)).collect())
        .collect();
    // From the lowest cost on, nothing that comes later beats what came before.
    let mut order: Vec<usize> = (0..groups.len()).filter(|at| groups[*at].starts()).collect();
    order.sort_by(|a, b| lexical(&costs[*a], &costs[*b]));
    let mut in_front = vec![false; groups.len()];
    let mut front: Vec<usize> = Vec::new();
    for at in order {
        let beats = |other: &usize| {
            groups[*other].scenario == groups[at].scenario && dominates(&costs[*other], &costs[at])
        };
        if !front.iter().any(beats) {
            in_front[at] = true;
            front.push(at);
        }
    }
    in_front
}

fn lexical(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    let pairs = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
    pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
}

/// At least as good in everything, and better in something.
fn dominates(a: &[f64], b: &[f64]) -> bool {
    let mut pairs = a.iter().zip(b);
    pairs.all(|(a, b)| a <= b) && a.iter().zip(b).any(|(a, b)| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Cell, Row};
    use proptest::prelude::*;

    fn row(index: usize, (outcome, throughput, ttft): (&str, i64, i64)) -> Row {
        let mut row = Row { index: index as u64, cells: vec![Cell::Null; RESULTS.len()] };
        let mut put = |name: &str, cell| {
            let at = RESULTS.iter().position(|column| column.name == name).unwrap();
            row.cells[at] = cell;
        };
        put("outcome", Cell::Text(outcome.to_owned()));
        put("throughput_output_milli_per_s", Cell::Int(throughput));
        put("ttft_p99_ns", Cell::Int(ttft));
        row
    }

    fn group(row: &Row) -> Group<'_> {
        use crate::row::Fate;
        let count = |fate| u64::from(row.fate() == fate);
        Group {
            scenario: (row.index % 2) as usize,
            at: vec![row.index as usize],
            rows: vec![row],
            lived: count(Fate::Lived),
            died: count(Fate::Died),
            not_started: count(Fate::NotStarted),
        }
    }

    proptest! {
        /// The front is what remains when every pair is compared by the definition.
        #[test]
        fn the_front_is_what_no_pair_rules_out(
            made in prop::collection::vec((0_usize..4, 0_i64..6, 0_i64..6), 0..40)
        ) {
            let words = ["finished", "finished", "out_of_memory", "refused"];
            let rows: Vec<Row> = made
                .iter()
                .enumerate()
                .map(|(at, (word, a, b))| row(at, (words[*word], *a, *b)))
                .collect();
            let groups: Vec<Group<'_>> = rows.iter().map(group).collect();
            let found = front(&groups, &Objective::usual());
            let key = |group: &Group<'_>| {
                let lived = group.lived > 0;
                let value = |name| group.rows[0].int(name).filter(|_| lived);
                (
                    value("throughput_output_milli_per_s").unwrap_or(i64::MIN),
                    value("ttft_p99_ns").unwrap_or(i64::MAX),
                    group.died,
                )
            };
            for (at, one) in groups.iter().enumerate() {
                let beaten = groups.iter().any(|other| {
                    let (a, b) = (key(other), key(one));
                    other.scenario == one.scenario
                        && other.starts()
                        && a.0 >= b.0 && a.1 <= b.1 && a.2 <= b.2
                        && a != b
                });
                prop_assert_eq!(found[at], one.starts() && !beaten, "{}", at);
            }
        }
    }

    #[test]
    fn objectives_have_short_names_and_near_ones() {
        let of = |text: &str| text.parse::<Objective>();
        assert_eq!(of("throughput").unwrap(), Objective::usual()[0]);
        assert_eq!(of("ttft_p99").unwrap(), Objective::usual()[1]);
        assert_eq!(of("crash").unwrap(), Objective::usual()[2]);
        assert_eq!(of("-pool_tokens").unwrap().better, Better::Lower);
        assert_eq!(of("margin").unwrap().better, Better::Higher);
        assert!(of("ttft_p98").unwrap_err().contains("ttft_p9"));
        assert!(of("outcome").is_err());
    }
}
