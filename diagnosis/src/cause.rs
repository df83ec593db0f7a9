//! The vocabulary of a diagnosis: causes, phases, directions.

use std::fmt;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $name { $($(#[$item])* $variant,)* }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in JSON and answer keys.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// What was wrong, by the account of memory that was too small or misread.
    Cause {
        /// Nothing: starts, or runs, with margin.
        Healthy = "healthy",
        /// The fraction is below what the weights alone take: no pool.
        WeightsAboveFraction = "weights_above_fraction",
        /// Weights do not fit the devices at any fraction.
        ModelTooBig = "model_too_big",
        /// No fraction both fits the weights and leaves enough outside.
        EmptyFeasibleWindow = "empty_feasible_window",
        /// CUDA graphs, communication or kernel workspaces did not fit outside the pool.
        GraphsOrWorkspace = "graphs_or_workspace_outside_pool",
        /// An attention backend's workspace did not fit.
        AttentionWorkspace = "attention_workspace",
        /// A mixture-of-experts workspace did not fit.
        MoeWorkspace = "moe_workspace",
        /// Activations of a prefill or decode pass did not fit outside the pool.
        ActivationsOutsidePool = "activations_outside_pool",
        /// A buffer that grows with the length of the context did not fit.
        GrowsWithContext = "grows_with_context",
        /// Logits of prompt tokens (input logprobs).
        PromptLogprobs = "prompt_logprobs",
        /// Sampling buffers: rows times vocabulary.
        SamplerBuffers = "sampler_buffers",
        /// The profile run's own peak was too large, or took the pool.
        ProfileRunPeak = "profile_run_peak",
        /// A draft model or its pool was not in the budget.
        DraftNotBudgeted = "draft_not_budgeted",
        /// Vision or audio encoder.
        Encoder = "vision_or_audio_encoder",
        /// State of Mamba or linear-attention layers.
        MambaState = "mamba_state",
        /// LoRA buffers.
        LoraBuffers = "lora_buffers",
        /// The request-to-token table: requests times context.
        RequestTable = "request_table",
        /// Memory is there in pieces only.
        Fragmentation = "fragmentation",
        /// The pool is too small for what is asked of it.
        PoolTooSmall = "pool_too_small",
        /// Requests are thrown out and computed again and again.
        PreemptionStorm = "preemption_storm",
        /// The pool takes more than the load will ever use, and others need it.
        PoolOversized = "pool_oversized",
        /// Host memory: hierarchical cache, swap, pinned or shared memory, a control group.
        HostMemory = "host_memory",
        /// Others hold the device, or device and host share one memory.
        SharedOrUnifiedMemory = "shared_or_unified_memory",
        /// A neighbour took or gave back memory while the server measured.
        NeighbourDuringSizing = "neighbour_during_sizing",
        /// Capacity or free memory was read wrong, or was not known.
        WrongOrUnknownCapacity = "wrong_or_unknown_capacity",
        /// Loading needs more than the loaded weights.
        LoadTimePeak = "load_time_peak",
        /// Temporaries of loading were alive while the pool was measured.
        LoadTimeGarbage = "load_time_garbage",
        /// Memory grows without end.
        Leak = "leak",
        /// A fault of the scheduler, not of sizes.
        SchedulerBug = "scheduler_bug",
        /// The engine counts its own memory wrong.
        AccountingBug = "accounting_bug",
        /// The text of the error points the wrong way.
        MisleadingMessage = "misleading_message",
        /// Not memory at all.
        NotMemory = "not_memory",
    }
}

named! {
    /// When it happened.
    Phase {
        /// Nothing happened.
        None = "none",
        /// Loading weights.
        Load = "load",
        /// Sizing the pools.
        Sizing = "sizing",
        /// Graph capture, tuning and warm-up, after the pools.
        Capture = "capture",
        /// A prefill pass.
        Prefill = "prefill",
        /// A decode pass.
        Decode = "decode",
        /// An image or audio encoder.
        Encoder = "encoder",
        /// Retraction or preemption.
        Retraction = "retraction",
        /// A request was refused.
        Refused = "refused",
        /// Host memory.
        Host = "host",
        /// Slow growth.
        Leak = "leak",
        /// While it served, or not even that: the log cannot tell.
        Unknown = "unknown",
    }
}

named! {
    /// What to do with the fraction (`--mem-fraction-static`, `--gpu-memory-utilization`).
    Direction {
        /// Raise it.
        Raise = "raise",
        /// Lower it.
        Lower = "lower",
        /// Either side works; the text says which for what.
        Either = "either",
        /// No value of it is the answer.
        NoEffect = "no_effect",
        /// The log cannot decide.
        Unknown = "unknown",
    }
}

named! {
    /// What to do with another flag.
    Move {
        /// Raise its value.
        Raise = "raise",
        /// Lower its value.
        Lower = "lower",
        /// Set it.
        Set = "set",
        /// Take it away.
        Unset = "unset",
    }
}

named! {
    /// How bad it is.
    Level {
        /// Worth knowing.
        Note = "note",
        /// Will be felt.
        Warning = "warning",
        /// It died, refused, or will: exit code 1.
        Error = "error",
    }
}

named! {
    /// How sure a finding is.
    Confidence {
        /// One of several explanations that the lines allow.
        Possible = "possible",
        /// The lines point here; a number is missing.
        Likely = "likely",
        /// The numbers close.
        Certain = "certain",
    }
}
