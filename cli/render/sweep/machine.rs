//! A sweep for machines: the question, the answers, the values, the rows.

use super::{Answer, value_text};
use crate::commands::sweep::options::AnswerArgs;
use plimsoll_sweep::{
    answer::{
        Better, Group,
        survive::{is_fraction, lowered},
    },
    question::{Axis, Question, header::Header},
    row::Row,
};
use serde_json::{Map, Value, json};

/// The document.
pub fn document(header: &Header, rows: &[Row], answer: &Answer<'_>, args: &AnswerArgs) -> Value {
    let question = &header.question;
    let rows: Vec<Value> =
        rows.iter().filter_map(|row| serde_json::from_str(&row.line(question)).ok()).collect();
    let groups: Vec<Value> = answer
        .groups
        .iter()
        .enumerate()
        .map(|(at, one)| group(question, answer, at, one))
        .collect();
    json!({
        "schema": "plimsoll.sweep/1",
        "question": serde_json::from_str::<Value>(&header.line()).unwrap_or(Value::Null),
        "answers": answers(header, answer, args),
        "objectives": answer.objectives.iter().map(|one| json!({
            "name": one.name,
            "better": match one.better { Better::Higher => "higher", Better::Lower => "lower" },
        })).collect::<Vec<_>>(),
        "groups": groups,
        "rows": rows,
    })
}

/// Values of a group by the names of their columns.
fn values(question: &Question, group: &Group<'_>) -> Value {
    let pairs = question.axes.iter().zip(&group.at);
    Value::Object(
        pairs.map(|(axis, at)| (axis.column(), axis.cell(*at).json())).collect::<Map<_, _>>(),
    )
}

fn group(question: &Question, answer: &Answer<'_>, at: usize, group: &Group<'_>) -> Value {
    let chance = group.chance();
    let least = |name: &str| group.least(name).map(|(value, _)| value);
    let worst = group.least("margin_bytes").map(|(_, row)| row.index);
    json!({
        "scenario": question.scenarios.get(group.scenario).map(|one| one.name.clone()),
        "values": values(question, group),
        "runs": group.runs(),
        "lived": group.lived,
        "died": group.died,
        "not_started": group.not_started,
        "reason": group.reason(),
        "crash_share": chance.share,
        "crash_low": chance.low,
        "crash_high": chance.high,
        "worst_margin_bytes": least("margin_bytes"),
        "worst_margin_index": worst,
        "least_free_after_graphs_bytes": least("free_after_graphs_bytes"),
        "least_pool_tokens": least("pool_tokens"),
        "median_throughput_output_milli_per_s": group.median("throughput_output_milli_per_s"),
        "median_ttft_p99_ns": group.median("ttft_p99_ns"),
        "pareto": answer.front.get(at),
    })
}

fn answers(header: &Header, answer: &Answer<'_>, args: &AnswerArgs) -> Vec<Value> {
    let question = &header.question;
    let Some((place, axis)) = answer.axis.and_then(|at| Some((at, question.axes.get(at)?))) else {
        return Vec::new();
    };
    let text = |group: &Group<'_>| {
        value_text(axis, group.at.get(place).copied().unwrap_or_default()).to_owned()
    };
    let cell =
        |group: &Group<'_>| axis.cell(group.at.get(place).copied().unwrap_or_default()).json();
    let one = |(series, survival): (
        plimsoll_sweep::answer::Series<'_, '_>,
        plimsoll_sweep::answer::Survival<'_, '_>,
    )| {
        let below = |steps: u32| production(axis, survival.highest.map(&text)?, steps);
        json!({
            "scenario": question.scenarios.get(series.scenario).map(|one| one.name.clone()),
            "others": series.others,
            "over": axis.column(),
            "survive_share": args.survive.as_f64(),
            "highest": survival.highest.map(&cell),
            "highest_lived": survival.highest.map(|group| group.lived),
            "highest_runs": survival.highest.map(|group| group.runs()),
            "crash_at_most": survival.at_most,
            "confidence": plimsoll_sweep::answer::chance::CONFIDENCE,
            "runs_needed": survival.runs_needed,
            "shown": survival.is_shown(args.survive),
            "first_that_fails": survival.fails.map(&cell),
            "islands": survival.islands.iter().map(|group| cell(group)).collect::<Vec<_>>(),
            "one_step_below": below(1),
            "two_steps_below": below(2),
        })
    };
    answer.survivals(header, args).into_iter().map(one).collect()
}

/// A step of 0.02 below, as a number; of a fraction alone.
fn production(axis: &Axis, highest: String, steps: u32) -> Option<Value> {
    let lower = lowered(&highest, steps).filter(|_| is_fraction(axis))?;
    lower.parse::<f64>().ok().map(|x| json!(x))
}
