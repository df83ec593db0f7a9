//! Files from real logs, where a folder of them is at hand: `PLIMSOLL_CORPUS=FOLDER` with `logs/`.

use crate::holds;
use plimsoll_diagnosis::{
    Case,
    emit::{Ask, emit},
    findings,
};
use plimsoll_ingest::{
    launch::{Context, LaunchInput, parse_command},
    log::read_text,
};
use std::{env, fs, path::Path};

/// What is claimed of a file holds, whatever the log; no log makes a panic.
#[test]
fn what_is_claimed_of_real_logs_holds() {
    let Ok(folder) = env::var("PLIMSOLL_CORPUS") else {
        println!("skipped: PLIMSOLL_CORPUS names no folder with logs/");
        return;
    };
    let mut logs: Vec<_> =
        fs::read_dir(Path::new(&folder).join("logs")).unwrap().flatten().collect();
    logs.sort_by_key(fs::DirEntry::file_name);
    let (mut claimed, mut fixed, mut differs, mut missing) = (0, 0, 0, 0);
    for path in logs
        .iter()
        .map(fs::DirEntry::path)
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
    {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let command = fs::read_to_string(path.with_extension("cmd")).ok();
        let launch = command
            .as_deref()
            .and_then(|text| parse_command(LaunchInput::Text(text), &Context::default()).ok());
        let log = read_text(&fs::read_to_string(&path).unwrap());
        let mut case = Case { log, launch, ..Case::default() };
        case.asked.device = env::var("PLIMSOLL_DEVICE").ok().filter(|name| !name.is_empty());
        let ask = Ask { command: command.as_deref(), version: None };
        match emit(&case, &findings(&case), &ask) {
            Ok(emitted) => {
                let crash = &emitted.crash;
                println!("{name}: {} {:?}", crash.shows, crash.differs);
                if crash.differs.is_empty() {
                    claimed += 1;
                    holds(crash);
                } else {
                    differs += 1;
                }
                match &emitted.fixed {
                    Ok(file) => {
                        println!("{name}: fixed by {}", file.shows);
                        holds(file);
                        fixed += 1;
                    }
                    Err(why) => println!("{name}: no fix: {why}"),
                }
            }
            Err(why) => {
                println!("{name}: {why}");
                missing += 1;
            }
        }
    }
    println!("{claimed} claimed, {differs} differ, {missing} missing facts; {fixed} fixed");
}
