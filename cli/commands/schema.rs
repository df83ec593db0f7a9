//! `schema`: JSON schemas of what is read and written.

use crate::{
    args::{SchemaArgs, SchemaOf},
    exit::{self, Failure},
    output::Output,
};
use serde_json::{Value, json};

/// Prints one schema.
pub fn schema(args: &SchemaArgs, output: &Output) -> Result<u8, Failure> {
    let schema = match args.of {
        SchemaOf::Scenario => plimsoll_replay::scenario::json_schema(),
        SchemaOf::Plan => plan(),
        SchemaOf::Run => run(),
    };
    output.write(&format!("{schema:#}\n"))?;
    Ok(exit::OK)
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

fn estimate() -> Value {
    let bytes = json!({ "type": "integer", "minimum": 0 });
    object(
        json!({ "low_bytes": bytes, "mid_bytes": bytes, "high_bytes": bytes }),
        &["low_bytes", "mid_bytes", "high_bytes"],
    )
}

fn why() -> Value {
    object(
        json!({
            "tag": { "enum": ["measured", "computed", "calibrated", "assumed"] },
            "rule": { "type": "string" },
            "source": { "type": "string" },
            "inputs": { "type": "object" },
        }),
        &["tag", "rule", "source", "inputs"],
    )
}

fn ledger() -> Value {
    let row = object(
        json!({
            "account": { "type": "string" },
            "held_bytes": { "type": "integer" },
            "interval": estimate(),
            "why": why(),
        }),
        &["account", "held_bytes", "interval", "why"],
    );
    object(
        json!({ "capacity_bytes": { "type": "integer" }, "rows": { "type": "array", "items": row } }),
        &["capacity_bytes", "rows"],
    )
}

fn figures() -> Value {
    let figure = object(json!({ "value": {}, "why": why() }), &["value", "why"]);
    json!({ "type": "object", "additionalProperties": figure })
}

fn run() -> Value {
    let mut schema = object(
        json!({
            "schema": { "const": "plimsoll.run/1" },
            "scenario": { "type": "string" },
            "seed": { "type": "integer" },
            "passed": { "type": "boolean" },
            "outcome": { "enum": ["started", "refused", "out_of_memory"] },
            "refusal": { "type": ["object", "null"] },
            "claims": { "type": "array" },
            "figures": figures(),
            "ledger": ledger(),
            "digests": { "type": "object" },
        }),
        &["schema", "scenario", "seed", "passed", "outcome", "figures", "ledger", "digests"],
    );
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema
}

fn plan() -> Value {
    let number = json!({ "type": ["number", "null"] });
    let mut schema = object(
        json!({
            "schema": { "const": "plimsoll.plan/1" },
            "verdict": { "enum": ["ok", "low", "oom", "refused"] },
            "headline": { "type": "string" },
            "engine": { "type": "object" },
            "model": { "type": "object" },
            "device": { "type": "object" },
            "pool": { "type": "object" },
            "left_after_graphs": { "anyOf": [estimate(), { "type": "null" }] },
            "need": { "type": ["object", "null"] },
            "margin_bytes": { "type": ["integer", "null"] },
            "window": object(json!({ "floor": number, "ceiling": number }), &["floor", "ceiling"]),
            "advice": { "type": "object" },
            "notes": { "type": "array", "items": { "type": "string" } },
            "unknown": { "type": "array", "items": { "type": "string" } },
            "figures": figures(),
            "ledger": ledger(),
        }),
        &["schema", "verdict", "headline", "pool", "window", "advice", "figures", "ledger"],
    );
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema
}
