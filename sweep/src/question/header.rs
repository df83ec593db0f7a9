//! The first line of a file of rows: the question, and which part of it the file answers.

use super::{Asked, Axis, Input, Question, Seeds};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{fmt, str::FromStr};

/// Name and version of the form of a file of rows.
pub const SCHEMA: &str = "plimsoll.sweep_rows/1";

/// A part of a sweep: every `of`-th point, from the `part`-th on, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Which part, from 1.
    pub part: u64,
    /// Of how many.
    pub of: u64,
}

/// Most parts of a sweep.
pub const MAX_SHARDS: u64 = 100_000;

impl Shard {
    /// All of it.
    pub const WHOLE: Self = Self { part: 1, of: 1 };

    /// Whether a point belongs to this part: points are dealt in turn, so that every part is a mix.
    #[must_use]
    pub const fn has(self, index: u64) -> bool {
        index % self.of == self.part - 1
    }

    /// The points of this part, of `points` in all.
    #[must_use]
    pub const fn count(self, points: u64) -> u64 {
        let whole = points / self.of;
        if points % self.of >= self.part { whole + 1 } else { whole }
    }

    /// The number of the point at a place of this part.
    #[must_use]
    pub const fn index(self, at: u64) -> u64 {
        at * self.of + self.part - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = format!("allowed: `i/n`, i from 1 to n, n up to {MAX_SHARDS}");
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (part, of) = text.split_once('/').ok_or_else(|| form.clone())?;
        match (number(part), number(of)) {
            (Some(part), Some(of)) if (1..=of).contains(&part) && of <= MAX_SHARDS => {
                Ok(Self { part, of })
            }
            _ => Err(form),
        }
    }
}

/// What the first line says.
#[derive(Clone, PartialEq, Debug)]
pub struct Header {
    /// The question.
    pub question: Question,
    /// The part that is answered.
    pub shard: Shard,
}

#[derive(Serialize, Deserialize)]
struct Line {
    schema: String,
    question: String,
    points: u64,
    shard: Option<String>,
    #[serde(flatten)]
    body: Body,
}

/// What is hashed.
#[derive(Serialize, Deserialize)]
struct Body {
    plimsoll: String,
    scenarios: Vec<AskedForm>,
    set: Vec<String>,
    axes: Vec<AxisForm>,
    seeds: Option<String>,
    inputs: Vec<InputForm>,
}

#[derive(Serialize, Deserialize)]
struct AskedForm {
    name: String,
    sha256: String,
    seed: u64,
}

#[derive(Serialize, Deserialize)]
struct AxisForm {
    name: String,
    paths: Vec<String>,
    values: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct InputForm {
    file: String,
    sha256: String,
}

impl Body {
    fn of(question: &Question) -> Self {
        let asked = |one: &Asked| AskedForm {
            name: one.name.clone(),
            sha256: one.sha256.clone(),
            seed: one.seed,
        };
        let axis = |one: &Axis| AxisForm {
            name: one.name.clone(),
            paths: one.paths.clone(),
            values: one.values().to_vec(),
        };
        let input = |one: &Input| InputForm { file: one.file.clone(), sha256: one.sha256.clone() };
        Self {
            plimsoll: question.plimsoll.clone(),
            scenarios: question.scenarios.iter().map(asked).collect(),
            set: question.set.clone(),
            axes: question.axes.iter().map(axis).collect(),
            seeds: question.seeds.as_ref().map(ToString::to_string),
            inputs: question.inputs.iter().map(input).collect(),
        }
    }

    fn into_question(self) -> Result<Question, String> {
        let asked = |one: AskedForm| Asked { name: one.name, sha256: one.sha256, seed: one.seed };
        let axis = |one: AxisForm| Axis::new(one.name, one.paths, one.values);
        let input = |one: InputForm| Input { file: one.file, sha256: one.sha256 };
        let question = Question {
            plimsoll: self.plimsoll,
            scenarios: self.scenarios.into_iter().map(asked).collect(),
            set: self.set,
            axes: self.axes.into_iter().map(axis).collect(),
            seeds: self.seeds.as_deref().map(str::parse::<Seeds>).transpose()?,
            inputs: self.inputs.into_iter().map(input).collect(),
        };
        question.check().map_err(|error| error.to_string())?;
        Ok(question)
    }

    fn text(&self) -> String {
        // Plain text and numbers: this cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// SHA-256 of a text, in hexadecimal.
#[must_use]
pub fn sha256(text: &[u8]) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Question {
    /// The hash of all that the rows depend on.
    #[must_use]
    pub fn hash(&self) -> String {
        sha256(Body::of(self).text().as_bytes())
    }
}

impl Header {
    /// The line, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        let line = Line {
            schema: SCHEMA.to_owned(),
            question: self.question.hash(),
            points: self.question.points(),
            shard: (self.shard != Shard::WHOLE).then(|| self.shard.to_string()),
            body: Body::of(&self.question),
        };
        serde_json::to_string(&line).unwrap_or_default()
    }

    /// Reads the line.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let line: Line = serde_json::from_str(text)
            .map_err(|error| format!("the first line is no header of a sweep: {error}"))?;
        if line.schema != SCHEMA {
            return Err(format!("its schema is `{}`; allowed: `{SCHEMA}`", line.schema));
        }
        let shard = line.shard.as_deref().map_or(Ok(Shard::WHOLE), str::parse)?;
        let question = line.body.into_question()?;
        match question.hash() == line.question {
            true => Ok(Self { question, shard }),
            false => Err("its question is not the one that its hash says".to_owned()),
        }
    }

    /// What differs between two questions, in words; `None`: they are one.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let (a, b) = (&self.question, &other.question);
        if self == other {
            return None;
        }
        let two = |what: &str, a: &dyn fmt::Display, b: &dyn fmt::Display| {
            Some(format!("{what}: {a} there, {b} here"))
        };
        let names = |all: &[Asked]| -> String {
            all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        if a.plimsoll != b.plimsoll {
            return two("the release of Plimsoll", &a.plimsoll, &b.plimsoll);
        }
        if names(&a.scenarios) != names(&b.scenarios) {
            return two("the scenarios", &names(&a.scenarios), &names(&b.scenarios));
        }
        if let Some((asked, _)) = a.scenarios.iter().zip(&b.scenarios).find(|(a, b)| a != b) {
            return Some(format!("the text of the scenario {} is another one", asked.name));
        }
        if a.set != b.set {
            let list = |set: &[String]| format!("`{}`", set.join("` `"));
            return two("--set", &list(&a.set), &list(&b.set));
        }
        let names = |axes: &[Axis]| -> String {
            axes.iter().map(|axis| axis.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        if names(&a.axes) != names(&b.axes) {
            return two("what is swept", &names(&a.axes), &names(&b.axes));
        }
        if let Some((one, other)) = a.axes.iter().zip(&b.axes).find(|(a, b)| a != b) {
            let list = |axis: &Axis| axis.values().join(",");
            return two(&format!("the values of {}", one.name), &list(one), &list(other));
        }
        if a.seeds != b.seeds {
            let seeds =
                |seeds: &Option<Seeds>| seeds.as_ref().map_or("none".to_owned(), Seeds::to_string);
            return two("the seeds", &seeds(&a.seeds), &seeds(&b.seeds));
        }
        if a.inputs != b.inputs {
            return Some("a file that the scenario reads is not what it was".to_owned());
        }
        two("the shard", &self.shard, &other.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::question, *};

    #[test]
    fn a_header_reads_back_and_another_question_says_what_differs() {
        let header = Header { question: question(), shard: Shard { part: 2, of: 3 } };
        let again = Header::read(&header.line()).unwrap();
        assert_eq!(again, header);
        assert_eq!(again.difference(&header), None);
        let changed = |change: fn(&mut Header)| {
            let mut other = header.clone();
            change(&mut other);
            assert!(Header::read(&other.line()).is_ok());
            header.difference(&other).unwrap()
        };
        type Change = fn(&mut Header);
        let cases: [(Change, &str); 8] = [
            (|h| h.question.plimsoll.push('1'), "the release"),
            (|h| h.question.scenarios[1].name.push('1'), "the scenarios"),
            (|h| h.question.scenarios[1].sha256.push('1'), "the text of the scenario b"),
            (|h| h.question.set.clear(), "--set"),
            (|h| drop(h.question.axes.pop()), "what is swept"),
            (
                |h| h.question.axes[0] = Axis::of_path("engine.flags.x", "1").unwrap(),
                "the values of engine.flags.x",
            ),
            (|h| h.question.seeds = None, "the seeds: 1..2 there, none here"),
            (|h| h.shard = Shard::WHOLE, "the shard: 2/3 there, 1/1 here"),
        ];
        for (change, part) in cases {
            let text = changed(change);
            assert!(text.contains(part), "{part}: {text}");
        }
        let torn = header.line().replace("0.0.0", "0.0.1");
        assert!(Header::read(&torn).unwrap_err().contains("hash"));
    }

    #[test]
    fn shards_deal_every_point_once() {
        for points in [0, 1, 7, 24] {
            for of in 1..=9 {
                let mut seen = Vec::new();
                for part in 1..=of {
                    let shard = Shard { part, of };
                    let mine: Vec<u64> = (0..points).filter(|i| shard.has(*i)).collect();
                    assert_eq!(mine.len() as u64, shard.count(points));
                    for (at, index) in mine.iter().enumerate() {
                        assert_eq!(shard.index(at as u64), *index);
                    }
                    seen.extend(mine);
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..points).collect::<Vec<u64>>());
            }
        }
        for text in ["0/3", "4/3", "1", "1/0", "a/b", "1/100001"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
