//! The nearest name to one that is not known.

/// Edit distance: insertions, deletions, substitutions and swaps of neighbours, each one step.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(200).collect();
    let b: Vec<char> = b.chars().take(200).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// The candidate nearest to `name`, letter case ignored; the first of equals. `None` when none of
/// them shares more than `floor` percent of the longer name.
#[must_use]
pub fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    floor: usize,
) -> Option<&'a str> {
    let wanted = name.to_ascii_lowercase();
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let steps = distance(&wanted, &candidate.to_ascii_lowercase());
        let longer = wanted.chars().count().max(candidate.chars().count()).max(1);
        let shared = 100 - (steps * 100 / longer).min(100);
        if shared > floor && best.is_none_or(|(most, _)| shared > most) {
            best = Some((shared, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ignores_case_and_refuses_strangers() {
        let names = ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"];
        assert_eq!(nearest("LamaForCausalLM", names, 50), Some("LlamaForCausalLM"));
        assert_eq!(nearest("qwen4forcausallm", names, 50), Some("Qwen3ForCausalLM"));
        assert_eq!(nearest("zz", names, 50), None);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
