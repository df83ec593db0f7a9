//! The rules against an answer key of real reports, where one is at hand: `PLIMSOLL_CORPUS=FOLDER`.

#[path = "corpus/score.rs"]
mod score;

use std::{env, path::Path};

use score::{Cause, Judged, score};

#[test]
fn causes_and_directions_are_right_and_healthy_logs_stay_quiet() {
    let Ok(folder) = env::var("PLIMSOLL_CORPUS") else {
        println!("skipped: PLIMSOLL_CORPUS names no folder with truth.jsonl and logs/");
        return;
    };
    let score = score(Path::new(&folder)).unwrap();
    let total = score.total();
    println!("{score}");
    let ids = |wrong: fn(&Judged) -> bool| -> Vec<&str> {
        score.judged.iter().filter(|judged| wrong(judged)).map(Judged::id).collect()
    };
    assert!(total.all > 0, "no report with a log");
    assert_eq!(ids(Judged::false_alarm), [""; 0], "errors on healthy logs");
    let missed = ids(|judged| judged.cause() == Cause::Wrong);
    assert!(total.causes() >= 0.9, "{:.3} of the causes; wrong: {missed:?}", total.causes());
    let astray = ids(|judged| !judged.direction_right());
    assert!(
        total.directions() >= 0.95,
        "{:.3} of the directions; wrong: {astray:?}",
        total.directions()
    );
}
