//! `calibrate`: from measurements to a profile.

pub mod options;

use super::plan::places;
use crate::{
    args::Format,
    exit::{self, Failure},
    output::Output,
    render,
};
use options::CalibrateArgs;
use plimsoll_calibrate::{Calibration, File, Options, calibrate as fit};
use plimsoll_ingest::launch::{self, Context, LaunchInput};
use plimsoll_replay::{
    assemble::{ModelAsk, case_launch, find_device, find_model, of_scenario, ranks_of},
    scenario::Scenario,
    start::{CapacityReading, Case, Facts},
};
use std::{fs, path::Path};

/// Fits a profile.
pub fn calibrate(args: &CalibrateArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let case = case(args)?;
    let names: Vec<String> = args.measured.iter().map(|path| path.display().to_string()).collect();
    let read = |path: &std::path::PathBuf| {
        fs::read(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
    };
    let contents: Vec<Vec<u8>> = args.measured.iter().map(read).collect::<Result<_, _>>()?;
    let files: Vec<File<'_>> =
        names.iter().zip(&contents).map(|(name, bytes)| File { name, bytes }).collect();
    let options = Options { fit_first: args.fit_first.map(|n| n as usize) };
    let fitted = fit(&case, &files, options).map_err(Failure::input)?;
    if let Some(path) = &args.save {
        save(&fitted, path)?;
    }
    output.write(&match format {
        Format::Human | Format::Sarif => render::calibrate::human(&fitted, args, output),
        Format::Json => format!("{:#}\n", render::calibrate::machine(&fitted)),
        Format::Jsonl => format!("{}\n", render::calibrate::machine(&fitted)),
        Format::Csv => render::calibrate::csv(&fitted),
        Format::Md => render::calibrate::markdown(&fitted),
    })?;
    if format != Format::Human {
        fitted.notes.iter().for_each(|note| output.note(&format!("note: {note}")));
    }
    Ok(exit::OK)
}

fn save(fitted: &Calibration, path: &Path) -> Result<(), Failure> {
    let text = fitted.profile.to_text().map_err(Failure::input)?;
    let cannot = |error| Failure::input(format!("cannot write {}: {error}", path.display()));
    fs::write(path, text).map_err(cannot)
}

/// What was measured: the machine and launch of a scenario, or a device and a command.
fn case(args: &CalibrateArgs) -> Result<Case, Failure> {
    if let Some(file) = &args.scenario {
        let scenario =
            Scenario::load(file, &[]).map_err(|problems| Failure::input(problems.render()))?;
        let place = |error| Failure::input(format!("error: {}: {error}", file.display()));
        return Ok(of_scenario(&scenario, file).map_err(place)?.case);
    }
    let Some(device) = args.device.as_ref().filter(|_| !args.command.is_empty()) else {
        return Err(Failure::input(
            "what was measured is not said: give --scenario FILE, or --device NAME and the launch command \
             after `--`",
        ));
    };
    let wrong =
        |flag: &str, error: &dyn std::fmt::Display| Failure::input(format!("{flag}: {error}"));
    let version = args.engine_version.as_ref().map(|text| text.parse()).transpose();
    let version = version.map_err(|error| wrong("--engine-version", &error))?;
    let read_file = |path: &str| fs::read_to_string(path);
    let ctx = Context { version, read_file: Some(&read_file), env: &[] };
    let input = match args.command.as_slice() {
        [text] if text.contains(char::is_whitespace) => LaunchInput::Text(text),
        words => LaunchInput::Argv(words),
    };
    let mut launch = launch::parse_command(input, &ctx).map_err(Failure::input)?;
    let found = find_device(device, &mut launch);
    let device = found.map_err(|error| wrong(&format!("--device {device}"), &error))?;
    let mut ask = ModelAsk::of_launch(&launch.engine);
    if let Some(model) = &args.model {
        ask.name = Some(model.clone());
    }
    let model = find_model(&ask, &launch.engine, &places()).map_err(Failure::input)?;
    Ok(Case {
        launch: case_launch(&launch.engine),
        model,
        device,
        capacity: CapacityReading::Catalog,
        ranks: ranks_of(&launch.engine),
        facts: Facts::default(),
        tenants: Vec::new(),
    })
}
