//! `workload`: what a workload is like, without running it.

use crate::{
    args::{Format, WorkloadArgs},
    exit::{self, Failure},
    output::Output,
    render,
};
use plimsoll_replay::{
    problem::near,
    scenario::{Part, Scenario, Smear, TraceSource, Workload},
    workload::{bench, describe::describe, load, presets},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Describes a workload.
pub fn workload(args: &WorkloadArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    if args.source == "list" {
        output.write(&render::workload::presets())?;
        return Ok(exit::OK);
    }
    let (workload, folder, seed) = find(args)?;
    let seed = args.seed.unwrap_or(seed);
    let loaded = workload.traces().map(|source| load(source, &folder, seed, args.strict_input));
    let traces: Vec<_> = loaded
        .map(|trace| trace.map(Arc::new))
        .collect::<Result<_, _>>()
        .map_err(Failure::input)?;
    let parts = describe(&workload, &traces, seed);
    output.write(&match format {
        Format::Human => render::workload::human(&parts),
        Format::Json => format!("{:#}\n", render::workload::json(&parts)),
        Format::Jsonl => format!("{}\n", render::workload::json(&parts)),
        Format::Csv | Format::Md | Format::Sarif => render::workload::table(&parts, format),
    })?;
    Ok(exit::OK)
}

/// The workload, where its files are, and its seed.
///
/// # Errors
///
/// It is none, or cannot be read.
pub fn find(args: &WorkloadArgs) -> Result<(Workload, PathBuf, u64), Failure> {
    let here = PathBuf::new();
    let path = Path::new(&args.source);
    let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    if yaml {
        let scenario =
            Scenario::load(path, &[]).map_err(|problems| Failure::input(problems.render()))?;
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let message = || Failure::input(format!("{}: no request reaches the server", args.source));
        let workload = scenario.requests().ok_or_else(message)?;
        return Ok((workload, folder, scenario.seed));
    }
    let alone = |part: Part| (Workload { parts: vec![part] }, here, 1);
    if let Some(preset) = presets::named(&args.source).filter(|_| !path.exists()) {
        return Ok(alone(Part::Group(Box::new(preset.group))));
    }
    if !path.exists() && args.source.contains(char::is_whitespace) {
        return bench::part(&args.source).map(alone).map_err(Failure::input);
    }
    if !path.exists() {
        let names = presets::NAMES.iter().copied();
        let help = near(&args.source, names)
            .map_or(String::new(), |name| format!("; did you mean `{name}`?"));
        let message = format!("`{}` is no file and no preset{help}", args.source);
        return Err(Failure::input(message));
    }
    Ok(alone(Part::Trace(Box::new(source(args)))))
}

fn source(args: &WorkloadArgs) -> TraceSource {
    let mut source = TraceSource::plain(PathBuf::from(&args.source));
    let format = args.input_format.as_deref();
    source.options.format = format.and_then(plimsoll_ingest::workload::Format::named);
    source.options.block_size = args.block_size;
    source.options.limit = args.limit;
    source.limit = args.limit;
    if args.smear_arrivals {
        source.smear = Smear::Detected;
    }
    source
}
