//! The kinds of records in the recording of a server that really served.

use crate::kinds::{About::Server, Kind, kind};

const STATE: [&str; 5] =
    ["used_tokens", "available_tokens", "evictable_tokens", "running", "waiting"];

/// Every kind, in the order of a server's life.
pub const KINDS: [Kind; 17] = [
    kind(
        "memory_planned",
        Server,
        &["account", "size_bytes"],
        "first, one for each row of the memory plan; the size is measured: another body holds other amounts",
    ),
    kind(
        "settings",
        Server,
        &[
            "rules", "pool_pages", "page_size", "chunked_prefill_size", "max_running_requests",
            "max_queued_requests", "context_length", "schedule_policy", "schedule_conservativeness",
            "by_priority", "prefix_cache",
        ],
        "once: what the scheduler is set to",
    ),
    kind(
        "request_arrived",
        Server,
        &[
            "request", "turn", "at_ns", "prompt_tokens", "max_new_tokens", "ignore_eos", "logprob_start",
            "priority", "namespace", "prompt",
        ],
        "an input: a request came before this turn of the loop. `prompt` is its ids as first, length, first, \
         length, …; how its tokens are chosen is measured",
    )
    .or(&["temperature", "top_p", "min_p", "top_k", "seed"]),
    kind("given_up", Server, &["request", "turn"], "an input: nobody waits for a request any more"),
    kind("lend", Server, &["turn", "target_pages"], "an input: so many pages of the pool are to be lent from here on"),
    kind("request_refused", Server, &["request", "code"], "the scheduler turns a request away at once"),
    kind(
        "admitted",
        Server,
        &["step", "request", "prefix_tokens", "extend_tokens", "chunked"],
        "as in the table above",
    ),
    kind(
        "deferred",
        Server,
        &["step", "request", "reason", "needed_tokens", "available_tokens"],
        "as in the table above",
    ),
    kind("evicted", Server, &["step", "asked_tokens", "freed_tokens"], "as in the table above"),
    kind(
        "retracted",
        Server,
        &["step", "request", "output_tokens", "lost_tokens"],
        "as in the table above; also to lend its pages",
    ),
    kind(
        "preempted",
        Server,
        &["step", "request", "output_tokens", "lost_tokens"],
        "as in the table above",
    ),
    kind("ratio", Server, &["step", "new_token_ratio"], "as in the table above"),
    kind(
        "lent",
        Server,
        &["step", "pages", "lent_pages", "asked_pages"],
        "free pages, by number, are unmapped for the rest of the machine; the rest of what was asked for \
         follows as it becomes free",
    ),
    kind("taken_back", Server, &["step", "pages", "lent_pages"], "lent pages are free pages again"),
    kind(
        "step",
        Server,
        &[
            "step", "mode", "requests", "tokens", "prefix_tokens", STATE[0], STATE[1], STATE[2], STATE[3],
            STATE[4], "at_ns", "elapsed_real_ns", "made", "ended",
        ],
        "a prefill pass. Measured: its time, the tokens that were made in the order of the rows, and which of \
         them (by place) ended their request",
    ),
    kind(
        "decode_run",
        Server,
        &[
            "first_step", "steps", "requests", STATE[0], STATE[1], STATE[2], STATE[3], STATE[4], "at_ns",
            "elapsed_real_ns", "made", "ended",
        ],
        "up to 64 decode passes with nothing between them; the state after the last; `made` pass by pass",
    ),
    kind(
        "finished",
        Server,
        &["step", "request", "at_ns", "output_tokens", "finish"],
        "a request is over: `stop`, `length` or `abort`",
    ),
];
