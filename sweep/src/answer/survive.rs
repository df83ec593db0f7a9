//! The highest value that survives, and how sure that is.

use super::{chance, groups::Group};
use crate::question::{Axis, Question};

/// Groups that differ in the values of one axis alone, from its lowest value up.
#[derive(Clone, PartialEq, Debug)]
pub struct Series<'g, 'r> {
    /// What all of them have.
    pub scenario: usize,
    /// The other values in words; empty where there are none.
    pub others: String,
    /// The groups, by rising value.
    pub groups: Vec<&'g Group<'r>>,
}

/// The axis that answers are given over: the first one whose values are numbers.
#[must_use]
pub fn axis(question: &Question) -> Option<usize> {
    question.axes.iter().position(Axis::is_numeric)
}

/// All series over one axis, in the order of the points.
#[must_use]
pub fn series<'g, 'r>(
    question: &Question,
    groups: &'g [Group<'r>],
    axis: usize,
) -> Vec<Series<'g, 'r>> {
    let mut all: Vec<(Vec<usize>, Series<'g, 'r>)> = Vec::new();
    for group in groups {
        let mut key = group.at.clone();
        if let Some(place) = key.get_mut(axis) {
            *place = 0;
        }
        let found = all.iter_mut().find(|(k, one)| *k == key && one.scenario == group.scenario);
        match found {
            Some((_, one)) => one.groups.push(group),
            None => {
                let others = group.words(question, Some(axis));
                let one = Series { scenario: group.scenario, others, groups: vec![group] };
                all.push((key, one));
            }
        }
    }
    let number = |group: &&Group<'_>| {
        let at = group.at.get(axis).copied().unwrap_or_default();
        question.axes.get(axis).and_then(|axis| axis.number(at)).unwrap_or(f64::NAN)
    };
    for (_, one) in &mut all {
        one.groups.sort_by(|a, b| number(a).total_cmp(&number(b)));
    }
    all.into_iter().map(|(_, one)| one).collect()
}

/// A share of the runs that must live: `99.9 %` is 999 of 1,000, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Millionths.
    ppm: u64,
}

impl Share {
    /// As a number from 0 to 1.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.ppm as f64 / 1e6
    }

    /// Whether `lived` of `runs` are that share or more.
    #[must_use]
    pub fn is_met(self, lived: u64, runs: u64) -> bool {
        u128::from(lived) * 1_000_000 >= u128::from(runs) * u128::from(self.ppm)
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// `99.9%`, `99.9 %` or `0.999`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no share; allowed: above 0 % and up to 100 %, such as `99.9%`");
        let (number, places) = match text.trim().strip_suffix('%') {
            Some(number) => (number.trim(), 4),
            None => (text.trim(), 6),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        if part.len() > places || whole.is_empty() || !digits(whole) || !digits(part) {
            return Err(wrong());
        }
        let ppm = format!("{whole}{part:0<places$}").parse::<u64>().map_err(|_| wrong())?;
        if (1..=1_000_000).contains(&ppm) { Ok(Self { ppm }) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{}.{:04}", self.ppm / 10_000, self.ppm % 10_000);
        write!(f, "{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// What the seeds say of one series.
#[derive(Clone, PartialEq, Debug)]
pub struct Survival<'g, 'r> {
    /// The highest value such that it and every swept value below it, down to where the server starts at all,
    /// survives.
    pub highest: Option<&'g Group<'r>>,
    /// The first value above that does not; `None`: the limit lies above all that was swept.
    pub fails: Option<&'g Group<'r>>,
    /// Values that survive above one that does not: not safe.
    pub islands: Vec<&'g Group<'r>>,
    /// Values at which the server does not start.
    pub not_started: u64,
    /// Chance of a crash that is not exceeded at `highest`, with 95 % confidence.
    pub at_most: Option<f64>,
    /// Runs without a crash that the claim needs; `None`: no number of runs shows it.
    pub runs_needed: Option<u64>,
}

impl Survival<'_, '_> {
    /// Whether the runs show the claim, and do not only agree with it.
    #[must_use]
    pub fn is_shown(&self, share: Share) -> bool {
        self.at_most.is_some_and(|most| most <= 1.0 - share.as_f64() + 1e-12)
    }
}

/// Finds the highest value of a series that survives.
#[must_use]
pub fn survival<'g, 'r>(series: &Series<'g, 'r>, share: Share) -> Survival<'g, 'r> {
    let mut found = Survival {
        highest: None,
        fails: None,
        islands: Vec::new(),
        not_started: 0,
        at_most: None,
        runs_needed: chance::runs_needed(1.0 - share.as_f64()),
    };
    let mut started = false;
    for group in &series.groups {
        started |= group.starts();
        found.not_started += u64::from(!group.starts());
        if !started {
            // Below the window: nothing to survive.
            continue;
        }
        let holds = group.starts() && share.is_met(group.lived, group.runs());
        match (holds, found.fails.is_some()) {
            (true, false) => found.highest = Some(group),
            (true, true) => found.islands.push(group),
            (false, _) => {
                found.fails.get_or_insert(group);
            }
        }
    }
    found.at_most =
        found.highest.map(|group| chance::at_most(group.runs() - group.lived, group.runs()));
    found
}

/// A fraction lowered by steps of 0.02, in exact decimals; `None` at or below zero, or for what is no number.
#[must_use]
pub fn lowered(value: &str, steps: u32) -> Option<String> {
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    let scale = part.len().max(2);
    let digits: i128 = format!("{whole}{part:0<scale$}").parse().ok()?;
    let power = 10_i128.checked_pow(u32::try_from(scale).ok()?)?;
    let left = digits - i128::from(steps) * 2 * (power / 100);
    (left > 0).then(|| format!("{}.{:0scale$}", left / power, left % power))
}

/// Whether an axis is the fraction of memory that the pool is sized by.
#[must_use]
pub fn is_fraction(axis: &Axis) -> bool {
    let of_engine = |path: &String| {
        path.ends_with(".mem-fraction-static") || path.ends_with(".gpu-memory-utilization")
    };
    axis.name == "fraction" || axis.paths.iter().any(of_engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Cell, RESULTS, Row};

    /// Rows of one axis: for each value, the outcome of each of three seeds.
    fn rows(outcomes: &[[&str; 3]]) -> (Question, Vec<Row>) {
        let values: Vec<String> = (0..outcomes.len()).map(|n| format!("0.{}", 80 + n)).collect();
        let path = "engine.flags.mem-fraction-static".to_owned();
        let question = Question {
            plimsoll: String::new(),
            scenarios: vec![crate::question::Asked {
                name: "a".to_owned(),
                sha256: String::new(),
                seed: 1,
            }],
            set: Vec::new(),
            axes: vec![Axis::new(path.clone(), vec![path], values)],
            seeds: Some("3".parse().unwrap()),
            inputs: Vec::new(),
        };
        let row = |(index, outcome): (usize, &&str)| {
            let mut cells = vec![Cell::Null; RESULTS.len()];
            cells[0] = Cell::Text((*outcome).to_owned());
            Row { index: index as u64, cells }
        };
        let rows = outcomes.iter().flatten().enumerate().map(row).collect();
        (question, rows)
    }

    fn answer(outcomes: &[[&str; 3]], share: &str) -> (Option<usize>, Option<usize>, Vec<usize>) {
        let (question, rows) = rows(outcomes);
        let groups = super::super::groups::groups(&question, &rows);
        let series = series(&question, &groups, axis(&question).unwrap());
        assert_eq!(series.len(), 1);
        let found = survival(&series[0], share.parse().unwrap());
        let at = |group: &Group<'_>| group.at[0];
        (
            found.highest.map(at),
            found.fails.map(at),
            found.islands.iter().map(|group| at(group)).collect(),
        )
    }

    const LIVES: [&str; 3] = ["finished"; 3];
    const DIES: [&str; 3] = ["out_of_memory"; 3];
    const ONE_DIES: [&str; 3] = ["finished", "out_of_memory", "finished"];
    const REFUSED: [&str; 3] = ["refused"; 3];
    const SOME_REFUSED: [&str; 3] = ["refused", "finished", "finished"];

    #[test]
    fn the_highest_is_where_all_below_survive_too() {
        assert_eq!(answer(&[LIVES, LIVES, DIES], "99.9%"), (Some(1), Some(2), vec![]));
        assert_eq!(answer(&[REFUSED, LIVES, LIVES], "99.9%"), (Some(2), None, vec![]));
        assert_eq!(answer(&[LIVES, ONE_DIES, LIVES], "99.9%"), (Some(0), Some(1), vec![2]));
        assert_eq!(answer(&[LIVES, ONE_DIES, LIVES], "60%"), (Some(2), None, vec![]));
        assert_eq!(answer(&[DIES, LIVES], "99.9%"), (None, Some(0), vec![1]));
        assert_eq!(answer(&[REFUSED, REFUSED], "99.9%"), (None, None, vec![]));
        // A value at which some seeds do not start has a server that is not there.
        assert_eq!(answer(&[LIVES, SOME_REFUSED, LIVES], "99.9%"), (Some(0), Some(1), vec![2]));
        // A start that is refused between two that live is a hole, not the bottom of the window.
        assert_eq!(answer(&[LIVES, REFUSED, LIVES], "99.9%"), (Some(0), Some(1), vec![2]));
    }

    #[test]
    fn shares_are_exact() {
        let share: Share = "99.9%".parse().unwrap();
        assert!(share.is_met(999, 1000) && !share.is_met(998, 1000));
        assert_eq!("0.999".parse::<Share>().unwrap(), share);
        assert_eq!(share.to_string(), "99.9 %");
        assert_eq!("100 %".parse::<Share>().unwrap().to_string(), "100 %");
        for text in ["0", "101%", "x", "", "99.99999%", "-1%", "1.1"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn steps_below_are_exact_decimals() {
        assert_eq!(lowered("0.90", 1).unwrap(), "0.88");
        assert_eq!(lowered("0.9", 2).unwrap(), "0.86");
        assert_eq!(lowered("0.875", 1).unwrap(), "0.855");
        assert_eq!(lowered("0.03", 2), None);
        assert_eq!(lowered("auto", 1), None);
    }
}
