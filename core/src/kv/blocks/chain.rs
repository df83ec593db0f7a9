//! The prefixes of one sequence: one for each whole unit of its tokens.

use super::prefixes::{Content, Prefix, Prefixes};
use crate::kv::{Run, Runs};

/// Prefixes of a sequence that grows at its end.
#[derive(Clone, Debug)]
pub struct Chain {
    unit: u64,
    root: Prefix,
    prefixes: Vec<Prefix>,
    /// Tokens behind the last whole unit.
    tail: Runs,
}

impl Chain {
    /// The chain of a prompt, in units of `unit` tokens (at least 1). It costs by run and unit.
    #[must_use]
    pub fn new(names: &mut Prefixes, unit: u64, namespace: u64, prompt: &Runs) -> Self {
        let unit = unit.max(1);
        let root = names.root(namespace);
        let mut chain = Self { unit, root, prefixes: Vec::new(), tail: Runs::new() };
        let mut cursor = prompt.cursor();
        while cursor.left() >= unit {
            chain.grow(names, Content::read(cursor, unit));
            cursor.advance(unit);
        }
        chain.tail = cursor.rest();
        chain
    }

    /// Tokens of whole units.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.prefixes.len() as u64 * self.unit
    }

    /// Name of the first `tokens`, which are whole units and known.
    #[must_use]
    pub fn prefix(&self, tokens: u64) -> Option<Prefix> {
        let at = (tokens / self.unit).checked_sub(1)?;
        self.prefixes.get(usize::try_from(at).ok()?).copied()
    }

    /// Adds tokens at the end.
    pub fn push(&mut self, names: &mut Prefixes, run: Run) {
        self.tail.push(run);
        if self.tail.len() < self.unit {
            return;
        }
        let tail = std::mem::take(&mut self.tail);
        let mut cursor = tail.cursor();
        while cursor.left() >= self.unit {
            self.grow(names, Content::read(cursor, self.unit));
            cursor.advance(self.unit);
        }
        self.tail = cursor.rest();
    }

    /// Gives up what it holds.
    pub fn release(self, names: &mut Prefixes) {
        names.release(self.end());
    }

    fn end(&self) -> Prefix {
        self.prefixes.last().copied().unwrap_or(self.root)
    }

    fn grow(&mut self, names: &mut Prefixes, content: Content) {
        let next = names.extend(self.end(), content);
        self.prefixes.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(0_u64..3, 0..30)
    }

    proptest! {
        /// Names are equal where, and only where, the tokens up to there are.
        #[test]
        fn names_are_the_tokens(a in ids(), b in ids(), unit in 1_u64..5, cut in 0_usize..30) {
            let mut names = Prefixes::default();
            let runs = |ids: &[u64]| ids.iter().copied().collect::<Runs>();
            let cut = cut.min(a.len());
            // One sequence at once, the other grows token by token.
            let mut x = Chain::new(&mut names, unit, 0, &runs(&a[..cut]));
            for id in &a[cut..] {
                x.push(&mut names, Run { first: *id, len: 1 });
            }
            let y = Chain::new(&mut names, unit, 0, &runs(&b));
            let other = Chain::new(&mut names, unit, 1, &runs(&a));
            prop_assert_eq!(x.tokens(), a.len() as u64 / unit * unit);
            for at in (unit..=30).step_by(unit as usize) {
                let (p, q) = (x.prefix(at), y.prefix(at));
                let to = at as usize;
                let equal = to <= a.len() && to <= b.len() && a[..to] == b[..to];
                prop_assert_eq!(p.is_some() && p == q, equal);
                prop_assert!(p.is_none() || p != other.prefix(at), "namespaces are apart");
            }
            for chain in [x, other, y] {
                chain.release(&mut names);
            }
            prop_assert!(names.is_empty(), "what nobody holds is forgotten");
        }
    }
}
