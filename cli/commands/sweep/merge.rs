//! `sweep merge`: shards of one sweep as one.

use super::options::MergeArgs;
use crate::{
    args::Format,
    exit::{self, Failure},
    output::Output,
};
use plimsoll_core::units::group_thousands;
use plimsoll_sweep::{
    merge::{Completeness, merge as merged},
    rows_file::{self, RowsRead},
};
use std::{fs, path::PathBuf};

/// Puts shards together and shows what they say.
pub fn merge(args: &MergeArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let read = |path: &PathBuf| -> Result<(String, RowsRead), Failure> {
        let file = path.display().to_string();
        let read = rows_file::read_file(path).map_err(Failure::input)?;
        if read.torn > 0 {
            output.note(&format!("note: {file} breaks off in its last line, which is left out"));
        }
        Ok((file, read))
    };
    let shards = args.shards.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let completeness = if args.partial { Completeness::Partial } else { Completeness::Whole };
    let whole = merged(shards, completeness).map_err(Failure::input)?;
    if whole.missing > 0 {
        let missing = group_thousands(whole.missing);
        output.note(&format!("note: {missing} points are missing: what follows is of the others"));
    }
    if let Some(path) = &args.out {
        let text = rows_file::text(&whole.header, &whole.rows);
        let cannot = |error| format!("cannot write {}: {error}", path.display());
        fs::write(path, text).map_err(|error| Failure::input(cannot(error)))?;
    }
    super::show(&whole.header, &whole.rows, &args.answer, format, output)?;
    Ok(exit::OK)
}
