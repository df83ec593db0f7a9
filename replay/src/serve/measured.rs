//! The metrics of a run in its decision log and among its figures.

use crate::{outcome::Figure, start::Ran};
use plimsoll_core::{
    decision::{DecisionSink, Record},
    engine::metrics::{MetricsReport, Unit},
    figure::FigureValue,
    units::Nanos,
};

/// Keeps the last record of a run back, so that its metrics stand before it.
pub(super) struct HoldsEnd<'a> {
    sink: &'a mut dyn DecisionSink,
    end: Option<Record>,
}

impl<'a> HoldsEnd<'a> {
    pub(super) fn new(sink: &'a mut dyn DecisionSink) -> Self {
        Self { sink, end: None }
    }

    /// Writes `before`, then the last record.
    pub(super) fn close(self, before: Option<Record>) {
        before.into_iter().chain(self.end).for_each(|record| self.sink.record(record));
    }
}

impl DecisionSink for HoldsEnd<'_> {
    fn record(&mut self, record: Record) {
        match record.kind {
            "run_ended" => self.end = Some(record),
            _ => self.sink.record(record),
        }
    }
}

/// Metrics as a record; those without a value are left out.
pub(super) fn record(metrics: &MetricsReport) -> Record {
    let mut record = Record::new("metrics");
    for (spec, value) in metrics.values() {
        if let Some(value) = value {
            record = record.with(spec.full_name, value);
        }
    }
    record
}

/// Metrics by the names that scenarios claim.
pub(super) fn figures(metrics: &MetricsReport) -> Vec<(&'static str, Figure)> {
    let figure = |unit: Unit, value: u64| match unit {
        Unit::Nanos => Figure::Duration(Nanos(value)),
        Unit::Count => Figure::Count(i64::try_from(value).unwrap_or(i64::MAX)),
        Unit::Ppm => Figure::Number(value as f64 / 1e6),
        Unit::Milli | Unit::MilliPerSecond => Figure::Number(value as f64 / 1e3),
    };
    let values = metrics.values().into_iter();
    values.filter_map(|(spec, value)| Some((spec.name, figure(spec.unit, value?)))).collect()
}

/// Tokens of a page, SGLang's or vLLM's.
pub(crate) fn page_size(ran: &Ran) -> u64 {
    let figure = ran.start.figure("page_size").or_else(|| ran.start.figure("block_size"));
    match figure.map(|figure| &figure.value) {
        Some(FigureValue::Count(tokens)) => *tokens,
        _ => 1,
    }
}
