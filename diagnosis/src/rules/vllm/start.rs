//! Before and around the profile run: free memory that is not there, or that grew; settings refused.

use plimsoll_ingest::log::{Amount, Event, Refused, Vllm};

use super::levers::{self, KV_BYTES, UTILIZATION, down};
use super::machine;
use super::settings::Settings;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// What an engine leaves at least to the context and libraries of a device that it has alone.
const OWN_CONTEXT: f64 = 0.03;

/// `Free memory … is less than desired GPU memory utilization`.
pub(super) fn free_below_desired(case: &Case) -> Vec<Finding> {
    let refusal = case.vllm().find_map(|(event, line)| match line {
        Vllm::FreeAtStart { free, total, utilization, wanted, refused: Refused::Yes } => {
            Some((event, *free, *total, *utilization, *wanted))
        }
        _ => None,
    });
    let Some((event, free, total, utilization, wanted)) = refusal else { return Vec::new() };
    let others = total - free;
    let ceiling = free.least() as f64 / total.most().max(1) as f64;
    let mut finding = Finding::new(
        "shared-memory-machine",
        Cause::SharedOrUnifiedMemory,
        Phase::Load,
        format!("{free} of {total} were free at the start, less than the fraction asks for"),
    )
    .also(&[Cause::NeighbourDuringSizing, Cause::WrongOrUnknownCapacity])
    .sure(Confidence::Certain, 95)
    .because(
        "The fraction is one of the whole device, and the server wants that much free before it loads. Others hold \
         the rest: programs, a server that is still going away, or, where host and device share one memory, the system.",
    )
    .sum(format!("{total} − {free} free = {others} held by others and the context"))
    .sum(format!("{free} ÷ {total} = {ceiling:.3}: the highest fraction that passes the check now"))
    .seen(event)
    .fraction(Direction::Lower)
    .window(0.0, ceiling)
    .int("free_at_start_bytes", free.bytes)
    .float("gpu_memory_utilization_ceiling", ceiling);
    if let (Some(wanted), Some(utilization)) = (wanted, utilization) {
        finding = finding.sum(format!(
            "{utilization} × {total} = {wanted} wanted, {} more than was free",
            wanted - free
        ));
    }
    let given_back = (1.0 - OWN_CONTEXT).min(utilization.unwrap_or(1.0));
    let lower = Lever::new(UTILIZATION, Move::Lower);
    let lower = if ceiling > 0.02 {
        let value = down(ceiling - 0.005);
        let budget = Amount::exact((value * total.bytes as f64) as i64);
        lower.to(format!("{value:.2}")).gives(format!("passes the check with a budget of {budget}"))
    } else {
        lower
    };
    finding = finding.set(lower).set(
        Lever::new("other programs on the device", Move::Unset)
            .gives(format!("{others} back, and {given_back:.2} passes")),
    );
    if machine::of(case).unified {
        finding = finding.set(
            Lever::new("page cache of the host", Move::Unset)
                .gives("what files just read hold: `sync; echo 3 > /proc/sys/vm/drop_caches`"),
        );
    }
    vec![
        finding
            .useless(UTILIZATION, Some(Move::Raise), "the check would ask for even more")
            .useless(KV_BYTES, Some(Move::Set), "the check of free memory runs all the same"),
    ]
}

/// `Error in memory profiling. Initial free memory …, current free memory …`: someone gave memory back.
pub(super) fn free_grew(case: &Case) -> Vec<Finding> {
    let grew = case.vllm().find_map(|(event, line)| match line {
        Vllm::FreeGrewWhileProfiling { initial, current } => Some((event, *initial, *current)),
        _ => None,
    });
    let Some((event, initial, current)) = grew else { return Vec::new() };
    let freed = initial.zip(current).map(|(before, after)| after - before);
    let headline = match freed {
        Some(freed) => format!("{freed} came free while the server measured its own use"),
        None => "memory came free while the server measured its own use".to_owned(),
    };
    let mut finding = Finding::new(
        "neighbour-while-sizing",
        Cause::NeighbourDuringSizing,
        Phase::Sizing,
        headline,
    )
    .also(&[Cause::SharedOrUnifiedMemory, Cause::MisleadingMessage])
    .sure(Confidence::Certain, 95)
    .because(
        "Not a shortage: another program on the device ended or shrank (on a machine with one memory, the page cache \
         too), so the difference of two readings means nothing.",
    )
    .seen(event)
    .fraction(Direction::NoEffect)
    .set(
        Lever::new(KV_BYTES, Move::Set)
            .gives("the pool is given, not measured; the check of free memory at the start stays"),
    )
    .set(Lever::new("start one server at a time", Move::Set))
    .useless(UTILIZATION, None, "the readings, not the budget, are what fails");
    if let (Some(before), Some(after), Some(freed)) = (initial, current, freed) {
        finding = finding
            .sum(format!(
                "{after} free after − {before} free before = {freed} given back by others"
            ))
            .int("freed_bytes", freed.bytes);
    }
    vec![finding]
}

/// `Too large swap space`: a check of host memory; the warning of the same words.
pub(super) fn swap_space(case: &Case) -> Vec<Finding> {
    let settings = Settings::of(case);
    let mut found = Vec::new();
    for (event, line) in case.vllm() {
        let Vllm::SwapSpace { asked, host, refused } = line else { continue };
        let (asked, host) = (asked.unwrap_or_default(), host.unwrap_or_default());
        let level = if *refused == Refused::Yes { Level::Error } else { Level::Warning };
        let share = 100.0 * asked.bytes as f64 / host.bytes.max(1) as f64;
        let lever = Lever::new("--swap-space", Move::Lower).to(0).gives(format!(
            "{asked} of host memory; only preempted requests of the first engine use it"
        ));
        found.push(
            Finding::new(
                "host-memory",
                Cause::HostMemory,
                Phase::Host,
                format!("swap space of {asked} against {host} of host memory ({share:.0} %)"),
            )
            .level(level)
            .sure(Confidence::Certain, 90)
            .because("Refused above 70 % of host memory, warned above 40 %. Device memory has no part in it.")
            .sum(format!("{asked} over all ranks ÷ {host} = {share:.0} %"))
            .seen(event)
            .set(lever)
            .useless(UTILIZATION, None, "it is a share of the device, not of the host"),
        );
    }
    if found.is_empty() {
        found.extend(cpu_pool(case, &settings));
    }
    found
}

/// The CPU backend's pool is host memory, 4 GiB unless said otherwise.
fn cpu_pool(case: &Case, settings: &Settings) -> Option<Finding> {
    let (event, size) = case.vllm().find_map(|(event, line)| match line {
        Vllm::CpuKvSpace { size } => Some((event, (*size)?)),
        _ => None,
    })?;
    let ranks = settings.tp;
    Some(
        Finding::new(
            "host-memory",
            Cause::HostMemory,
            Phase::Host,
            format!("the pool of the CPU backend is {size} of host memory a rank, by default"),
        )
        .level(Level::Note)
        .sure(Confidence::Likely, 20)
        .sum(format!("{ranks} × {size} of host memory beside the weights"))
        .seen(event)
        .set(Lever::new("VLLM_CPU_KVCACHE_SPACE", Move::Set).gives("the pool in GiB"))
        .useless(UTILIZATION, None, "the CPU backend does not read it"),
    )
}

/// Refusals that have nothing to do with how much memory there is.
pub(super) fn not_memory(case: &Case) -> Vec<Finding> {
    case.vllm().filter_map(|(event, line)| setting_refused(event, line)).take(1).collect()
}

fn setting_refused(event: &Event, line: &Vllm) -> Option<Finding> {
    let (headline, lever) = match line {
        Vllm::SegmentsRefused => (
            "sleep mode and expandable segments exclude each other".to_owned(),
            Lever::new("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", Move::Unset)
                .gives("sleep mode's own allocator works"),
        ),
        Vllm::ModelLenTooLarge { asked } => (
            match asked {
                Some(asked) => format!("max_model_len {asked} is more than the model was made for"),
                None => "max_model_len is more than the model was made for".to_owned(),
            },
            Lever::new("--max-model-len", Move::Lower).gives("the model's own length, or less"),
        ),
        _ => return None,
    };
    Some(
        Finding::new("not-memory", Cause::NotMemory, Phase::Refused, headline)
            .sure(Confidence::Certain, 85)
            .seen(event)
            .set(lever)
            .useless(UTILIZATION, None, "memory has no part in it"),
    )
}

/// A single request above `max_model_len`: the client's error, not the server's.
pub(super) fn prompt_too_long(case: &Case) -> Vec<Finding> {
    let refused = case.vllm().find_map(|(event, line)| match line {
        Vllm::PromptTooLong { limit, asked } => Some((event, *limit, *asked)),
        _ => None,
    });
    let Some((event, limit, asked)) = refused else { return Vec::new() };
    let asked = asked
        .map_or("a request".to_owned(), |asked| format!("a request of {}", levers::tokens(asked)));
    vec![
        Finding::new(
            "not-memory",
            Cause::NotMemory,
            Phase::Refused,
            format!("{asked} was refused: max_model_len is {}", levers::tokens(limit)),
        )
        .level(Level::Note)
        .sure(Confidence::Certain, 15)
        .seen(event)
        .set(
            Lever::new("--max-model-len", Move::Raise)
                .gives("longer requests; the pool must hold one of that length"),
        ),
    ]
}
