//! One swept path: its column, and what each of its values is.

use super::range::{RangeError, values};
use crate::row::{Cell, Kind};
use plimsoll_core::units::{Bytes, Nanos};
use plimsoll_replay::scenario::{EngineName, time::nanos};

/// A path and its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Short name, or the path itself: what its column is called, before the unit.
    pub name: String,
    /// The path in each scenario; one for all where they agree.
    pub paths: Vec<String>,
    values: Vec<String>,
    kind: AxisKind,
    cells: Vec<Cell>,
}

/// A short name of a path that both engines have under names of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alias {
    /// The short name.
    pub name: &'static str,
    /// SGLang's flag.
    pub sglang: &'static str,
    /// vLLM's flag.
    pub vllm: &'static str,
}

/// The short names.
pub const ALIASES: [Alias; 4] = [
    Alias { name: "fraction", sglang: "mem-fraction-static", vllm: "gpu-memory-utilization" },
    Alias { name: "chunk", sglang: "chunked-prefill-size", vllm: "max-num-batched-tokens" },
    Alias { name: "max_running", sglang: "max-running-requests", vllm: "max-num-seqs" },
    Alias { name: "tp", sglang: "tp-size", vllm: "tensor-parallel-size" },
];

impl Alias {
    /// The path that it stands for.
    #[must_use]
    pub fn path(&self, engine: EngineName) -> String {
        let flag = match engine {
            EngineName::Sglang => self.sglang,
            EngineName::Vllm => self.vllm,
        };
        format!("engine.flags.{flag}")
    }
}

impl Axis {
    /// An axis of these values, as typed.
    #[must_use]
    pub fn new(name: String, paths: Vec<String>, values: Vec<String>) -> Self {
        let kind = AxisKind::of(&values);
        let cells = values.iter().map(|text| cell(kind, text)).collect();
        Self { name, paths, values, kind, cells }
    }

    /// Its values as typed.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// A path with the values of a range.
    ///
    /// # Errors
    ///
    /// [`RangeError`].
    pub fn of_path(path: &str, range: &str) -> Result<Self, RangeError> {
        let name = path.trim().to_owned();
        Ok(Self::new(name.clone(), vec![name], values(range)?))
    }

    /// A short name with the values of a range, for the engines of the scenarios.
    ///
    /// # Errors
    ///
    /// [`RangeError`].
    pub fn of_alias(
        alias: &Alias,
        engines: &[EngineName],
        range: &str,
    ) -> Result<Self, RangeError> {
        let mut paths: Vec<String> = engines.iter().map(|engine| alias.path(*engine)).collect();
        if paths.windows(2).all(|pair| pair[0] == pair[1]) {
            paths.truncate(1);
        }
        Ok(Self::new(alias.name.to_owned(), paths, values(range)?))
    }

    /// The path in a scenario, by its place.
    #[must_use]
    pub fn path(&self, scenario: usize) -> &str {
        self.paths.get(scenario).or(self.paths.first()).map_or("", String::as_str)
    }

    /// What its values are.
    #[must_use]
    pub const fn kind(&self) -> AxisKind {
        self.kind
    }

    /// The name of its column: the unit stands last.
    #[must_use]
    pub fn column(&self) -> String {
        match self.kind() {
            AxisKind::Bytes => format!("{}_bytes", self.name),
            AxisKind::Nanos => format!("{}_ns", self.name),
            AxisKind::Integer | AxisKind::Decimal | AxisKind::Text => self.name.clone(),
        }
    }

    /// The cells of its column, one a value.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The cell of a value.
    #[must_use]
    pub fn cell(&self, at: usize) -> Cell {
        self.cells.get(at).cloned().unwrap_or(Cell::Null)
    }

    /// Whether its values have an order.
    #[must_use]
    pub fn is_numeric(&self) -> bool {
        self.kind() != AxisKind::Text
    }

    /// A value as a number, for order and plots; `None` for a text.
    #[must_use]
    pub fn number(&self, at: usize) -> Option<f64> {
        match self.cell(at) {
            Cell::Int(n) => Some(n as f64),
            Cell::Float(x) => Some(x),
            Cell::Null | Cell::Text(_) => None,
        }
    }
}

/// What the values of an axis are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxisKind {
    /// Whole numbers.
    Integer,
    /// Numbers with a point.
    Decimal,
    /// Amounts of memory.
    Bytes,
    /// Times.
    Nanos,
    /// Anything else.
    Text,
}

impl AxisKind {
    fn of(values: &[String]) -> Self {
        let all = |is: fn(&str) -> bool| values.iter().all(|value| is(value));
        if all(|text| text.parse::<i64>().is_ok()) {
            Self::Integer
        } else if all(|text| decimal(text).is_some()) {
            Self::Decimal
        } else if all(|text| text.parse::<Bytes>().is_ok()) {
            Self::Bytes
        } else if all(|text| nanos(text).is_ok()) {
            Self::Nanos
        } else {
            Self::Text
        }
    }

    /// The type of its column.
    #[must_use]
    pub const fn column_kind(self) -> Kind {
        match self {
            Self::Integer | Self::Bytes | Self::Nanos => Kind::Int,
            Self::Decimal => Kind::Float,
            Self::Text => Kind::Text,
        }
    }
}

/// A plain decimal number; the words that also parse as doubles are none.
fn decimal(text: &str) -> Option<f64> {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
    text.parse().ok().filter(|x: &f64| x.is_finite() && text.chars().all(plain))
}

fn cell(kind: AxisKind, text: &str) -> Cell {
    let integer = |n: u64| i64::try_from(n).ok().map(Cell::Int);
    let found = match kind {
        AxisKind::Integer => text.parse().ok().map(Cell::Int),
        AxisKind::Decimal => decimal(text).map(Cell::Float),
        AxisKind::Bytes => text.parse().ok().and_then(|Bytes(n)| integer(n)),
        AxisKind::Nanos => nanos(text).ok().and_then(|Nanos(n)| integer(n)),
        AxisKind::Text => None,
    };
    found.unwrap_or_else(|| Cell::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_carry_their_unit_and_exact_values() {
        let axis = |range: &str| Axis::of_path("a.b", range).unwrap();
        let bytes = axis("4 GiB..8 GiB:4 GiB");
        assert_eq!(bytes.column(), "a.b_bytes");
        assert_eq!(bytes.cells(), [Cell::Int(4 << 30), Cell::Int(8 << 30)]);
        let times = axis("2 s,500 ms");
        assert_eq!(times.column(), "a.b_ns");
        assert_eq!(times.cells(), [Cell::Int(2_000_000_000), Cell::Int(500_000_000)]);
        assert_eq!(axis("0.80..0.81:0.01").cells(), [Cell::Float(0.8), Cell::Float(0.81)]);
        assert_eq!(axis("1..2").cells(), [Cell::Int(1), Cell::Int(2)]);
        assert_eq!(axis("nan,inf").kind(), AxisKind::Text);
        assert_eq!(axis("auto,1").kind(), AxisKind::Text);
    }

    #[test]
    fn an_alias_is_each_engines_own_flag() {
        let engines = [EngineName::Sglang, EngineName::Vllm];
        let axis = Axis::of_alias(&ALIASES[0], &engines, "0.8,0.9").unwrap();
        assert_eq!(axis.path(0), "engine.flags.mem-fraction-static");
        assert_eq!(axis.path(1), "engine.flags.gpu-memory-utilization");
        assert_eq!(Axis::of_alias(&ALIASES[3], &engines[..1], "1,2").unwrap().paths.len(), 1);
    }
}
