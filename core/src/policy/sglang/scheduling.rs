//! Flags that steer the scheduler and the sampler; they move no byte of the start.

/// As given; `None` is the release's default.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SchedulingArgs {
    /// `--schedule-policy`.
    pub schedule_policy: Option<String>,
    /// `--schedule-conservativeness`.
    pub schedule_conservativeness: Option<f64>,
    /// `--enable-mixed-chunk`.
    pub enable_mixed_chunk: bool,
    /// `--radix-eviction-policy`.
    pub radix_eviction_policy: Option<String>,
    /// `--hicache-write-policy`.
    pub hicache_write_policy: Option<String>,
    /// `--max-queued-requests`.
    pub max_queued_requests: Option<u64>,
    /// `--prefill-max-requests`.
    pub prefill_max_requests: Option<u64>,
    /// `--decode-log-interval`: decode results between two lines of the log; 40 when not given.
    pub decode_log_interval: Option<u64>,
    /// `--enable-priority-scheduling`.
    pub enable_priority_scheduling: bool,
    /// `--schedule-low-priority-values-first`.
    pub schedule_low_priority_values_first: bool,
    /// `--priority-scheduling-preemption-threshold`.
    pub priority_scheduling_preemption_threshold: Option<u64>,
    /// `--disable-priority-preemption`.
    pub disable_priority_preemption: bool,
    /// `--allow-auto-truncate`.
    pub allow_auto_truncate: bool,
    /// `--sampling-backend`.
    pub sampling_backend: Option<String>,
}
