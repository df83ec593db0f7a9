//! Who held what: at the failure, and after each phase of the start.

use crate::{
    collect::{Collected, CrashSeen, Phase},
    html::{element, escape},
};
use plimsoll_core::{memory::ledger::Account, units::Bytes};
use plimsoll_replay::{accounts::RankAccounts, timeline::time};
use std::fmt::Write as _;

/// Groups of ranks that a table shows at most.
const MOST_COLUMNS: usize = 4;

/// A column of a table: its name and the device.
type Device<'a> = (String, &'a RankAccounts);

fn gib(bytes: u64) -> String {
    format!("{:.2}", Bytes(bytes).as_gib_f64())
}

/// Ranks that hold the same share a column; the one that failed comes first.
fn groups(ranks: &[RankAccounts], first: Option<u32>) -> Vec<Device<'_>> {
    let mut order: Vec<&RankAccounts> = ranks.iter().collect();
    order.sort_by_key(|rank| Some(rank.rank) != first);
    let mut groups: Vec<(Vec<u32>, &RankAccounts)> = Vec::new();
    for rank in order {
        let same = |other: &RankAccounts| {
            other.rows() == rank.rows() && other.capacity() == rank.capacity()
        };
        match groups.iter_mut().find(|(_, device)| same(device)) {
            Some((members, _)) => members.push(rank.rank),
            None => groups.push((vec![rank.rank], rank)),
        }
    }
    let name = |members: &[u32]| match members {
        _ if members.len() == ranks.len() && ranks.len() > 1 => {
            format!("each of {} ranks", ranks.len())
        }
        [one] => format!("rank {one}"),
        [one, rest @ ..] => format!("rank {one} and {} more", rest.len()),
        [] => String::new(),
    };
    groups.into_iter().map(|(members, rank)| (name(&members), rank)).collect()
}

/// A table of accounts, in GiB.
fn table(out: &mut String, caption: &str, devices: &[Device<'_>]) {
    let _ = write!(
        out,
        "<div class=\"scroll\"><table class=\"ledger\">\n{}\n<tr><th scope=\"col\">held by</th>",
        element("caption", "", caption)
    );
    for (name, _) in devices {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">{}</th>", escape(name));
    }
    out.push_str("</tr>\n");
    for account in Account::ALL {
        let held = |rank: &RankAccounts| rank.of(account);
        if account != Account::Free && devices.iter().all(|(_, rank)| held(rank) == 0) {
            continue;
        }
        let label = account.label().replace(" (peak)", "");
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape(&label));
        for (_, rank) in devices {
            let _ = write!(out, "<td class=\"n\">{}</td>", gib(held(rank)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("<tr class=\"sum\"><th scope=\"row\">capacity</th>");
    for (_, rank) in devices {
        let capacity = rank.capacity().map_or_else(String::new, gib);
        let _ = write!(out, "<td class=\"n\">{capacity}</td>");
    }
    out.push_str("</tr>\n</table></div>\n");
}

/// The failure, what was asked, and who held what.
pub(super) fn crash(out: &mut String, seen: &Collected) {
    let Some(crash) = &seen.crash else { return };
    out.push_str(
        "<section id=\"crash\" aria-labelledby=\"h-crash\">\n<h2 id=\"h-crash\">The failure</h2>\n",
    );
    facts(out, crash);
    let groups = groups(&crash.ledger, crash.rank);
    let shown = groups.get(..MOST_COLUMNS).unwrap_or(&groups);
    table(out, "Who held what at that moment, GiB", shown);
    if groups.len() > shown.len() {
        let more = groups.len() - shown.len();
        let _ = writeln!(out, "<p class=\"note\">{more} more kinds of rank differ.</p>");
    }
    if !crash.fell.is_empty() {
        out.push_str("<h3>What fell, in order</h3>\n<ol class=\"fell\">\n");
        for [process, by, how] in &crash.fell {
            let text = format!("{process}, by {by}: {how}");
            let _ = writeln!(out, "{}", element("li", "", &text));
        }
        out.push_str("</ol>\n");
    }
    out.push_str("</section>\n");
}

fn facts(out: &mut String, crash: &CrashSeen) {
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(at) = crash.at_ns {
        let exact = format!("{}.{:09} s", at / 1_000_000_000, at % 1_000_000_000);
        let step = crash.step.map_or_else(String::new, |step| format!(", step {step}"));
        rows.push(("when", format!("{} after the server was ready ({exact}{step})", time(at))));
    }
    if !crash.mode.is_empty() {
        let (mode, tokens, requests) = (&crash.mode, crash.tokens, crash.requests);
        rows.push(("pass", format!("{mode}, {tokens} tokens of {requests} requests")));
    }
    rows.push(("what", crash.buffer.clone()));
    if crash.requested > 0 {
        let exact = |bytes: u64| format!("{} ({bytes} B)", Bytes(bytes));
        rows.push(("asked", exact(crash.requested)));
        rows.push(("free", exact(crash.free)));
        rows.push(("short by", exact(crash.requested.saturating_sub(crash.free))));
        rows.push(("live in the allocator", exact(crash.allocated)));
        let cached = crash.reserved.saturating_sub(crash.allocated);
        rows.push(("cached there, in pieces", exact(cached)));
    }
    if !crash.message.is_empty() {
        rows.push(("the engine says", crash.message.clone()));
    }
    out.push_str("<table class=\"facts\">\n");
    for (name, value) in rows {
        let _ = writeln!(out, "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", escape(&value));
    }
    out.push_str("</table>\n");
}

/// The words for a point of the start.
fn point_words(point: &str) -> String {
    match point {
        "capacity" => "before the start".to_owned(),
        "out_of_memory" => "out of memory".to_owned(),
        other => other.replace('_', " "),
    }
}

/// The accounts of the shown rank after each phase.
pub(super) fn start(out: &mut String, seen: &Collected) {
    let rank = match seen.served.is_empty() {
        true => seen.crash.as_ref().and_then(|crash| crash.rank).unwrap_or(0),
        false => seen.rank(),
    };
    let of_rank = |phase: &&Phase| phase.rank.rank == rank;
    let phases: Vec<&Phase> = seen.phases.iter().filter(of_rank).collect();
    if phases.is_empty() {
        return;
    }
    out.push_str("<section aria-labelledby=\"h-start\">\n<h2 id=\"h-start\">The start</h2>\n");
    phases_table(out, &phases);
    let devices: Vec<Device<'_>> =
        phases.iter().map(|phase| (point_words(&phase.point), &phase.rank)).collect();
    table(out, &format!("Rank {rank} after each phase, GiB"), &devices);
    out.push_str("</section>\n");
}

/// One line a phase: its bar, what it took or gave back, what is free.
fn phases_table(out: &mut String, phases: &[&Phase]) {
    out.push_str(
        "<table class=\"phases\">\n<tr><th scope=\"col\">phase</th><th scope=\"col\">held, of the device</th>\
         <th scope=\"col\">change, GiB</th><th scope=\"col\" class=\"n\">free, GiB</th></tr>\n",
    );
    let mut before: Option<&RankAccounts> = None;
    for phase in phases {
        let _ = write!(out, "<tr>{}<td>", element("td", "", &point_words(&phase.point)));
        bar(out, &phase.rank);
        let free = phase.rank.free().map_or_else(String::new, gib);
        let _ = writeln!(
            out,
            "</td>{}{}</tr>",
            element("td", "", &change(before, &phase.rank)),
            element("td", "n", &free)
        );
        before = Some(&phase.rank);
    }
    out.push_str("</table>\n");
}

/// What a phase took, and what it gave back.
fn change(before: Option<&RankAccounts>, now: &RankAccounts) -> String {
    let moved = |account: &Account| *account != Account::Free;
    let parts = Account::ALL.into_iter().filter(moved).filter_map(|account| {
        let (was, is) = (before.map_or(0, |rank| rank.of(account)), now.of(account));
        let (sign, by) = if is >= was { ('+', is - was) } else { ('\u{2212}', was - is) };
        (by > 0).then(|| format!("{sign}{} {}", gib(by), account.label().replace(" (peak)", "")))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// The accounts of a device as one bar.
fn bar(out: &mut String, rank: &RankAccounts) {
    const WIDE: u64 = 1000;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDE} 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
    );
    let capacity = u128::from(rank.capacity().unwrap_or(0).max(1));
    let mut before = 0_u64;
    for account in Account::ALL {
        let x = |bytes: u64| u128::from(bytes) * u128::from(WIDE) / capacity;
        let after = before.saturating_add(rank.of(account));
        let (left, right) = (x(before), x(after));
        before = after;
        if right > left {
            let (name, width) = (account.name(), right - left);
            let _ = write!(
                out,
                "<rect class=\"a-{name}\" x=\"{left}\" y=\"0\" width=\"{width}\" height=\"10\"/>"
            );
        }
    }
    out.push_str("</svg>");
}
