//! `replay`: a recording, run again.

use super::{
    diff,
    show::{self, Viewers},
    views,
};
use crate::{
    args::{Format, ReplayArgs},
    exit::{self, Failure},
    output::{Output, Tone},
};
use plimsoll_replay::{
    again::{Again, Extent, again},
    wire::Log,
};
use serde_json::{Value, json};

/// Runs a recording again and says whether the decisions are the same.
pub fn replay(args: &ReplayArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    show::may_write(&args.views)?;
    let log = diff::read(&args.recording, output)?;
    let place = args.recording.display();
    let again = again(&log).map_err(|error| Failure::input(format!("{place}: {error}")))?;
    let text = match format {
        Format::Json => format!("{:#}\n", machine(&again, &log, args)?),
        Format::Jsonl => format!("{}\n", machine(&again, &log, args)?),
        Format::Human | Format::Csv | Format::Md | Format::Sarif => {
            human(&again, output) + &views::human(&log, &args.views, output)?
        }
    };
    views::write_svg(&log, &args.views)?;
    let mut viewers = Viewers::new(&args.views, &again.run.scenario.name)?;
    log.records.iter().for_each(|record| viewers.take(record));
    viewers.finish(&again.run, notes(&again), &args.views)?;
    output.write(&text)?;
    Ok(if again.difference.is_some() { exit::FAILED } else { exit::OK })
}

/// What a page of a recording must say: its verdict is that of the second run.
fn notes(again: &Again) -> Vec<String> {
    let extent = match again.extent {
        Extent::Whole => None,
        Extent::Interrupted => {
            Some("The recording was interrupted: the charts end there.".to_owned())
        }
        Extent::Cut(byte) => {
            Some(format!("The recording breaks off at byte {byte}: the charts end there."))
        }
    };
    let differs = "Run again, the decisions are not those of the recording: the charts show the recording, the \
                   verdict is of the second run.";
    extent.into_iter().chain(again.difference.as_ref().map(|_| differs.to_owned())).collect()
}

fn human(again: &Again, output: &Output) -> String {
    let count = plimsoll_core::units::group_thousands(again.compared as u64);
    let until = match again.extent {
        Extent::Whole => "to the end",
        Extent::Interrupted => "up to the interruption",
        Extent::Cut(_) => "up to the cut",
    };
    match &again.difference {
        None => {
            let word = output.paint(Tone::Good, "same");
            let run = &again.run;
            let (name, seed) = (&run.scenario.name, run.scenario.seed);
            let digest = run.digests.decisions.get(..16).unwrap_or_default();
            format!(
                "{word}  {name}  {count} decisions are made again, {until}\n  digest decisions \
                 {digest}  seed {seed}\n"
            )
        }
        Some(found) => {
            let word = output.paint(Tone::Bad, "DIFFERS");
            format!("{word}  {}\n{found}", again.run.scenario.name)
        }
    }
}

fn machine(again: &Again, log: &Log, args: &ReplayArgs) -> Result<Value, Failure> {
    let (recording, cut) = match again.extent {
        Extent::Whole => ("whole", None),
        Extent::Interrupted => ("interrupted", None),
        Extent::Cut(byte) => ("cut", Some(byte)),
    };
    Ok(json!({
        "schema": "plimsoll.replay/1",
        "recording": recording,
        "cut_at_byte": cut,
        "decisions": again.compared,
        "same_decisions": again.difference.is_none(),
        "first": diff::first(again.difference.as_ref()),
        "moment": views::moment(log, &args.views)?,
        "timeline": views::timeline(log, &args.views),
    }))
}
