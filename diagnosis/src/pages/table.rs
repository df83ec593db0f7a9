//! The pages, embedded.

use super::{Page, PageKind};

macro_rules! pages {
    ($($kind:ident in $folder:literal { $($key:literal $(: $title:literal)?,)* })*) => {
        /// Every page, in printing order.
        pub const PAGES: &[Page] = &[$($(Page {
            kind: PageKind::$kind,
            key: $key,
            text: include_str!(concat!("../../pages/", $folder, "/", $key, ".md")),
            own_title: concat!($($title)?),
        },)*)*];
    };
}

pages! {
    Code in "codes" {
        "weights-above-fraction",
        "model-too-big",
        "empty-window",
        "pool-too-small",
        "profile-run-peak",
        "draft-not-budgeted",
        "mamba-state",
        "request-table",
        "lora-buffers",
        "wrong-capacity",
        "neighbour-while-sizing",
        "load-time-garbage",
        "accounting-bug",
        "pool-oversized",
        "load-time-peak",
        "outside-pool-too-small",
        "attention-workspace",
        "moe-workspace",
        "sampler-buffers",
        "encoder",
        "activations-outside-pool",
        "grows-with-context",
        "prompt-logprobs",
        "fragmentation",
        "preemption-storm",
        "scheduler-bug",
        "leak",
        "host-memory",
        "shared-memory-machine",
        "misleading-message",
        "not-memory",
        "margin-too-small",
        "never-proven",
        "healthy",
    }
    Rule in "rules" {
        "free-after-graphs": "Free memory after graph capture is the leading indicator",
        "when-to-raise": "On a dedicated GPU trust the automatic value; raise on a full pool and retractions only",
        "shared-machine": "On a shared machine set the fraction yourself",
        "hierarchical-cache": "Hierarchical cache is host memory",
        "outside-the-pool": "The pool is not the whole",
        "measure-the-heaviest-prefill": "Measure free memory during the heaviest prefill",
        "before-relaunch": "Before the server is started again",
    }
    WrongAnswer in "wrong-answers" {
        "usage-was-low": "\"0.05 usage means it was nowhere near full\"",
        "raise-the-fraction": "\"Raise the fraction\"",
        "automatic-is-tuned": "\"The automatic value is tuned\"",
        "pool-line-is-all": "\"The pool line is what the server uses\"",
    }
}
