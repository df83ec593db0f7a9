//! The load: a workload as it stands, changed by the flags, or prompts of one length.

use super::options::{BenchArgs, RequestRate};
use crate::{args::WorkloadArgs, commands::workload, exit::Failure};
use plimsoll_core::{engine::serving::Sampling, sched::EosRule, units::Nanos};
use plimsoll_replay::{
    scenario::{
        Gaps, Group, Lengths, MaxTokens, Pacing, Part, PrefixChoice, Schedule, Shape, SharedPrefix,
        Workload,
    },
    workload::{WorkloadClients, load},
};
use std::{path::PathBuf, sync::Arc};

/// What is sent.
pub struct Load {
    /// What it is called in the result.
    pub name: String,
    /// Who sends it.
    pub clients: WorkloadClients,
    /// Requests of all of it.
    pub total: u64,
    /// Seed of what is drawn.
    pub seed: u64,
    /// What the import of its files says.
    pub notes: Vec<String>,
}

const AT_ONCE: Schedule = Schedule::Together { at: Nanos(0) };

impl Load {
    /// Reads the workload and its files.
    ///
    /// # Errors
    ///
    /// What is wrong with either.
    pub fn of(args: &BenchArgs) -> Result<Self, Failure> {
        let (mut workload, folder, seed) = match &args.workload {
            Some(source) => workload::find(&reading(args, source))?,
            None => (plain(args), PathBuf::new(), 1),
        };
        let seed = args.seed.unwrap_or(seed);
        workload.parts.iter_mut().for_each(|part| change(part, args));
        let mut traces = Vec::new();
        for source in workload.traces() {
            let loaded = load(source, &folder, seed, args.strict_input).map_err(Failure::input)?;
            traces.push(Arc::new(loaded));
        }
        let clients = workload.clients(&traces, seed);
        let notes = traces.iter().map(|trace| trace.told.to_string()).collect();
        let name = args.workload.clone().unwrap_or_else(|| described(args));
        Ok(Self { name, total: clients.total(), clients, seed, notes })
    }
}

/// The same question as `workload` asks.
fn reading(args: &BenchArgs, source: &str) -> WorkloadArgs {
    WorkloadArgs {
        source: source.to_owned(),
        input_format: args.input_format.clone(),
        block_size: args.block_size,
        limit: args.num_prompts,
        smear_arrivals: args.smear_arrivals,
        seed: args.seed,
        strict_input: args.strict_input,
    }
}

fn lengths(args: &BenchArgs) -> (u64, u64, u64) {
    let prefix = args.shared_prefix_len.unwrap_or(0);
    (prefix, args.input_len.unwrap_or(256), args.output_len.unwrap_or(64))
}

fn described(args: &BenchArgs) -> String {
    let (prefix, input, output) = lengths(args);
    let shared = if prefix > 0 { format!("{prefix} shared + ") } else { String::new() };
    format!("{shared}{input} tokens in, {output} out")
}

/// Prompts and answers of one length.
fn plain(args: &BenchArgs) -> Workload {
    let (prefix, input, output) = lengths(args);
    let shared_prefix = (prefix > 0).then_some(SharedPrefix {
        tokens: Lengths::Fixed(prefix),
        groups: 1,
        choice: PrefixChoice::InOrder,
    });
    let group = Group {
        name: "bench".to_owned(),
        requests: args.num_prompts.unwrap_or(100),
        schedule: AT_ONCE,
        concurrency: None,
        think_time: Nanos(0),
        shape: Shape {
            prompt_tokens: Lengths::Fixed(input),
            output_tokens: Lengths::Fixed(output),
            max_tokens: MaxTokens::Output,
            eos: EosRule::Ignored,
            sampling: Sampling::default(),
            logprob_start: None,
            priority: None,
        },
        shared_prefix,
        turns: None,
    };
    Workload { parts: vec![Part::Group(Box::new(group))] }
}

/// What the flags say goes for every part.
fn change(part: &mut Part, args: &BenchArgs) {
    match part {
        Part::Group(group) => {
            group.requests = args.num_prompts.unwrap_or(group.requests);
            group.concurrency = args.max_concurrency.or(group.concurrency);
            match args.request_rate {
                Some(RequestRate::Inf) => group.schedule = AT_ONCE,
                Some(RequestRate::Mean(rate)) => group.set_rate(rate),
                None => {}
            }
        }
        Part::Trace(source) => {
            source.limit = args.num_prompts.or(source.limit);
            source.concurrency = args.max_concurrency.or(source.concurrency);
            source.schedule = match args.request_rate {
                Some(RequestRate::Inf) => Some(AT_ONCE),
                Some(RequestRate::Mean(rate)) => Some(Schedule::Rate {
                    rate,
                    gaps: Gaps::Poisson,
                    start: Nanos(0),
                    pacing: Pacing::Steady,
                }),
                None => source.schedule,
            };
        }
    }
}
