//! What changes in every scenario that is run: single values, the workload, the limits of a good answer.

use crate::{args::RunArgs, exit::Failure};
use clap::Args;
use plimsoll_replay::{
    problem::{Problem, Problems},
    scenario::Override,
};
use std::{fs, path::PathBuf};

/// Changes of every file.
#[derive(Args, Debug, Clone, Default)]
pub struct ChangeArgs {
    /// Change one value of every file: `engine.flags.mem-fraction-static=0.88`. Repeatable.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Send the requests of this file instead of the scenario's workload. More about it: `--set
    /// workload={trace: {file: FILE, speedup: 2}}`.
    #[arg(long, value_name = "FILE", conflicts_with = "bench")]
    pub workload: Option<PathBuf>,
    /// Send what this benchmark command of SGLang or vLLM would send, instead of the scenario's workload.
    #[arg(long, value_name = "COMMAND")]
    pub bench: Option<String>,
    /// Limits that a good answer keeps, for goodput: `ttft=2s,tpot=50ms,e2e=30s`, each or some. They replace
    /// those of the file.
    #[arg(long, value_name = "LIMITS", value_delimiter = ',')]
    pub slo: Vec<String>,
}

impl ChangeArgs {
    /// What is set, as typed, with the workload that replaces the scenario's and the limits: a recording then
    /// has all of it.
    ///
    /// # Errors
    ///
    /// A trace that is not there, a limit without a value.
    pub fn texts(&self) -> Result<Vec<String>, Failure> {
        let mut set = self.set.clone();
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        if let Some(file) = &self.workload {
            let cannot =
                |error| Failure::input(format!("cannot read `{}`: {error}", file.display()));
            let file = fs::canonicalize(file).map_err(cannot)?;
            let file = quoted(&file.display().to_string());
            set.push(format!("workload={{trace: {{file: {file}}}}}"));
        }
        if let Some(command) = &self.bench {
            set.push(format!("workload={{bench: {}}}", quoted(command)));
        }
        for limit in &self.slo {
            if !limit.contains('=') {
                let form = "`ttft=2s,tpot=50ms,e2e=30s`, each or some";
                return Err(Failure::input(format!(
                    "--slo: `{limit}` has no `=`; allowed: {form}"
                )));
            }
            set.push(format!("slo.{}", limit.trim()));
        }
        Ok(set)
    }
}

impl RunArgs {
    /// All that is set, as typed: the changes, the neighbours, the seed.
    ///
    /// # Errors
    ///
    /// Those of [`ChangeArgs::texts`].
    pub fn texts(&self) -> Result<Vec<String>, Failure> {
        let mut set = self.changes.texts()?;
        set.extend(self.neighbours.iter().map(|how| format!("neighbours={how}")));
        set.extend(self.seed.map(|seed| format!("seed={seed}")));
        Ok(set)
    }

    /// The same, read.
    ///
    /// # Errors
    ///
    /// Those of [`Self::texts`], and what is no override.
    pub fn overrides(&self) -> Result<Vec<Override>, Failure> {
        let parsed = |text: &String| {
            text.parse().map_err(|problem: Box<Problem>| {
                let flag = if text.starts_with("slo.") { "--slo" } else { "--set" };
                Failure::input(Problems::new(flag, text, vec![*problem]).render())
            })
        };
        self.texts()?.iter().map(parsed).collect()
    }
}
