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
    diff::Difference,
    live,
    wire::Log,
};
use serde_json::{Value, json};

/// Runs a recording again and says whether the decisions are the same.
pub fn replay(args: &ReplayArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    show::may_write(&args.views)?;
    let log = diff::read(&args.recording, output)?;
    let place = args.recording.display();
    if live::is_live(&log) {
        return served(&log, args, format, output);
    }
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

/// The recording of a server that really served.
fn served(log: &Log, args: &ReplayArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let place = args.recording.display();
    if args.views.wanted() {
        return Err(Failure::input(format!(
            "{place} is the recording of a server: its views are not drawn, only its decisions are made again"
        )));
    }
    let again = live::again(log).map_err(|error| Failure::input(format!("{place}: {error}")))?;
    let views = (Value::Null, Value::Null);
    let document = document(again.extent, again.compared, again.difference.as_ref(), views);
    let text = match format {
        Format::Json => format!("{document:#}\n"),
        Format::Jsonl => format!("{document}\n"),
        Format::Human | Format::Csv | Format::Md | Format::Sarif => {
            let digest = &again.log.digests.decisions;
            let tail = format!("digest decisions {}", digest.get(..16).unwrap_or_default());
            let said =
                Said { extent: again.extent, compared: again.compared, name: "server", tail };
            verdict(&said, again.difference.as_ref(), output)
        }
    };
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
    let run = &again.run;
    let digest = run.digests.decisions.get(..16).unwrap_or_default();
    let tail = format!("digest decisions {digest}  seed {}", run.scenario.seed);
    let (extent, compared, name) = (again.extent, again.compared, run.scenario.name.as_str());
    verdict(&Said { extent, compared, name, tail }, again.difference.as_ref(), output)
}

/// What is said of a second run.
struct Said<'a> {
    extent: Extent,
    compared: usize,
    name: &'a str,
    tail: String,
}

fn verdict(said: &Said<'_>, difference: Option<&Difference>, output: &Output) -> String {
    let count = plimsoll_core::units::group_thousands(said.compared as u64);
    let until = match said.extent {
        Extent::Whole => "to the end",
        Extent::Interrupted => "up to the interruption",
        Extent::Cut(_) => "up to the cut",
    };
    let Said { name, tail, .. } = said;
    match difference {
        None => {
            let word = output.paint(Tone::Good, "same");
            format!("{word}  {name}  {count} decisions are made again, {until}\n  {tail}\n")
        }
        Some(found) => {
            let word = output.paint(Tone::Bad, "DIFFERS");
            format!("{word}  {name}\n{found}")
        }
    }
}

const fn extent_name(extent: Extent) -> &'static str {
    match extent {
        Extent::Whole => "whole",
        Extent::Interrupted => "interrupted",
        Extent::Cut(_) => "cut",
    }
}

const fn cut_at(extent: Extent) -> Option<u64> {
    match extent {
        Extent::Cut(byte) => Some(byte),
        Extent::Whole | Extent::Interrupted => None,
    }
}

fn machine(again: &Again, log: &Log, args: &ReplayArgs) -> Result<Value, Failure> {
    let views = (views::moment(log, &args.views)?, views::timeline(log, &args.views));
    Ok(document(again.extent, again.compared, again.difference.as_ref(), views))
}

/// The result for machines, with the accounts at a moment and the timeline.
fn document(
    extent: Extent,
    compared: usize,
    difference: Option<&Difference>,
    (moment, timeline): (Value, Value),
) -> Value {
    json!({
        "schema": "plimsoll.replay/1",
        "recording": extent_name(extent),
        "cut_at_byte": cut_at(extent),
        "decisions": compared,
        "same_decisions": difference.is_none(),
        "first": diff::first(difference),
        "moment": moment,
        "timeline": timeline,
    })
}
