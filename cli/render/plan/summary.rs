//! The lines under the ledger: pool, margin, window, host memory, what a log said.

use super::View;
use plimsoll_core::{
    figure::{Estimate, FigureValue},
    pyfloat,
    units::{Bytes, GIB, Tokens, group_thousands},
};
use plimsoll_replay::plan::{Plan, PrefillTrial, TokenRange};

/// Tokens of a usual request, prompt and output, where the full context says little.
pub(super) const USUAL: u64 = 8192;

/// All of them; each starts with a word of eight columns.
pub(super) fn lines(view: &View<'_>) -> Vec<String> {
    let plan = view.plan;
    let all = [
        pool(plan),
        margin(view),
        prefill(plan),
        killed_by(plan),
        least(view),
        window(view),
        host(view),
        log(view),
    ];
    all.into_iter().flatten().collect()
}

fn tokens_text(pool: TokenRange) -> String {
    if pool.low == pool.high {
        format!("{} tokens", pool.mid)
    } else {
        format!("{} tokens ({} to {})", pool.mid, pool.low, pool.high)
    }
}

fn pool(plan: &Plan) -> Option<String> {
    let pool = plan.pool?;
    let holds = plan.full_context_requests.zip(plan.context_len).map_or_else(
        String::new,
        |(requests, context)| {
            let context = group_thousands(context);
            let usual = pool.mid.0 / USUAL;
            let usual = format!("{} of {}", group_thousands(usual), group_thousands(USUAL));
            format!(": {requests:.2} requests of the full {context} tokens, {usual}")
        },
    );
    Some(format!("pool    {}{holds}", tokens_text(pool)))
}

/// GiB with two decimals, and its sign.
fn gib(bytes: i64) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB as f64)
}

/// An amount in GiB with its interval, one unit for all.
fn interval(estimate: Estimate) -> String {
    let gib = |bytes: Bytes| format!("{:.2}", bytes.as_gib_f64());
    if estimate.is_exact() {
        format!("{} GiB", gib(estimate.mid))
    } else {
        format!("{} GiB ({} to {})", gib(estimate.mid), gib(estimate.low), gib(estimate.high))
    }
}

fn margin(view: &View<'_>) -> Option<String> {
    let ((name, need), margin) = (view.need()?, view.margin()?);
    Some(format!("margin  {} once {name} has its {}", gib(margin), interval(need.value)))
}

/// Where the first full chunk dies; nothing when it is served.
fn prefill(plan: &Plan) -> Option<String> {
    let PrefillTrial::Dies { buffer, requested, free, .. } = plan.prefill.as_ref()? else {
        return None;
    };
    Some(format!("prefill dies at {buffer}: {requested} asked of the device, {free} free"))
}

/// The smallest mix that kills the start; where plain requests do not, what input logprobs do.
fn killed_by(plan: &Plan) -> Option<String> {
    match (&plan.kills.plain, &plan.kills.on_demand) {
        (Some(plain), _) => Some(format!("killed  {} {}", plain.words(), plain.verb())),
        (None, Some(asked)) => {
            Some(format!("killed  by no plain request within the limits, but by {}", asked.words()))
        }
        (None, None) => None,
    }
}

fn least(view: &View<'_>) -> Option<String> {
    let least = view.args.min_margin?;
    let word = if view.margin_holds()? { "holds" } else { "FAILS" };
    let margin = view.margin().map_or_else(|| "none".to_owned(), gib);
    Some(format!("asked   a margin of at least {least} {word}: it is {margin}"))
}

fn window(view: &View<'_>) -> Option<String> {
    let plan = view.plan;
    let window = plan.window?;
    let used = plan.fraction.map_or_else(String::new, |f| format!(", used {}", pyfloat::repr(f)));
    let text = if window.is_empty() {
        format!(
            "empty: a pool starts above {:.3}, the heaviest step fits below {:.3}",
            window.floor, window.ceiling
        )
    } else {
        let top = if plan.need.is_some() { "the heaviest step" } else { "nothing is left" };
        format!("{:.3} (no pool below) to {:.3} ({top})", window.floor, window.ceiling)
    };
    Some(format!("window  {} {text}{used}", plan.flag))
}

/// The host pool of hierarchical cache.
fn host(view: &View<'_>) -> Option<String> {
    let start = &view.plan.ran.start;
    let bytes = |name: &str| match start.figure(name)?.value {
        FigureValue::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    let (rank, all) = (bytes("host_pool_bytes")?, bytes("host_required_bytes")?);
    let tokens = match start.figure("host_pool_tokens")?.value {
        FigureValue::Count(n) => Tokens(n).to_string(),
        _ => return None,
    };
    let available = view.args.measured.host_available.map_or_else(
        || "; is it there? (--host-available)".to_owned(),
        |bytes| format!(" of {bytes} available"),
    );
    Some(format!(
        "host    {all} for the hierarchical cache{available}: {rank} and {tokens} tokens a rank; it \
         relieves no prefill on the device"
    ))
}

/// What the log says beside what the rules give from its figures.
fn log(view: &View<'_>) -> Option<String> {
    let seen = view.log_tokens?;
    let place = view.args.measured.from_log.as_ref()?.display();
    let line = seen.line;
    let tokens = group_thousands(seen.value);
    let word = match view.plan.pool {
        Some(pool) if pool.mid.0 == seen.value => "equal".to_owned(),
        Some(pool) => {
            let more = i128::from(seen.value) - i128::from(pool.mid.0);
            // What printed figures leave open: three of them, rounded to 0.01 GiB each.
            let open = pool.mid.0 / 200 + 1000;
            let why = if more.unsigned_abs() < u128::from(open) {
                "figures of a log are rounded to 0.01 GiB"
            } else {
                "is the log's device, release or command another one?"
            };
            format!("{more:+} beside this plan; {why}")
        }
        None => "this plan has no pool".to_owned(),
    };
    Some(format!("log     {tokens} tokens in {place}:{line}: {word}"))
}
