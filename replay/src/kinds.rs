//! The kinds of records, each with its fields: what a reader of a decision log may rely on.
//!
//! The checker refuses a record that is not of this table, and `docs/decision-log.md` prints it.

use crate::record::Record;

/// Whom a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// One rank: `rank` is there.
    Rank,
    /// The server as a whole: `rank` is absent.
    Server,
    /// Either.
    Either,
}

/// Whether other fields may stand beside those of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// No other field.
    Closed,
    /// The engine's own names.
    Open,
}

/// One kind of record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Whom it is about.
    pub about: About,
    /// Fields that are always there, in their order.
    pub required: &'static [&'static str],
    /// Fields that may be there.
    pub optional: &'static [&'static str],
    /// Whether others may be there.
    pub others: Others,
    /// When it is written.
    pub when: &'static str,
}

pub(crate) const fn kind(
    name: &'static str,
    about: About,
    required: &'static [&'static str],
    when: &'static str,
) -> Kind {
    Kind { name, about, required, optional: &[], others: Others::Closed, when }
}

const fn open(name: &'static str, when: &'static str) -> Kind {
    Kind { name, about: About::Server, required: &[], optional: &[], others: Others::Open, when }
}

impl Kind {
    pub(crate) const fn or(self, optional: &'static [&'static str]) -> Self {
        Self { optional, ..self }
    }
}

use About::{Either, Rank, Server};

const WITH_A_PASS: &[&str] = &[
    "used_window_tokens",
    "available_window_tokens",
    "evictable_window_tokens",
    "elapsed_real_ns",
];

/// Every kind, in the order of a server's life.
pub const KINDS: [Kind; 43] = [
    kind(
        "capacity_read",
        Rank,
        &["tool_bytes", "total_bytes", "others_bytes"],
        "first, each rank: what the vendor's tool prints, what programs see (`unknown` where a \
         reading fails), what other programs hold; `memory` is `unified` where device and host have one: \
         what programs on the host hold beside `others_bytes`, what the system keeps, and page cache that \
         readings count as used",
    )
    .or(&["memory", "host_others_bytes", "system_bytes", "page_cache_bytes"]),
    open(
        "settings_resolved",
        "once: the settings by the engine's names (`mem_fraction_static`, \
         `chunked_prefill_size`, …; vLLM: `gpu_memory_utilization`, `max_num_batched_tokens`, …)",
    ),
    kind(
        "segment_allocated",
        Rank,
        &["account", "place", "size_bytes"],
        "memory is taken: `place` is `device` or `host`; with `step` by the caching allocator while \
         the server runs, mapped parts of growing ranges too; `graphs`: the driver's share of so many \
         captured graphs",
    )
    .or(&["step", "graphs"]),
    kind(
        "segment_freed",
        Rank,
        &["account", "place", "size_bytes"],
        "memory is given back: by the caching allocator before a `step`, or by the start what it took \
         for a while (`load_scratch`, `autotune_scratch`)",
    )
    .or(&["step"]),
    kind("reading", Rank, &["point", "free_bytes"], "free memory at a point of the start")
        .or(&["measured_free_bytes"]),
    kind(
        "tenant_changed",
        Rank,
        &["held_bytes"],
        "other programs hold this much of a device from now on: at a `phase` of the start, or \
         before a `step`",
    )
    .or(&["phase", "step", "at_ns"]),
    open(
        "pool_sized",
        "once: sizes by the engine's names (`max_total_num_tokens`, `kv_pool_bytes`, …; vLLM: \
         `num_gpu_blocks`, …)",
    ),
    kind("host_read", Server, &["available_bytes"], "before a host pool is sized"),
    open("host_pool_sized", "with a hierarchical cache: tokens and bytes of the host pool"),
    kind("ready", Server, &[], "the start succeeded"),
    kind("refused", Server, &["code", "message"], "the engine gives the start up"),
    kind("device_lost", Server, &["message"], "the backend is gone"),
    kind(
        "serving_started",
        Server,
        &["pool_tokens"],
        "after `ready`, when a workload follows; time 0; sizes by the engine's names. A hybrid model has a \
         second pool, of its sliding-window layers; `pool_tokens` and all tokens that are not called \
         `window` are of the full one",
    )
    .or(&[
        "page_size", "max_running_requests", "chunked_prefill_size", "num_gpu_blocks", "block_size",
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "window_pool_tokens",
        "sliding_window_size",
    ]),
    kind(
        "request_arrived",
        Server,
        &["request", "at_ns", "prompt_tokens", "max_new_tokens"],
        "the scheduler takes a request in",
    ),
    kind("request_refused", Server, &["request", "code"], "it turns the request away at once"),
    kind(
        "admitted",
        Server,
        &["step", "request", "prefix_tokens", "extend_tokens", "chunked"],
        "a request joins the batch of this step; `chunked`: more of its prompt follows",
    ),
    kind(
        "deferred",
        Server,
        &["step", "request", "reason", "needed_tokens", "available_tokens"],
        "the first request that could not join, when it or the reason changes; vLLM: also a running \
         request that gets no token in this step",
    ),
    kind("evicted", Server, &["step", "asked_tokens", "freed_tokens"], "the prefix cache gives slots back")
        .or(&["asked_window_tokens", "freed_window_tokens"]),
    kind(
        "backed_up",
        Server,
        &["step", "tokens", "stored_tokens"],
        "a node of the prefix cache is copied to the host tier; 0 are stored where that has no room",
    ),
    kind(
        "loaded_back",
        Server,
        &["step", "request", "host_tokens", "loaded_tokens"],
        "what only the host holds of a request's prefix gets slots again; 0 are loaded where it is computed \
         again: too short, or no slots",
    ),
    kind(
        "evicted_host",
        Server,
        &["step", "asked_tokens", "freed_tokens"],
        "the host tier gives copies up",
    ),
    kind(
        "retracted",
        Server,
        &["step", "request", "output_tokens", "lost_tokens"],
        "a running request gives its slots back and waits again",
    ),
    kind(
        "preempted",
        Server,
        &["step", "request", "output_tokens", "lost_tokens"],
        "a running request gives way to one of a higher priority and waits again",
    ),
    kind("ratio", Server, &["step", "new_token_ratio"], "the new-token ratio after a retraction"),
    kind(
        "step",
        Server,
        &[
            "step", "mode", "requests", "tokens", "prefix_tokens", "at_ns", "elapsed_ns",
            "used_tokens", "available_tokens", "evictable_tokens", "running", "waiting",
            "free_bytes", "peak_bytes", "reserved_bytes",
        ],
        "a prefill or mixed pass: its batch, its time, and the state after it. `free_bytes` is the \
         least over ranks, `peak_bytes` the most that the allocator had live in the pass, \
         `reserved_bytes` what it holds of the device (worst rank)",
    )
    .or(WITH_A_PASS),
    kind(
        "decode_run",
        Server,
        &[
            "first_step", "steps", "requests", "at_ns", "elapsed_ns", "used_tokens",
            "available_tokens", "evictable_tokens", "running", "waiting", "free_bytes",
            "peak_bytes", "reserved_bytes",
        ],
        "decode passes with no other record between them; the state after the last",
    )
    .or(WITH_A_PASS),
    kind(
        "slots_taken",
        Server,
        &["request", "runs"],
        "token slots given to a request, as first, length, first, length, …; whole pages. With \
         `--detail slots`, like the next two",
    ),
    kind(
        "slots_freed",
        Server,
        &["runs"],
        "token slots given back to the free list, whoever had them",
    ),
    kind(
        "slots_cached",
        Server,
        &["runs"],
        "what the prefix cache owns, ascending, before the `run_ended` of a server that still lives",
    ),
    kind(
        "host_tenant_changed",
        Server,
        &["step", "at_ns", "held_bytes"],
        "other programs hold this much of the host's memory from now on",
    ),
    kind(
        "tenant_refused",
        Either,
        &["step", "at_ns", "asked_bytes", "free_bytes"],
        "other programs asked for more than was free, and took what there was (the record before)",
    ),
    kind(
        "leaked",
        Rank,
        &["step", "at_ns", "size_bytes"],
        "the server loses memory for good; held as `unaccounted` from then on",
    ),
    kind(
        "finished",
        Server,
        &["step", "request", "at_ns", "output_tokens", "finish"],
        "a request is over: `stop`, `length` or `abort`",
    ),
    kind(
        "out_of_memory",
        Either,
        &["account", "requested_bytes"],
        "the machine refuses a segment of `requested_bytes`; `capacity_bytes` in place of \
         `free_bytes` when it can never fit. While serving: the block that was wanted, what the \
         allocator had, the buffer, and PyTorch's words. Host memory: `killed_by`, the limit that was \
         reached. Without a rank: the host",
    )
    .or(&["phase", 
        "free_bytes", "capacity_bytes", "block_bytes", "allocated_bytes", "reserved_bytes",
        "buffer", "message", "step", "at_ns", "killed_by",
    ]),
    kind(
        "scheduler_fatal",
        Server,
        &["code", "message", "step", "at_ns"],
        "in place of `out_of_memory` when the scheduler dies of token slots",
    ),
    kind("ledger", Rank, &["account", "held_bytes"], "after `out_of_memory`: every account of every rank"),
    kind(
        "step_failed",
        Server,
        &["step", "mode", "tokens", "requests", "at_ns"],
        "the pass that the failure ended",
    ),
    kind("scheduler_ended", Rank, &["why"], "a rank's scheduler process ends"),
    kind(
        "process_ended",
        Server,
        &["process", "by", "how"],
        "each process of the tree, in the order in which they fall",
    ),
    kind("server_ended", Server, &["by", "running", "waiting", "finished"], "nothing is left of the server"),
    open(
        "metrics",
        "before `run_ended`, unless somebody ended the run: what `docs/metrics.md` lists, in integers with \
         their unit last; what has no value is left out",
    ),
    kind(
        "run_ended",
        Server,
        &["outcome", "at_ns", "steps", "finished", "running", "waiting", "used_tokens"],
        "last: `finished`, `out_of_memory`, `host_out_of_memory`, `hung`, `max_steps`, `max_time`, \
         `fatal`, `lost` or `interrupted`",
    ),
    Kind {
        about: Either,
        required: &["call", "what"],
        ..open(
            "observed",
            "measured, before the decision that rests on it, in a run with `--observe device`: what the \
             machine answered to its call of that number, where it is not what follows from its last answers. \
             `what` is a `reading`, the `host`, what is `held`, or that the call was `refused`",
        )
    },
];

/// The kind of that name.
#[must_use]
pub fn of(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

impl Kind {
    /// What is wrong with the form of `record`: a rank, or a field that is missing or not known.
    #[must_use]
    pub fn fault(&self, record: &Record) -> Option<String> {
        match (self.about, record.rank) {
            (Rank, None) => return Some("its rank is missing".to_owned()),
            (Server, Some(_)) => return Some("it has a rank".to_owned()),
            _ => {}
        }
        let missing = self.required.iter().find(|name| record.fields.get(name).is_none());
        if let Some(name) = missing {
            return Some(format!("its `{name}` is missing"));
        }
        let known = |name: &str| {
            self.others == Others::Open
                || self.required.contains(&name)
                || self.optional.contains(&name)
        };
        let fields = record.fields.decided.iter().chain(&record.fields.measured);
        let unknown = fields.map(|(name, _)| name).find(|name| !known(name))?;
        Some(format!("its `{unknown}` is no field of this kind"))
    }
}

/// A table of `docs/decision-log.md`.
#[must_use]
pub fn markdown_table(kinds: &[Kind]) -> String {
    let mut out = String::from("| record | about | fields | when |\n|---|---|---|---|\n");
    let code = |name: &&str| format!("`{name}`");
    for kind in kinds {
        let about = match kind.about {
            Rank => "rank",
            Server => "server",
            Either => "either",
        };
        let mut fields: Vec<String> = kind.required.iter().map(code).collect();
        if !kind.optional.is_empty() {
            let optional: Vec<String> = kind.optional.iter().map(code).collect();
            fields.push(format!("where they apply {}", optional.join(", ")));
        }
        if kind.others == Others::Open {
            fields.push("the engine's names".to_owned());
        }
        let fields = fields.join(", ");
        out.push_str(&format!("| `{}` | {about} | {fields} | {} |\n", kind.name, kind.when));
    }
    out
}
