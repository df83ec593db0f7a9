//! Module name patterns of quantisation settings: plain names, globs (`*`) and `re:` expressions.
//!
//! A plain name matches a module when its dotted parts stand in the module's name in one piece.
//! Matching is bounded: an expression that needs too many steps does not match.

use std::collections::BTreeMap;

/// Steps after which an expression gives up.
const BUDGET: u32 = 20_000;
/// Longest pattern that is looked at, in characters.
const LONGEST: usize = 400;

/// One pattern.
#[derive(Clone, PartialEq, Debug)]
pub struct Pattern(Form);

/// Patterns with a value each. Plain names and `name*`, of which checkpoints have hundreds, are
/// found by look-up; the others one after another, in the order in which they were added.
#[derive(Clone, PartialEq, Debug)]
pub struct PatternMap<T> {
    plain: BTreeMap<String, T>,
    prefixes: BTreeMap<String, T>,
    others: Vec<(Pattern, T)>,
}

impl<T> Default for PatternMap<T> {
    fn default() -> Self {
        Self { plain: BTreeMap::new(), prefixes: BTreeMap::new(), others: Vec::new() }
    }
}

impl<T: Copy> PatternMap<T> {
    /// Adds a pattern; the first of equal ones stays.
    pub fn insert(&mut self, text: &str, value: T) {
        let pattern = Pattern::new(text);
        match pattern.0 {
            Form::Nothing => {}
            Form::Plain(name) => {
                self.plain.entry(name).or_insert(value);
            }
            Form::Glob(glob) => match glob.strip_suffix('*') {
                Some(prefix) if !prefix.contains(['*', '?']) => {
                    self.prefixes.entry(prefix.to_owned()).or_insert(value);
                }
                _ => self.others.push((Pattern(Form::Glob(glob)), value)),
            },
            form @ Form::Expression(_) => self.others.push((Pattern(form), value)),
        }
    }

    /// The value of a pattern that `name` (normal form) falls under: plain names first, then
    /// prefixes, then the others.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<T> {
        self.plain_piece(name).or_else(|| self.prefix(name)).or_else(|| {
            self.others.iter().find(|(pattern, _)| pattern.matches(name)).map(|(_, v)| *v)
        })
    }

    fn plain_piece(&self, name: &str) -> Option<T> {
        if self.plain.is_empty() {
            return None;
        }
        let dots: Vec<usize> = name.match_indices('.').map(|(at, _)| at).collect();
        let starts = std::iter::once(0).chain(dots.iter().map(|at| at + 1));
        starts
            .into_iter()
            .find_map(|start| {
                let ends = dots.iter().copied().chain(std::iter::once(name.len()));
                ends.filter(|end| *end > start).find_map(|end| self.plain.get(&name[start..end]))
            })
            .copied()
    }

    fn prefix(&self, name: &str) -> Option<T> {
        if self.prefixes.is_empty() {
            return None;
        }
        let ends = (0..=name.len()).filter(|end| name.is_char_boundary(*end));
        ends.into_iter().find_map(|end| self.prefixes.get(&name[..end])).copied()
    }

    /// Whether there is no pattern.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.prefixes.is_empty() && self.others.is_empty()
    }
}

#[derive(Clone, PartialEq, Debug)]
enum Form {
    Plain(String),
    Glob(String),
    Expression(Vec<Vec<Node>>),
    Nothing,
}

#[derive(Clone, PartialEq, Debug)]
struct Node {
    atom: Atom,
    least: u32,
    most: u32,
}

#[derive(Clone, PartialEq, Debug)]
enum Atom {
    Any,
    One(u8),
    Class { ranges: Vec<(u8, u8)>, inverted: Inverted },
    Group(Vec<Vec<Node>>),
    Start,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inverted {
    No,
    Yes,
}

/// The name without the wrapper that multimodal checkpoints and other roots put before it.
#[must_use]
pub fn normal(name: &str) -> String {
    for (from, to) in [
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.", ""),
        ("backbone.", "model."),
    ] {
        if let Some(rest) = name.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    name.to_owned()
}

impl Pattern {
    /// Reads a pattern as compressed-tensors, modelopt and the fp8/awq/gptq settings write it. What
    /// cannot be read matches nothing.
    #[must_use]
    pub fn new(text: &str) -> Self {
        if text.is_empty() || text.chars().count() > LONGEST || !text.is_ascii() {
            return Self(Form::Nothing);
        }
        if let Some(expression) = text.strip_prefix("re:") {
            let parsed = Reader { text: expression.as_bytes(), at: 0, depth: 0 }.whole();
            return Self(parsed.map_or(Form::Nothing, Form::Expression));
        }
        let text = normal(text);
        Self(if text.contains('*') { Form::Glob(text) } else { Form::Plain(text) })
    }

    /// Whether the module `name` (normal form) falls under the pattern.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match &self.0 {
            Form::Nothing => false,
            Form::Plain(text) => in_one_piece(text, name),
            Form::Glob(text) => {
                let mut steps = BUDGET;
                glob(text.as_bytes(), name.as_bytes(), &mut steps)
                    || glob(format!("{text}.*").as_bytes(), name.as_bytes(), &mut steps)
            }
            Form::Expression(ways) => {
                // Checkpoints of multimodal models put a wrapper before the name; an expression
                // that starts with `.*` passes over it.
                let open = |nodes: &Vec<Node>| {
                    nodes.first().is_some_and(|n| n.atom == Atom::Any && n.most == u32::MAX)
                };
                let wrapped: &[&str] = match ways.iter().all(open) {
                    true => &[""],
                    false => &["", "language_model.", "model.language_"],
                };
                wrapped.iter().any(|w| {
                    let text = format!("{w}{name}");
                    let mut run = Run { text: text.as_bytes(), steps: BUDGET };
                    run.any(ways, 0, &mut |_, _| true)
                })
            }
        }
    }
}

/// Whether the dotted parts of `part` stand in `name` next to each other.
fn in_one_piece(part: &str, name: &str) -> bool {
    name.match_indices(part).any(|(at, found)| {
        let end = at + found.len();
        (at == 0 || name.as_bytes()[at - 1] == b'.')
            && (end == name.len() || name.as_bytes()[end] == b'.')
    })
}

/// `*` stands for any run of characters, `?` for one.
fn glob(pattern: &[u8], text: &[u8], steps: &mut u32) -> bool {
    *steps = steps.saturating_sub(1);
    if *steps == 0 {
        return false;
    }
    match pattern.first() {
        None => text.is_empty(),
        Some(b'*') => {
            let rest = &pattern[1..];
            (0..=text.len()).any(|skip| glob(rest, &text[skip..], steps))
        }
        Some(b'?') => !text.is_empty() && glob(&pattern[1..], &text[1..], steps),
        Some(c) => text.first() == Some(c) && glob(&pattern[1..], &text[1..], steps),
    }
}

/// Reads the subset of expressions that model files use.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl Reader<'_> {
    fn whole(&mut self) -> Option<Vec<Vec<Node>>> {
        let ways = self.ways()?;
        (self.at == self.text.len()).then_some(ways)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn ways(&mut self) -> Option<Vec<Vec<Node>>> {
        let mut ways = vec![Vec::new()];
        while let Some(c) = self.peek() {
            match c {
                b')' => break,
                b'|' => {
                    self.at += 1;
                    ways.push(Vec::new());
                }
                _ => {
                    let node = self.node()?;
                    ways.last_mut()?.push(node);
                }
            }
        }
        Some(ways)
    }

    fn node(&mut self) -> Option<Node> {
        let c = self.peek()?;
        self.at += 1;
        let atom = match c {
            b'.' => Atom::Any,
            b'^' => Atom::Start,
            b'$' => Atom::End,
            b'\\' => self.escape()?,
            b'[' => self.class()?,
            b'(' => self.group()?,
            b'*' | b'+' | b'?' | b'{' | b'}' | b']' => return None,
            other => Atom::One(other),
        };
        let (least, most) = match self.peek() {
            Some(b'*') => (0, u32::MAX),
            Some(b'+') => (1, u32::MAX),
            Some(b'?') => (0, 1),
            Some(b'{') => return None,
            _ => return Some(Node { atom, least: 1, most: 1 }),
        };
        self.at += 1;
        // A lazy mark changes which match is found, not whether there is one.
        if self.peek() == Some(b'?') {
            self.at += 1;
        }
        Some(Node { atom, least, most })
    }

    fn escape(&mut self) -> Option<Atom> {
        let c = self.peek()?;
        self.at += 1;
        Some(match c {
            b'd' => Atom::Class { ranges: vec![(b'0', b'9')], inverted: Inverted::No },
            b'w' => {
                let ranges = vec![(b'0', b'9'), (b'a', b'z'), (b'A', b'Z'), (b'_', b'_')];
                Atom::Class { ranges, inverted: Inverted::No }
            }
            c if c.is_ascii_alphanumeric() => return None,
            c => Atom::One(c),
        })
    }

    fn class(&mut self) -> Option<Atom> {
        let mut inverted = Inverted::No;
        if self.peek() == Some(b'^') {
            inverted = Inverted::Yes;
            self.at += 1;
        }
        let mut ranges = Vec::new();
        loop {
            let c = self.peek()?;
            self.at += 1;
            if c == b']' {
                return Some(Atom::Class { ranges, inverted });
            }
            let dash = self.peek() == Some(b'-');
            match self.text.get(self.at + 1) {
                Some(&end) if dash && end != b']' => {
                    ranges.push((c, end));
                    self.at += 2;
                }
                _ => ranges.push((c, c)),
            }
        }
    }

    fn group(&mut self) -> Option<Atom> {
        if self.text[self.at..].starts_with(b"?:") {
            self.at += 2;
        } else if self.peek() == Some(b'?') {
            return None;
        }
        self.depth += 1;
        if self.depth > 8 {
            return None;
        }
        let ways = self.ways()?;
        self.depth -= 1;
        if self.peek()? != b')' {
            return None;
        }
        self.at += 1;
        Some(Atom::Group(ways))
    }
}

/// A match from the start of the text, with what must follow given as a continuation.
struct Run<'a> {
    text: &'a [u8],
    steps: u32,
}

type Then<'t> = dyn FnMut(&mut Run<'_>, usize) -> bool + 't;

impl Run<'_> {
    fn spend(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    fn any(&mut self, ways: &[Vec<Node>], at: usize, then: &mut Then<'_>) -> bool {
        ways.iter().any(|nodes| self.sequence(nodes, at, then))
    }

    fn sequence(&mut self, nodes: &[Node], at: usize, then: &mut Then<'_>) -> bool {
        if !self.spend() {
            return false;
        }
        let Some((node, rest)) = nodes.split_first() else { return then(self, at) };
        match &node.atom {
            Atom::Group(ways) => self.group(ways, node, rest, (at, 0), then),
            Atom::Start => at == 0 && self.sequence(rest, at, then),
            Atom::End => at == self.text.len() && self.sequence(rest, at, then),
            atom => {
                let most = self.run_length(atom, at, node.most);
                let least = node.least as usize;
                (least..=most).rev().any(|n| self.sequence(rest, at + n, then))
            }
        }
    }

    /// `(at, count)`: position, and how often the group has matched so far.
    fn group(
        &mut self,
        ways: &[Vec<Node>],
        node: &Node,
        rest: &[Node],
        (at, count): (usize, u32),
        then: &mut Then<'_>,
    ) -> bool {
        if !self.spend() {
            return false;
        }
        // Depth is bounded by the text: each further round must have moved on.
        if count < node.most {
            for nodes in ways {
                let matched = self.sequence(nodes, at, &mut |run, end| {
                    (end > at || count < node.least)
                        && count < 64
                        && run.group(ways, node, rest, (end, count + 1), then)
                });
                if matched {
                    return true;
                }
            }
        }
        count >= node.least && self.sequence(rest, at, then)
    }

    fn run_length(&self, atom: &Atom, at: usize, most: u32) -> usize {
        let limit = usize::try_from(most).unwrap_or(usize::MAX);
        let tail = self.text.get(at..).unwrap_or_default();
        tail.iter().take(limit).take_while(|c| fits(atom, **c)).count()
    }
}

fn fits(atom: &Atom, c: u8) -> bool {
    match atom {
        Atom::Any => true,
        Atom::One(one) => *one == c,
        Atom::Class { ranges, inverted } => {
            let inside = ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
            inside != (*inverted == Inverted::Yes)
        }
        Atom::Group(_) | Atom::Start | Atom::End => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(pattern: &str, name: &str) -> bool {
        let mut map = PatternMap::default();
        map.insert(pattern, ());
        let found = map.get(name).is_some();
        assert_eq!(found, Pattern::new(pattern).matches(name), "look-up and match differ");
        found
    }

    #[test]
    fn plain_names_match_whole_parts() {
        assert!(hit("gate", "model.layers.3.block_sparse_moe.gate"));
        assert!(!hit("gate", "model.layers.3.mlp.gate_proj"));
        assert!(hit("model.layers.3.mlp", "model.layers.3.mlp.up_proj"));
        assert!(!hit("model.layers.3", "model.layers.30.mlp.up_proj"));
        assert!(hit("backbone.layers.4.mixer.in_proj", "model.layers.4.mixer.in_proj"));
    }

    #[test]
    fn globs_match_wrapped_names_and_below() {
        assert!(hit("language_model.model.layers.0*", "model.layers.0.mlp.up_proj"));
        assert!(hit("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj"));
        assert!(!hit("model.layers.*.self_attn", "model.layers.7.mlp.router"));
        assert!(hit("*.mlp.shared_expert.*", "model.layers.1.mlp.shared_expert.up_proj"));
    }

    #[test]
    fn expressions_match_from_the_start() {
        let dense = r"re:.*mlp\.(gate|up|gate_up|down)_proj.*";
        assert!(hit(dense, "model.layers.0.mlp.gate_up_proj"));
        assert!(!hit(dense, "model.layers.0.mlp.experts.0.gate_proj"));
        assert!(hit("re:.*self_attn.*", "model.layers.0.self_attn.q_proj"));
        assert!(hit(
            r"re:^model\.layers\.[0-3]\.(?:self_attn|mlp)\.",
            "model.layers.2.mlp.up_proj"
        ));
        assert!(!hit(r"re:model\.layers\.\d\.mlp$", "model.layers.2.mlp.up_proj"));
        assert!(hit(r"re:(a|b)+\.c", "abba.c"));
    }

    #[test]
    fn hostile_expressions_end() {
        assert!(!hit("re:(a*)*b", &"a".repeat(200)));
        assert!(!hit("re:(((((((((((a", "a"));
        assert!(!hit("re:[", "a"));
        assert!(!hit(&format!("{}b", "*a".repeat(100)), &"a".repeat(200)));
    }
}
