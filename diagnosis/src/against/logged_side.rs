//! The logged side: figures of the last start by the names of the rows.

use super::{FromLog, Quantity, Span};
use crate::{
    Case,
    emit::ending,
    logged::{At, ByRank, Logged},
};
use plimsoll_ingest::{launch::EngineLaunch, log::Amount};
use std::collections::BTreeMap;

type Rows = BTreeMap<&'static str, FromLog>;

/// All figures that the log or its command has.
pub(super) fn read(case: &Case) -> Rows {
    let launch = case.launched();
    let tp = launch.as_ref().map_or(1, |launch| match &launch.engine {
        EngineLaunch::Sglang(args) => args.tp_size,
        EngineLaunch::Vllm(args) => args.tensor_parallel_size,
    });
    let logged = Logged::of(case, tp, None);
    let mut rows = Rows::new();
    if let Some(launch) = &launch {
        of_launch(&mut rows, case, launch);
    }
    if let Some((version, _, line)) = &case.log.version
        && case.version().is_some()
    {
        let version = version.trim_start_matches('v');
        text(&mut rows, "version", version, format!("line {line}"));
    }
    memory(&mut rows, &logged);
    pool(&mut rows, &logged);
    let (word, place) = ending(case);
    text(&mut rows, "outcome", word, place);
    rows
}

fn text(rows: &mut Rows, name: &'static str, value: &str, place: String) {
    rows.insert(name, FromLog { span: Span::exact(Quantity::Text(value.to_owned())), place });
}

fn of_launch(rows: &mut Rows, case: &Case, launch: &plimsoll_ingest::launch::Launch) {
    let place = || "the command".to_owned();
    text(rows, "engine", &launch.engine.engine().to_string(), place());
    if let Some(version) = case.version() {
        text(rows, "version", &version.to_string(), place());
    }
    let (model, fraction) = match &launch.engine {
        EngineLaunch::Sglang(args) => (&args.model_path, args.mem_fraction_static),
        EngineLaunch::Vllm(args) => (&args.model, args.gpu_memory_utilization),
    };
    text(rows, "model", model, place());
    let ranks = plimsoll_replay::assemble::ranks_of(&launch.engine);
    let span = Span::exact(Quantity::Count(i64::from(ranks)));
    rows.insert("ranks", FromLog { span, place: place() });
    if let Some(fraction) = fraction {
        let span = Span::exact(Quantity::Number(fraction));
        rows.insert("fraction", FromLog { span, place: place() });
    }
}

fn of_amount(at: &At<Amount>) -> FromLog {
    let span = Span {
        low: Quantity::Bytes(at.value.least()),
        mid: Quantity::Bytes(at.value.bytes),
        high: Quantity::Bytes(at.value.most()),
    };
    FromLog { span, place: at.place() }
}

/// The engines reduce over ranks by the least free memory; so do the plan's figures.
fn least(ranks: &ByRank<Amount>) -> Option<&At<Amount>> {
    ranks.values().min_by_key(|at| at.value.bytes)
}

/// What one reading lost to the next, on the rank that lost most.
fn taken(from: &ByRank<Amount>, to: &ByRank<Amount>) -> Option<At<Amount>> {
    let both = to.iter().filter_map(|(rank, to)| Some((from.get(rank)?, to)));
    let taken = both.map(|(from, to)| At { value: from.value - to.value, ..*to });
    taken.max_by_key(|at| at.value.bytes)
}

fn memory(rows: &mut Rows, logged: &Logged) {
    let mut put = |name: &'static str, at: Option<&At<Amount>>| {
        if let Some(at) = at {
            rows.insert(name, of_amount(at));
        }
    };
    put("total", logged.total.as_ref());
    put("free_before_load", least(&logged.before).or(logged.free_at_start.as_ref()));
    put("free_after_load", least(&logged.after));
    let heaviest = logged.weights.values().max_by_key(|at| at.value.bytes).copied();
    put("weights", taken(&logged.before, &logged.after).or(heaviest).as_ref());
    put("available_kv_cache_memory", least(&logged.available_kv));
    put("free_after_pool", least(&logged.after_pool));
    let graphs = taken(&logged.after_pool, &logged.after_graphs);
    // One figure of several captures is not the whole.
    let alone = logged.graphs.values().max_by_key(|at| at.value.bytes).copied();
    put("graphs", graphs.or(alone.filter(|_| logged.after_graphs.is_empty())).as_ref());
    put("free_after_graphs", least(&logged.after_graphs));
}

fn pool(rows: &mut Rows, logged: &Logged) {
    let mut put = |name: &'static str, at: Option<At<i64>>| {
        if let Some(at) = at {
            let span = Span::exact(Quantity::Count(at.value));
            rows.insert(name, FromLog { span, place: at.place() });
        }
    };
    let whole = |at: At<u64>| At {
        value: i64::try_from(at.value).unwrap_or(i64::MAX),
        file: at.file,
        line: at.line,
    };
    put("pool_tokens", logged.tokens.map(whole));
    put("num_gpu_blocks", logged.blocks.map(whole));
    put("chunked_prefill_size", logged.chunk);
    put("context_len", logged.context.map(whole));
    put("max_running_requests", logged.running.map(whole));
    if let Some(cell) = cell(logged) {
        rows.insert("kv_bytes_per_token", cell);
    }
}

/// Bytes of a token by a printed pool, as its rounding allows.
fn cell(logged: &Logged) -> Option<FromLog> {
    let (rank, kv) = logged.kv.iter().next()?;
    let tokens = logged.kv_tokens.get(rank)?.value;
    if tokens == 0 {
        return None;
    }
    // A page of padding may be part of the printed size.
    let each =
        |bytes: i64, tokens: u64| Quantity::Bytes((bytes as f64 / tokens as f64).round() as i64);
    let span = Span {
        low: each(kv.value.least(), tokens.saturating_add(256)),
        mid: each(kv.value.bytes, tokens),
        high: each(kv.value.most(), tokens),
    };
    Some(FromLog { span, place: kv.place() })
}
