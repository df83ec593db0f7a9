//! From what a user types to a question: scenarios are read, and every swept path is tried before anything
//! runs, so that a slip of the pen is not a thousand rows.

use crate::{
    points::{Source, scenario},
    question::{
        Alias, Asked, Axis, Input, Point, Question, QuestionError, Seeds, header::sha256,
        range::RangeError,
    },
};
use plimsoll_replay::{
    assemble::{self, Launch},
    path::KeyPath,
    problem::{Code, Place, Problem, Problems},
    scenario::{EngineName, SamplesFile, Scenario},
    workload::{Told, TraceError},
};
use std::collections::BTreeSet;

/// A range as typed, and where it goes.
#[derive(Clone, PartialEq, Debug)]
pub enum Ask {
    /// `--over PATH=RANGE`.
    Path {
        /// The path.
        path: String,
        /// The range.
        range: String,
    },
    /// A short name.
    Alias {
        /// Which.
        alias: Alias,
        /// The range.
        range: String,
    },
}

/// All that is asked.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Asking {
    /// Overrides of every point.
    pub set: Vec<String>,
    /// What is swept, in the order typed.
    pub over: Vec<Ask>,
    /// Seeds.
    pub seeds: Option<Seeds>,
}

/// Why a question cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// A scenario that cannot be read, or a path that none has.
    #[error("{}", .0.render())]
    Scenario(Problems),
    /// A range.
    #[error("{name}: {error}")]
    Range {
        /// Flag and path.
        name: String,
        /// What is wrong.
        error: RangeError,
    },
    /// The whole.
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// Two scenarios of one name.
    #[error("two of the scenarios are called `{0}`: rows could not be told apart")]
    SameName(String),
    /// No engine, so a short name has no path.
    #[error("{0}: neither `engine.name` nor `engine.command` says which engine it is")]
    NoEngine(String),
    /// A flag that no engine has.
    #[error("{path}: no known release of the engine takes `--{flag}`{near}")]
    UnknownFlag {
        /// The path.
        path: String,
        /// The flag.
        flag: String,
        /// What may be meant.
        near: String,
    },
    /// A launch that cannot be read at any value.
    #[error("{file}: {why}")]
    Launch {
        /// The scenario's file.
        file: String,
        /// Why.
        why: String,
    },
    /// A recorded workload.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A question, and what is worth saying about it.
#[derive(Clone, PartialEq, Debug)]
pub struct AskedFor {
    /// The question.
    pub question: Question,
    /// Sentences for stderr.
    pub notes: Vec<String>,
}

/// Makes the question, and tries every value of every path once.
///
/// # Errors
///
/// [`AskError`].
pub fn ask(sources: &[Source], asking: &Asking, version: &str) -> Result<AskedFor, AskError> {
    let first = first_values(asking)?;
    let mut asked = Vec::new();
    let mut engines = Vec::new();
    for source in sources {
        let base = base(source, asking, &first)?;
        let file = source.file.display().to_string();
        engines.push(base.engine.engine().ok_or(AskError::NoEngine(file))?);
        let sha256 = sha256(source.text.as_bytes());
        asked.push(Asked { name: base.name, sha256, seed: base.seed });
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = asked.iter().find(|one| !names.insert(one.name.as_str())) {
        return Err(AskError::SameName(twice.name.clone()));
    }
    let mut question = Question {
        plimsoll: version.to_owned(),
        scenarios: asked,
        set: asking.set.clone(),
        axes: axes(asking, &engines)?,
        seeds: asking.seeds.clone(),
        inputs: Vec::new(),
    };
    question.check()?;
    let mut tried = Tried::default();
    for (axis, _) in question.axes.iter().enumerate() {
        tried.axis(sources, &question, axis)?;
    }
    if question.axes.is_empty() {
        for at in 0..sources.len() {
            tried.point(sources, &question, at, &[])?;
        }
    }
    if let Some(error) = tried.first_error.take().filter(|_| !tried.any_fits) {
        return Err(error);
    }
    question.inputs = tried.inputs.into_iter().collect();
    Ok(AskedFor { question, notes: tried.notes.into_iter().collect() })
}

/// The scenario as it stands with `--set`; where it needs a swept value, with the first of each.
fn base(source: &Source, asking: &Asking, first: &[String]) -> Result<Scenario, AskError> {
    let plain = scenario(source, &asking.set);
    plain.or_else(|problems| {
        let with: Vec<String> = asking.set.iter().chain(first).cloned().collect();
        scenario(source, &with).map_err(|_| AskError::Scenario(problems))
    })
}

/// The first value of every path that is given as a path.
fn first_values(asking: &Asking) -> Result<Vec<String>, AskError> {
    let mut all = Vec::new();
    for ask in &asking.over {
        if let Ask::Path { path, range } = ask {
            let axis = Axis::of_path(path, range).map_err(|error| range_error(ask, error))?;
            all.extend(axis.values().first().map(|value| format!("{}={value}", axis.name)));
        }
    }
    Ok(all)
}

fn range_error(ask: &Ask, error: RangeError) -> AskError {
    let name = match ask {
        Ask::Path { path, .. } => format!("--over {path}"),
        Ask::Alias { alias, .. } => format!("--{}", alias.name.replace('_', "-")),
    };
    AskError::Range { name, error }
}

fn axes(asking: &Asking, engines: &[EngineName]) -> Result<Vec<Axis>, AskError> {
    let axis = |ask: &Ask| {
        let made = match ask {
            Ask::Path { path, range } => Axis::of_path(path, range),
            Ask::Alias { alias, range } => Axis::of_alias(alias, engines, range),
        };
        made.map_err(|error| range_error(ask, error))
    };
    asking.over.iter().map(axis).collect()
}

/// What came of trying.
#[derive(Default)]
struct Tried {
    inputs: BTreeSet<Input>,
    notes: BTreeSet<String>,
    /// Whether any point can run.
    any_fits: bool,
    /// Why the first one that cannot does not.
    first_error: Option<AskError>,
}

impl Tried {
    /// Every value of an axis in every scenario, the others at their first values. A path that no scenario has
    /// at any value is an error.
    fn axis(
        &mut self,
        sources: &[Source],
        question: &Question,
        axis: usize,
    ) -> Result<(), AskError> {
        let mut missing = None;
        let mut found = false;
        for scenario in 0..sources.len() {
            for value in 0..question.axes[axis].values().len() {
                let mut at = vec![0; question.axes.len()];
                at[axis] = value;
                let swept = question.axes[axis].path(scenario);
                match self.point(sources, question, scenario, &at)? {
                    Some(problems) if concerns(&problems, swept) => {
                        missing.get_or_insert(problems);
                    }
                    _ => found = true,
                }
            }
        }
        match missing {
            Some(problems) if !found => Err(AskError::Scenario(problems)),
            _ => Ok(()),
        }
    }

    /// One point, as far as it goes without running. Answers what is wrong with its scenario; what else is
    /// wrong will be a row with its reason.
    fn point(
        &mut self,
        sources: &[Source],
        question: &Question,
        at_scenario: usize,
        at: &[usize],
    ) -> Result<Option<Problems>, AskError> {
        let Some(source) = sources.get(at_scenario) else { return Ok(None) };
        let seed = question.scenarios.get(at_scenario).map_or(1, |asked| asked.seed);
        let point = Point { index: 0, scenario: at_scenario, at: at.to_vec(), seed };
        let scenario = match scenario(source, &question.overrides(&point)) {
            Ok(scenario) => scenario,
            Err(problems) => {
                self.first_error.get_or_insert(AskError::Scenario(problems.clone()));
                return Ok(Some(problems));
            }
        };
        let files = scenario.drawn.iter().filter_map(|drawn| drawn.samples.as_ref());
        let input =
            |file: &SamplesFile| Input { file: file.name.clone(), sha256: file.sha256.clone() };
        self.inputs.extend(files.map(input));
        self.readings(&scenario, question, at_scenario);
        match assemble::launch_of_scenario(&scenario) {
            Ok(launch) => self.flags(&launch, question, at_scenario)?,
            Err(error) => {
                let (file, why) = (source.file.display().to_string(), error.to_string());
                self.first_error.get_or_insert(AskError::Launch { file, why });
                return Ok(None);
            }
        }
        match scenario.traces(&source.file, false) {
            Ok(traces) => {
                self.any_fits = true;
                let input =
                    |told: &Told| Input { file: told.file.clone(), sha256: told.sha256.clone() };
                self.inputs.extend(traces.iter().map(|trace| input(&trace.told)));
            }
            Err(error) => {
                self.first_error.get_or_insert(AskError::Trace(error));
            }
        }
        Ok(None)
    }

    /// Readings of one number of ranks do not hold for another.
    fn readings(&mut self, scenario: &Scenario, question: &Question, at_scenario: usize) {
        let ranks = |axis: &&Axis| {
            let path = axis.path(at_scenario);
            ["tp", "tp-size", "tensor-parallel-size"]
                .iter()
                .any(|flag| path.strip_prefix("engine.flags.") == Some(*flag))
        };
        let declared = scenario.machine.readings.given().into_iter().map(|(name, _)| name);
        let declared: Vec<&str> = declared.collect();
        if let Some(axis) = question.axes.iter().find(ranks).filter(|_| !declared.is_empty()) {
            self.notes.insert(format!(
                "{}: `machine.readings` of {} ({}) stand for every number of ranks that is swept; leave them out, \
                 unless that is meant",
                axis.name,
                scenario.name,
                declared.join(", ")
            ));
        }
    }

    /// A flag that the engine does not have changes nothing, and one that is not modelled changes nothing here.
    fn flags(
        &mut self,
        launch: &Launch,
        question: &Question,
        at_scenario: usize,
    ) -> Result<(), AskError> {
        for axis in &question.axes {
            let path = axis.path(at_scenario);
            let Some(flag) = path.strip_prefix("engine.flags.") else { continue };
            let flag = flag.trim_matches('"').trim_start_matches("--");
            let named = |name: &str| name.trim_start_matches("--") == flag;
            if let Some(unknown) = launch.unknown.iter().find(|one| named(&one.name)) {
                let near = unknown.near.first().map(|near| format!("; did you mean `{near}`?"));
                return Err(AskError::UnknownFlag {
                    path: path.to_owned(),
                    flag: flag.to_owned(),
                    near: near.unwrap_or_default(),
                });
            }
            if launch.not_modelled.iter().any(|one| named(&one.name)) {
                self.notes.insert(format!(
                    "{path}: `--{flag}` is not modelled; sweeping it changes nothing"
                ));
            }
        }
        Ok(())
    }
}

/// Whether a swept path itself is wrong, whatever its value.
fn concerns(problems: &Problems, swept: &str) -> bool {
    let path: Option<KeyPath> = swept.parse().ok();
    let in_it = |problem: &Problem| match &problem.place {
        Place::Override(text) => text.strip_prefix(swept).is_some_and(|rest| rest.starts_with('=')),
        _ => path.as_ref().is_some_and(|path| path.starts_with(&problem.path)),
    };
    let of_path = |problem: &&Problem| {
        matches!(problem.code, Code::UnknownKey | Code::Override | Code::WrongType)
    };
    problems.list.iter().filter(of_path).any(in_it)
}
