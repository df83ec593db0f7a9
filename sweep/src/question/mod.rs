//! What a sweep asks: scenarios × values × seeds, as points in a fixed order.

pub mod axis;
pub mod header;
pub mod range;
pub mod seeds;

pub use axis::{ALIASES, Alias, Axis, AxisKind};
pub use seeds::Seeds;

/// Most points of a sweep.
pub const MAX_POINTS: u64 = 10_000_000;

/// A scenario that is asked about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// SHA-256 of its text, in hexadecimal.
    pub sha256: String,
    /// Its own seed, where no others are asked for.
    pub seed: u64,
}

/// A file that the scenarios read: a recorded workload, measured samples.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Input {
    /// As the scenario names it.
    pub file: String,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

/// A whole question. Everything that the rows depend on is in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Question {
    /// Release of Plimsoll: another one may answer otherwise.
    pub plimsoll: String,
    /// The scenarios, in their order.
    pub scenarios: Vec<Asked>,
    /// Overrides of every point, as typed.
    pub set: Vec<String>,
    /// Swept paths; the last one changes fastest.
    pub axes: Vec<Axis>,
    /// Seeds; `None`: each scenario's own.
    pub seeds: Option<Seeds>,
    /// Files that the scenarios read.
    pub inputs: Vec<Input>,
}

/// One point: a scenario, a value of every axis, a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Its number, from 0.
    pub index: u64,
    /// Its scenario, by place.
    pub scenario: usize,
    /// Its values, by place, one an axis.
    pub at: Vec<usize>,
    /// Its seed.
    pub seed: u64,
}

/// A question that cannot be asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuestionError {
    /// Too much.
    #[error("the sweep is more than {MAX_POINTS} points; sweep less, or in several runs")]
    TooLarge,
    /// A path that is swept twice, or inside another.
    #[error("`{0}` and `{1}` are swept both, and one lies in the other")]
    Overlap(String, String),
    /// A path that has a flag of its own.
    #[error("`{path}` is swept by {flag}")]
    OwnFlag {
        /// The path.
        path: &'static str,
        /// How to ask.
        flag: &'static str,
    },
}

impl Question {
    /// Seeds of each value.
    #[must_use]
    pub fn seeds_each(&self) -> u64 {
        self.seeds.as_ref().map_or(1, Seeds::len)
    }

    /// Combinations of values of each scenario.
    #[must_use]
    pub fn combinations(&self) -> u64 {
        self.axes.iter().fold(1, |all, axis| all.saturating_mul(axis.values().len() as u64))
    }

    /// How many points.
    #[must_use]
    pub fn points(&self) -> u64 {
        (self.scenarios.len() as u64)
            .saturating_mul(self.combinations())
            .saturating_mul(self.seeds_each())
    }

    /// Whether it can be asked.
    ///
    /// # Errors
    ///
    /// [`QuestionError`].
    pub fn check(&self) -> Result<(), QuestionError> {
        for (at, axis) in self.axes.iter().enumerate() {
            if axis.paths.iter().any(|path| path == "seed") {
                return Err(QuestionError::OwnFlag { path: "seed", flag: "--seeds" });
            }
            let others = self.axes.iter().skip(at + 1);
            if let Some(other) = others.into_iter().find(|other| overlap(axis, other)) {
                return Err(QuestionError::Overlap(axis.name.clone(), other.name.clone()));
            }
        }
        if self.points() > MAX_POINTS {
            return Err(QuestionError::TooLarge);
        }
        Ok(())
    }

    /// The point of a number; `None` beyond the last.
    #[must_use]
    pub fn point(&self, index: u64) -> Option<Point> {
        if index >= self.points() {
            return None;
        }
        let each = self.seeds_each();
        let (mut rest, seed_at) = (index / each, index % each);
        let mut at = vec![0; self.axes.len()];
        for (place, axis) in at.iter_mut().zip(&self.axes).rev() {
            let count = axis.values().len() as u64;
            *place = (rest % count) as usize;
            rest /= count;
        }
        let scenario = rest as usize;
        let own = self.scenarios.get(scenario).map_or(1, |asked| asked.seed);
        let seed = self.seeds.as_ref().map_or(Some(own), |seeds| seeds.get(seed_at))?;
        Some(Point { index, scenario, at, seed })
    }

    /// The overrides of a point, in the form of `run --set`.
    #[must_use]
    pub fn overrides(&self, point: &Point) -> Vec<String> {
        let values = self.axes.iter().zip(&point.at);
        let swept = values.filter_map(|(axis, at)| {
            Some(format!("{}={}", axis.path(point.scenario), axis.values().get(*at)?))
        });
        self.set.iter().cloned().chain(swept).chain([format!("seed={}", point.seed)]).collect()
    }
}

/// Whether two axes set the same key, or one inside of the other's.
fn overlap(a: &Axis, b: &Axis) -> bool {
    let inside = |a: &str, b: &str| {
        a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let (n, m) = (a.paths.len(), b.paths.len());
    (0..n.max(m)).any(|at| inside(a.path(at), b.path(at)) || inside(b.path(at), a.path(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn question() -> Question {
        let asked = |name: &str, seed| Asked { name: name.to_owned(), sha256: String::new(), seed };
        Question {
            plimsoll: "0.0.0".to_owned(),
            scenarios: vec![asked("a", 1), asked("b", 9)],
            set: vec!["limits.max_steps=10".to_owned()],
            axes: vec![
                Axis::of_path("engine.flags.x", "0.1..0.3:0.1").unwrap(),
                Axis::of_path("engine.flags.y", "1,2").unwrap(),
            ],
            seeds: Some("2".parse().unwrap()),
            inputs: Vec::new(),
        }
    }

    #[test]
    fn points_go_by_scenario_then_values_then_seed() {
        let question = question();
        assert_eq!(question.points(), 24);
        let points: Vec<Point> = (0..24).map(|i| question.point(i).unwrap()).collect();
        let mut sorted = points.clone();
        sorted.sort_by(|a, b| (a.scenario, &a.at, a.seed).cmp(&(b.scenario, &b.at, b.seed)));
        assert_eq!(sorted, points);
        assert_eq!(question.point(24), None);
        assert_eq!(
            question.overrides(&points[7]),
            ["limits.max_steps=10", "engine.flags.x=0.2", "engine.flags.y=2", "seed=2"]
        );
    }

    #[test]
    fn without_seeds_each_scenario_has_its_own() {
        let question = Question { seeds: None, ..question() };
        assert_eq!(question.point(0).unwrap().seed, 1);
        assert_eq!(question.point(11).unwrap().seed, 9);
    }

    #[test]
    fn a_key_is_swept_once_and_seeds_have_their_flag() {
        let with = |path: &str| {
            let mut question = question();
            question.axes.push(Axis::of_path(path, "1,2").unwrap());
            question.check()
        };
        assert_eq!(question().check(), Ok(()));
        assert!(matches!(with("engine.flags.x"), Err(QuestionError::Overlap(..))));
        assert!(matches!(with("engine.flags"), Err(QuestionError::Overlap(..))));
        assert!(matches!(with("engine.flags.x.z"), Err(QuestionError::Overlap(..))));
        assert_eq!(with("engine.flags.xx"), Ok(()));
        assert!(matches!(with("seed"), Err(QuestionError::OwnFlag { .. })));
        let many = Axis::of_path("workload.requests", "1..100000").unwrap();
        let seeds = Some("1..1000".parse().unwrap());
        let question = Question { axes: vec![many], seeds, ..question() };
        assert_eq!(question.check(), Err(QuestionError::TooLarge));
    }
}
