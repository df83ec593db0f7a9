//! The settings in force: what the server printed, else what the command says.

use plimsoll_core::policy::sglang::args::{DisaggregationMode, GraphRequest, Platform, ServerArgs};
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_ingest::launch::EngineLaunch;
use plimsoll_ingest::log::Sglang;

use crate::Case;

/// The arguments that the rules read.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Settings {
    /// Release, where the log or the command says one.
    pub(super) version: Option<Version>,
    /// `--mem-fraction-static`: as printed by a refusal, by the server, or given.
    pub(super) fraction: Option<f64>,
    /// Whether the command gives it (an automatic value otherwise).
    pub(super) fraction_given: Given,
    /// Chunk of prefill, tokens; none when switched off.
    pub(super) chunk: Option<u64>,
    /// `--context-length` as given.
    pub(super) context_given: Option<u64>,
    /// Context length in force.
    pub(super) context: Option<u64>,
    /// `--max-running-requests`.
    pub(super) max_running: Option<u64>,
    /// `--max-total-tokens`.
    pub(super) max_total_tokens: Option<u64>,
    /// `--max-prefill-tokens`.
    pub(super) max_prefill_tokens: Option<u64>,
    /// `--page-size`.
    pub(super) page_size: Option<u64>,
    /// Largest decode batch captured, as given.
    pub(super) graph_max_bs: Option<u64>,
    /// Graphs are switched off for decoding.
    pub(super) graphs_off: Given,
    /// Speculative algorithm.
    pub(super) speculative: Option<String>,
    /// Draft tokens of a step.
    pub(super) draft_tokens: Option<u64>,
    /// Ranks on one host: tensor × pipeline / nodes.
    pub(super) ranks_per_host: u64,
    /// Data-parallel attention ranks.
    pub(super) dp: u64,
    /// Attention backend, lower case.
    pub(super) attention: Option<String>,
    /// MoE all-to-all backend.
    pub(super) all_to_all: Option<String>,
    /// LoRA is on.
    pub(super) lora: Given,
    /// Hierarchical cache is on.
    pub(super) hicache: Given,
    /// Prefill or decode role.
    pub(super) role: DisaggregationMode,
    /// Where it runs.
    pub(super) platform: Platform,
    /// Model as named.
    pub(super) model: Option<String>,
}

/// Whether something was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Given {
    /// It was.
    Yes,
    /// It was not, or no line says.
    #[default]
    No,
}

impl Given {
    const fn when(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    /// Whether it was given.
    pub(super) const fn yes(self) -> bool {
        matches!(self, Self::Yes)
    }
}

impl Settings {
    /// Of a case.
    pub(super) fn of(case: &Case) -> Self {
        let mut settings = Self { ranks_per_host: 1, dp: 1, ..Self::default() };
        if let Some(EngineLaunch::Sglang(args)) = case.launched().map(|launch| launch.engine) {
            settings.take_command(&args);
        }
        settings.version = case.version();
        settings.take_printed(case);
        settings.take_summary(case);
        settings
    }

    /// Whether the release is this one or later; `None` where no line says the release.
    pub(super) fn since(&self, minor: u16, patch: u16) -> Option<bool> {
        self.version.map(|version| version >= Version::new(0, minor, patch))
    }

    fn take_command(&mut self, args: &ServerArgs) {
        self.fraction = args.mem_fraction_static;
        self.fraction_given = Given::when(args.mem_fraction_static.is_some());
        self.chunk = args.chunked_prefill_size.and_then(|c| u64::try_from(c).ok());
        self.context_given = args.context_length;
        self.context = args.context_length;
        self.max_running = args.max_running_requests;
        self.max_total_tokens = args.max_total_tokens;
        self.max_prefill_tokens = args.max_prefill_tokens;
        self.page_size = args.page_size;
        let largest = args.cuda_graph_bs.as_ref().and_then(|list| list.iter().copied().max());
        self.graph_max_bs = args.cuda_graph_max_bs.or(largest);
        self.graphs_off = Given::when(args.decode_graph == GraphRequest::Off);
        self.speculative.clone_from(&args.speculative_algorithm);
        self.draft_tokens = args.speculative_num_draft_tokens;
        let ranks = u64::from(args.tp_size) * u64::from(args.pp_size);
        self.ranks_per_host = (ranks / u64::from(args.nnodes.max(1))).max(1);
        self.dp = u64::from(args.dp_size.max(1));
        self.attention = args.attention_backend.as_ref().map(|a| a.to_ascii_lowercase());
        self.all_to_all.clone_from(&args.moe_a2a_backend);
        self.lora = Given::when(args.enable_lora);
        self.hicache = Given::when(args.enable_hierarchical_cache);
        self.role = args.disaggregation_mode;
        self.platform = args.platform;
        self.model = (!args.model_path.is_empty()).then(|| args.model_path.clone());
    }

    /// What the server printed of itself wins.
    fn take_printed(&mut self, case: &Case) {
        let text = |name: &str| case.arg(name).filter(|v| !v.is_empty() && *v != "None");
        let number = |name: &str| text(name).and_then(|v| v.parse::<u64>().ok());
        let yes = |name: &str| text(name) == Some("True");
        self.fraction = text("mem_fraction_static").and_then(|v| v.parse().ok()).or(self.fraction);
        self.chunk = number("chunked_prefill_size").or(self.chunk);
        self.context_given = number("context_length").or(self.context_given);
        self.context = self.context_given.or(self.context);
        self.max_running = number("max_running_requests").or(self.max_running);
        self.max_total_tokens = number("max_total_tokens").or(self.max_total_tokens);
        self.max_prefill_tokens = number("max_prefill_tokens").or(self.max_prefill_tokens);
        self.page_size = number("page_size").or(self.page_size);
        self.graph_max_bs = number("cuda_graph_max_bs")
            .or_else(|| number("cuda_graph_max_bs_decode"))
            .or(self.graph_max_bs);
        if yes("disable_cuda_graph") {
            self.graphs_off = Given::Yes;
        }
        self.speculative =
            text("speculative_algorithm").map(str::to_owned).or(self.speculative.take());
        self.draft_tokens = number("speculative_num_draft_tokens").or(self.draft_tokens);
        if let Some(tp) = number("tp_size") {
            let ranks = tp.saturating_mul(number("pp_size").unwrap_or(1));
            self.ranks_per_host = (ranks / number("nnodes").unwrap_or(1).max(1)).max(1);
        }
        self.dp = number("dp_size").unwrap_or(self.dp);
        self.attention =
            text("attention_backend").map(str::to_ascii_lowercase).or(self.attention.take());
        self.all_to_all = text("moe_a2a_backend").map(str::to_owned).or(self.all_to_all.take());
        if yes("enable_lora") {
            self.lora = Given::Yes;
        }
        if yes("enable_hierarchical_cache") {
            self.hicache = Given::Yes;
        }
        self.model = text("model_path").map(str::to_owned).or(self.model.take());
    }

    /// The scheduler's own summary is what it runs with.
    fn take_summary(&mut self, case: &Case) {
        for (_, line) in case.sglang() {
            let Sglang::Summary {
                chunked_prefill_size,
                max_prefill_tokens,
                max_running_requests,
                context_len,
                ..
            } = line
            else {
                continue;
            };
            let chunk = chunked_prefill_size.and_then(|c| u64::try_from(c).ok());
            self.chunk = chunk.or(self.chunk);
            self.max_prefill_tokens = max_prefill_tokens.or(self.max_prefill_tokens);
            self.max_running = max_running_requests.or(self.max_running);
            self.context = context_len.or(self.context);
        }
    }
}
