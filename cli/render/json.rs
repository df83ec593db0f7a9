//! Results for machines: integer bytes and tokens, snake_case, the unit last.

use plimsoll_core::{
    engine::startup::Refused,
    figure::{Estimate, FigureValue, NamedFigure, Why},
    memory::ledger::Ledger,
};
use serde_json::{Map, Value, json};

/// An amount with its interval.
pub fn estimate(estimate: Estimate) -> Value {
    json!({
        "low_bytes": estimate.low.0,
        "mid_bytes": estimate.mid.0,
        "high_bytes": estimate.high.0,
    })
}

/// A derivation.
pub fn why(why: &Why) -> Value {
    let inputs: Map<String, Value> =
        why.inputs.iter().map(|input| (input.name.clone(), json!(input.value))).collect();
    json!({ "tag": why.tag.name(), "rule": why.rule, "source": why.source, "inputs": inputs })
}

/// A value of a figure.
pub fn value(value: &FigureValue) -> Value {
    match value {
        FigureValue::Bytes(bytes) => json!(bytes.0),
        FigureValue::Count(n) => json!(n),
        FigureValue::Float(x) => json!(x),
        FigureValue::Text(text) => json!(text),
        FigureValue::List(list) => json!(list),
    }
}

/// A refusal: its code, its sentence, the engine's own words, and the ways out.
pub fn refusal(refused: &Refused) -> Value {
    let remedies: Vec<Value> = refused
        .remedies
        .iter()
        .map(|remedy| {
            json!({
                "flag": remedy.flag,
                "direction": remedy.direction,
                "value": remedy.value,
                "effect": remedy.effect,
            })
        })
        .collect();
    json!({
        "code": refused.code,
        "message": refused.message,
        "engine_message": refused.engine_message,
        "remedies": remedies,
    })
}

/// All figures by name.
pub fn figures<'a>(figures: impl Iterator<Item = &'a NamedFigure>) -> Value {
    let object: Map<String, Value> = figures
        .map(|figure| {
            let body = json!({ "value": value(&figure.value), "why": why(&figure.why) });
            (figure.name.to_owned(), body)
        })
        .collect();
    Value::Object(object)
}

/// A ledger: its rows in order, and the capacity they add up to.
pub fn ledger(ledger: &Ledger) -> Value {
    let rows: Vec<Value> = ledger
        .rows()
        .iter()
        .map(|row| {
            json!({
                "account": row.account.name(),
                "held_bytes": row.bytes.mid.0,
                "interval": estimate(row.bytes),
                "why": why(&row.why),
            })
        })
        .collect();
    json!({ "capacity_bytes": ledger.capacity.0, "rows": rows })
}
