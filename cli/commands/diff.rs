//! `diff`: the first difference between two decision logs.

use crate::{
    args::DiffArgs,
    exit::{self, Failure},
    output::Output,
};
use plimsoll_replay::{diff, record::DigestScope, wire::Log};
use std::{fs::File, io::BufReader, path::Path};

/// Compares what must agree everywhere, then says whether the rest agrees too.
pub fn diff(args: &DiffArgs, output: &Output) -> Result<u8, Failure> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let Some(found) = diff::diff(&a, &b, DigestScope::Decisions) else {
        let same = a.digests.full == b.digests.full;
        let rest = if same { "everything else too" } else { "measured values differ" };
        output.write(&format!("same decisions; {rest}\n"))?;
        return Ok(exit::OK);
    };
    output.write(&format!("{found}\n"))?;
    Ok(exit::FAILED)
}

fn read(path: &Path) -> Result<Log, Failure> {
    let place = |error: &dyn std::fmt::Display| {
        Failure::input(format!("cannot read {}: {error}", path.display()))
    };
    let file = File::open(path).map_err(|error| place(&error))?;
    let log = Log::read(BufReader::new(file)).map_err(|error| place(&error))?;
    if !log.complete {
        let at = log.cut_at.unwrap_or_default();
        crate::output::note(&format!("{} is cut off at byte {at}", path.display()));
    }
    Ok(log)
}
