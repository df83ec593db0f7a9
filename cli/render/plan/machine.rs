//! The plan for machines: JSON (`plimsoll.plan/1`) and CSV.

use super::{View, help, remarks};
use crate::render::{json, table::csv_cell};
use plimsoll_core::{estimate::Figure, plan::Advice, units::GIB};
use plimsoll_replay::{
    engine_log::start_lines,
    plan::{AtFraction, KilledBy, PrefillTrial},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One document; the schema is `plimsoll schema plan`.
pub fn machine(view: &View<'_>) -> Value {
    let plan = view.plan;
    json!({
        "schema": "plimsoll.plan/1",
        "verdict": plan.level.word().to_lowercase(),
        "headline": plan.headline,
        "engine": engine(view),
        "model": { "name": view.case.model.name, "origin": view.case.model.origin },
        "device": { "name": view.case.device.name, "ranks": view.case.ranks },
        "refusal": plan.refusal().map(json::refusal),
        "pool": pool(view),
        "left_after_graphs": plan.left.map(json::estimate),
        "need": view.need().map(|(name, figure)| json!({
            "step": name,
            "interval": json::estimate(figure.value),
            "why": json::why(&figure.why),
        })),
        "prefill": plan.prefill.as_ref().map(prefill),
        "allocator_need_bytes": plan.allocator_need.map(|need| need.0),
        "killed_by": plan.kills.plain.as_ref().map(killed_by),
        "killed_by_on_demand": plan.kills.on_demand.as_ref().map(killed_by),
        "margin_bytes": view.margin(),
        "min_margin": view.args.min_margin.map(|least| json!({
            "least_bytes": least.0,
            "holds": view.margin_holds(),
        })),
        "window": window(view),
        "advice": advice(view),
        "basis": basis(view),
        "engine_lines": start_lines(view.case, &view.plan.ran),
        "notes": remarks::texts(view),
        "unknown": plan.ran.basis.unknown,
        "not_modelled": view.launch.not_modelled.iter().map(|f| &f.name).collect::<Vec<_>>(),
        "unknown_flags": view.launch.unknown.iter().map(|f| &f.name).collect::<Vec<_>>(),
        "figures": json::figures(plan.ran.start.figures()),
        "ledger": json::ledger(&plan.ran.ledger),
    })
}

fn engine(view: &View<'_>) -> Value {
    json!({
        "name": view.launch.engine.engine().to_string(),
        "version": view.launch.engine.version().to_string(),
        "program": view.launch.program,
    })
}

fn pool(view: &View<'_>) -> Value {
    let plan = view.plan;
    json!({
        "tokens": plan.pool.map(|p| p.mid.0),
        "low_tokens": plan.pool.map(|p| p.low.0),
        "high_tokens": plan.pool.map(|p| p.high.0),
        "log_tokens": view.log_tokens.map(|seen| seen.value),
        "full_context_requests": plan.full_context_requests,
        "context_len_tokens": plan.context_len,
    })
}

fn window(view: &View<'_>) -> Value {
    let plan = view.plan;
    json!({
        "flag": plan.flag,
        "used": plan.fraction,
        "floor": plan.window.map(|w| w.floor),
        "ceiling": plan.window.map(|w| w.ceiling),
        "floor_sure": plan.window.map(|w| w.floor_sure),
        "ceiling_sure": plan.window.map(|w| w.ceiling_sure),
    })
}

/// One full chunk, played through the caching allocator over what is left.
fn prefill(trial: &PrefillTrial) -> Value {
    match trial {
        PrefillTrial::Served { reserved } => json!({
            "served": true,
            "reserved_bytes": reserved.0,
            "dies": null,
        }),
        PrefillTrial::Dies { buffer, requested, free, allocated } => json!({
            "served": false,
            "reserved_bytes": null,
            "dies": {
                "buffer": buffer,
                "requested_bytes": requested.0,
                "free_bytes": free.0,
                "allocated_bytes": allocated.0,
            },
        }),
    }
}

/// A mix of requests that kills the start.
fn killed_by(killed: &KilledBy) -> Value {
    json!({
        "mix": killed.kind.name(),
        "requests": killed.requests,
        "tokens": killed.tokens,
        "prefix_tokens": killed.prefix_tokens,
        "buffer": killed.death.buffer,
        "requested_bytes": killed.death.requested.0,
        "free_bytes": killed.death.free.0,
        "allocated_bytes": killed.death.allocated.0,
    })
}

fn at(at: Option<&AtFraction>) -> Option<Value> {
    at.map(|at| {
        json!({
            "fraction": at.fraction,
            "pool_tokens": at.tokens.map(|t| t.0),
            "left_bytes": (at.left_gib * GIB as f64).round() as i64,
        })
    })
}

fn advice(view: &View<'_>) -> Value {
    let plan = view.plan;
    let action = match plan.advice {
        Some(Advice::Lower { .. } | Advice::Raise { .. }) if view.advised().is_none() => {
            "no_fraction"
        }
        Some(Advice::Keep) => "keep",
        Some(Advice::Lower { .. }) => "lower",
        Some(Advice::Raise { .. }) => "raise",
        Some(Advice::NoFraction) => "no_fraction",
        None => "none",
    };
    json!({
        "action": action,
        "pass": at(view.advised()),
        "automatic": at(plan.automatic.as_ref()),
        "next_step": at(plan.next_step.as_ref()),
        "smaller_chunk": plan.smaller_chunk.map(|c| {
            json!({
                "chunked_prefill_size_tokens": c.tokens,
                "need_bytes": c.need.0,
                "prompt_limit_tokens": c.prompt_limit,
            })
        }),
        "more_ranks": view.more_ranks.map(|more| json!({
            "tp": more.tp,
            "pool_tokens": more.tokens.map(|t| t.0),
            "left_bytes": more.left.map(|b| b.0),
        })),
        "own_fraction": view.own_fraction.map(|own| json!({
            "fraction": own.fraction,
            "pool_tokens": own.tokens.0,
            "left_bytes": own.left.0,
        })),
        "command": help::command(view),
    })
}

fn basis(view: &View<'_>) -> Value {
    let basis = &view.plan.ran.basis;
    let estimate = |figure: &Figure| json!({ "interval": json::estimate(figure.value), "why": json::why(&figure.why) });
    json!({
        "free_before_load": estimate(&basis.free_before_load),
        "load": estimate(&basis.load),
        "draft_weights": estimate(&basis.draft),
        "workspaces": estimate(&basis.workspaces),
        "graphs": estimate(&basis.graphs),
    })
}

/// One row an account; the pool's row has its tokens.
pub fn csv(view: &View<'_>) -> String {
    let plan = view.plan;
    let mut out = String::from("account,held_bytes,low_bytes,high_bytes,pool_tokens,tag\n");
    for row in plan.ran.ledger.rows() {
        let (name, tag) = (csv_cell(row.account.name()), row.why.tag.name());
        let (mid, low, high) = (row.bytes.mid.0, row.bytes.low.0, row.bytes.high.0);
        let beside = super::beside(plan);
        let tokens = beside.iter().find(|b| b.account == row.account);
        let tokens = tokens.map(|b| b.tokens.0.to_string()).unwrap_or_default();
        let _ = writeln!(out, "{name},{mid},{low},{high},{tokens},{tag}");
    }
    let capacity = plan.ran.ledger.capacity.0;
    let _ = writeln!(out, "capacity,{capacity},{capacity},{capacity},,computed");
    out
}
