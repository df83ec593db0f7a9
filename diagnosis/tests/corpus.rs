//! The rules against an answer key of real reports, where one is at hand: `PLIMSOLL_CORPUS=FOLDER`.

#[path = "corpus/score.rs"]
mod score;

use std::{env, path::Path};

use score::score;

#[test]
fn causes_and_directions_are_right_and_healthy_logs_stay_quiet() {
    let Ok(folder) = env::var("PLIMSOLL_CORPUS") else {
        println!("skipped: PLIMSOLL_CORPUS names no folder with truth.jsonl and logs/");
        return;
    };
    let score = score(Path::new(&folder)).unwrap();
    let total = score.total();
    println!("{score}");
    assert!(total.all > 0, "no report with a log");
    assert_eq!(total.false_alarms, 0, "errors on healthy logs");
    assert!(total.causes() >= 0.9, "causes {:.3}", total.causes());
    assert!(total.directions() >= 0.95, "directions {:.3}", total.directions());
}
