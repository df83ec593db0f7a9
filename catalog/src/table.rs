//! The form of an embedded catalog and the rules by which a name finds an entry.

/// One embedded file: its name without `.yaml`, the names that find it, and its text.
pub type Row = (&'static str, &'static [&'static str], &'static str);

/// The row for `name`: a listed name or the file's stem, letter case ignored, then the part of a
/// listed name after `/` when only one entry has it.
#[must_use]
pub fn find(table: &'static [Row], name: &str) -> Option<&'static Row> {
    let wanted = name.trim();
    let exact = table.iter().find(|(stem, names, _)| {
        stem.eq_ignore_ascii_case(wanted) || names.iter().any(|n| n.eq_ignore_ascii_case(wanted))
    });
    if exact.is_some() {
        return exact;
    }
    let mut short = table.iter().filter(|(_, names, _)| {
        names.iter().any(|n| n.rsplit('/').next().is_some_and(|s| s.eq_ignore_ascii_case(wanted)))
    });
    match (short.next(), short.next()) {
        (Some(row), None) => Some(row),
        _ => None,
    }
}

/// Up to `count` listed names that are nearest to `name`, nearest first; none that share too little.
#[must_use]
pub fn near(table: &'static [Row], name: &str, count: usize) -> Vec<&'static str> {
    let wanted = name.trim().to_ascii_lowercase();
    let short = wanted.rsplit('/').next().unwrap_or(&wanted).to_owned();
    let mut scored: Vec<(f64, &'static str)> = table
        .iter()
        .flat_map(|(_, names, _)| names.iter())
        .map(|candidate| {
            let lower = candidate.to_ascii_lowercase();
            let tail = lower.rsplit('/').next().unwrap_or(&lower);
            let score =
                strsim::jaro_winkler(&wanted, &lower).max(strsim::jaro_winkler(&short, tail));
            (score, *candidate)
        })
        .filter(|(score, _)| *score > 0.75)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(count).map(|(_, name)| name).collect()
}
