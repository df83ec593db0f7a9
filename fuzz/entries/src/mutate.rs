//! Mutations for the smoke test: small, seeded, the same on every machine.

/// A source of numbers from a seed (SplitMix64; Steele, Lea, Flood 2014).
#[derive(Clone, Copy, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of a seed and a name: each target has its own.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, so that names that are alike start far apart.
        let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.next().checked_rem(end as u64).unwrap_or(0) as usize
    }

    /// One of `choices`; `None` when there is none.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}

/// Longest input that a mutation makes, bytes.
const LONGEST: usize = 1 << 16;

/// Texts at which readers of numbers, quotes and encodings are weak.
const AWKWARD: &[&str] = &[
    "0",
    "-1",
    "1e309",
    "-0.0",
    "nan",
    "inf",
    "0x10",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "1_000",
    "1,000",
    "0.999999999999999999",
    "\"",
    "'",
    "\\",
    "\n",
    "\r\n",
    "\t",
    "\u{0}",
    "\u{7f}",
    "\u{85}",
    "\u{feff}",
    "\u{2028}",
    "é",
    "漢",
    "𝛑",
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    "#",
    "=",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "|\n",
    ">\n",
    "$(",
    "${A:-",
    "`",
    ";",
    "&&",
    "null",
    "true",
    "~",
    "%%\n",
];

/// One to five mutations of `input`: bytes flipped, removed, cut off, doubled, numbers moved, words of
/// the format and awkward texts put in, a piece of `other` put in.
#[must_use]
pub fn mutate(numbers: &mut Numbers, input: &[u8], other: &[u8], words: &[&str]) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=numbers.below(5) {
        once(numbers, &mut out, other, words);
        out.truncate(LONGEST);
    }
    out
}

fn once(numbers: &mut Numbers, out: &mut Vec<u8>, other: &[u8], words: &[&str]) {
    let at = numbers.below(out.len() + 1);
    match numbers.below(10) {
        0 => {
            if let Some(byte) = out.get_mut(at) {
                *byte ^= 1 << numbers.below(8);
            }
        }
        1 => {
            let from = at.min(out.len());
            let to = (from + 1 + numbers.below(24)).min(out.len());
            out.drain(from..to);
        }
        2 => out.truncate(at),
        3 => double(numbers, out, at),
        4 => number(numbers, out, at),
        5 => swap_lines(numbers, out),
        6 => {
            let from = numbers.below(other.len());
            let to = (from + 1 + numbers.below(64)).min(other.len());
            insert(out, at, other.get(from..to).unwrap_or_default());
        }
        7 => {
            let word = numbers.choose(AWKWARD).copied().unwrap_or_default();
            insert(out, at, word.as_bytes());
        }
        8 => replace_token(numbers, out, at, words),
        _ => {
            let word = numbers.choose(words).copied().unwrap_or_default();
            insert(out, at, word.as_bytes());
        }
    }
}

fn insert(out: &mut Vec<u8>, at: usize, piece: &[u8]) {
    let at = at.min(out.len());
    out.splice(at..at, piece.iter().copied());
}

/// A piece twice, or rarely a great many times.
fn double(numbers: &mut Numbers, out: &mut Vec<u8>, at: usize) {
    let to = (at + 1 + numbers.below(40)).min(out.len());
    let piece = out.get(at..to).unwrap_or_default().to_vec();
    let times = if numbers.below(8) == 0 { 1 + numbers.below(2000) } else { 1 };
    insert(out, at, &piece.repeat(times));
}

/// The digits at or behind `at` give way to another number.
fn number(numbers: &mut Numbers, out: &mut Vec<u8>, at: usize) {
    let Some(from) = out.iter().skip(at).position(u8::is_ascii_digit).map(|n| n + at) else {
        return;
    };
    let digits = out.iter().skip(from).take_while(|b| b.is_ascii_digit()).count();
    let text = match numbers.below(4) {
        0 => numbers.below(3).to_string(),
        1 => (1_u64 << numbers.below(64)).to_string(),
        2 => (1_u64 << numbers.below(64)).wrapping_sub(1).to_string(),
        _ => numbers.below(100_000).to_string(),
    };
    out.splice(from..from + digits, text.into_bytes());
}

/// The word around `at` gives way to one that the format knows, or to an awkward one.
fn replace_token(numbers: &mut Numbers, out: &mut Vec<u8>, at: usize, words: &[&str]) {
    let inside = |b: &&u8| b.is_ascii_alphanumeric() || matches!(**b, b'_' | b'-' | b'.');
    let before = out.iter().take(at).rev().take_while(inside).count();
    let behind = out.iter().skip(at).take_while(inside).count();
    let list = if numbers.below(3) == 0 { AWKWARD } else { words };
    let word = numbers.choose(list).copied().unwrap_or_default();
    out.splice(at - before..at + behind, word.bytes());
}

fn swap_lines(numbers: &mut Numbers, out: &mut Vec<u8>) {
    let mut lines: Vec<&[u8]> = out.split_inclusive(|b| *b == b'\n').collect();
    let (a, b) = (numbers.below(lines.len()), numbers.below(lines.len()));
    if a < lines.len() && b < lines.len() {
        lines.swap(a, b);
    }
    *out = lines.concat();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_inputs_and_each_target_its_own() {
        let run = |seed, name| -> Vec<Vec<u8>> {
            let mut numbers = Numbers::new(seed, name);
            (0..50).map(|_| mutate(&mut numbers, b"tp: 8\npage: 1\n", b"x", &["dp"])).collect()
        };
        assert_eq!(run(1, "a"), run(1, "a"));
        assert_ne!(run(1, "a"), run(2, "a"));
        assert_ne!(run(1, "a"), run(1, "b"));
        let changed =
            run(1, "a").iter().filter(|out| out.as_slice() != b"tp: 8\npage: 1\n").count();
        assert!(changed > 40, "{changed} of 50 are mutated");
    }

    #[test]
    fn nothing_grows_without_end() {
        let mut numbers = Numbers::new(1, "long");
        let mut input = b"a: [1, 2]\n".repeat(100);
        for _ in 0..2000 {
            input = mutate(&mut numbers, &input, b"", &["word"]);
            assert!(input.len() <= LONGEST);
        }
        // Nothing to start from is an input too.
        let _ = mutate(&mut numbers, b"", b"", &[]);
    }
}
