//! Figures with their derivations: what `--why` prints.

use plimsoll_core::{
    figure::{Estimate, FigureValue, NamedFigure, Why},
    pyfloat,
    units::group_thousands,
};
use std::fmt::Write as _;

/// A value as people read it.
pub fn value(value: &FigureValue) -> String {
    match value {
        FigureValue::Bytes(bytes) => bytes.to_string(),
        FigureValue::Count(n) => group_thousands(*n),
        FigureValue::Float(x) => pyfloat::repr(*x),
        FigureValue::Text(text) => text.clone(),
        FigureValue::List(list) => short_list(list),
    }
}

/// Long lists by their ends and number.
fn short_list(list: &[u64]) -> String {
    match list {
        [] => "none".to_owned(),
        [first, .., last] if list.len() > 8 => {
            format!("{first} … {last} ({} sizes)", list.len())
        }
        _ => list.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// An amount with its interval, where it has one.
pub fn estimate(estimate: Estimate) -> String {
    if estimate.is_exact() {
        estimate.mid.to_string()
    } else {
        format!(
            "{} ({:.2} to {:.2})",
            estimate.mid,
            estimate.low.as_gib_f64(),
            estimate.high.as_gib_f64()
        )
    }
}

/// The derivation of one figure, indented under its name.
pub fn why(name: &str, value: &str, why: &Why) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "  {name} = {value}  [{}]", why.tag.name());
    let _ = writeln!(out, "      rule    {}", why.rule);
    for input in &why.inputs {
        let _ = writeln!(out, "      input   {} = {}", input.name, input.value);
    }
    let _ = writeln!(out, "      source  {}", why.source);
    out
}

/// All figures of a start.
pub fn derivations<'a>(figures: impl Iterator<Item = &'a NamedFigure>) -> String {
    figures.map(|figure| why(figure.name, &value(&figure.value), &figure.why)).collect()
}
