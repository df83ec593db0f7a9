//! A list of free numbers, taken and returned at either end, kept as runs.

use std::collections::VecDeque;

use super::runs::{Run, Runs};

/// Free slots, pages or rows in the order in which they will be taken. A fresh list of any length is
/// one run.
#[derive(Clone, Default, Debug)]
pub struct FreeList {
    runs: VecDeque<Run>,
    len: u64,
}

impl FreeList {
    /// `first, first + 1, …`, `len` of them.
    #[must_use]
    pub fn new(first: u64, len: u64) -> Self {
        let runs = (len > 0).then_some(Run { first, len }).into_iter().collect();
        Self { runs, len }
    }

    /// How many are free.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether none is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The runs in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().copied()
    }

    /// Takes the first `count`; `None` (and nothing taken) where there are fewer.
    pub fn take_front(&mut self, count: u64) -> Option<Runs> {
        if count > self.len {
            return None;
        }
        self.len -= count;
        let (mut out, mut left) = (Runs::new(), count);
        while left > 0 {
            let front = self.runs.front_mut()?;
            let take = front.len.min(left);
            out.push(Run { first: front.first, len: take });
            front.first += take;
            front.len -= take;
            left -= take;
            if front.len == 0 {
                self.runs.pop_front();
            }
        }
        Some(out)
    }

    /// Takes the last `count`, in list order; `None` (and nothing taken) where there are fewer.
    pub fn take_back(&mut self, count: u64) -> Option<Runs> {
        self.len = self.len.checked_sub(count)?;
        let (mut tail, mut left) = (VecDeque::new(), count);
        while left > 0 {
            let back = self.runs.back_mut()?;
            let take = back.len.min(left);
            back.len -= take;
            tail.push_front(Run { first: back.first + back.len, len: take });
            left -= take;
            if back.len == 0 {
                self.runs.pop_back();
            }
        }
        Some(tail.into_iter().collect())
    }

    /// Returns `freed` behind the last, in its order.
    pub fn push_back(&mut self, freed: &Runs) {
        self.len += freed.len();
        for run in freed.runs() {
            match self.runs.back_mut() {
                Some(back) if back.first + back.len == run.first => back.len += run.len,
                _ => self.runs.push_back(*run),
            }
        }
    }

    /// Returns `freed` before the first, in its order.
    pub fn push_front(&mut self, freed: &Runs) {
        self.len += freed.len();
        for run in freed.runs().iter().rev() {
            match self.runs.front_mut() {
                Some(front) if run.first + run.len == front.first => {
                    front.first = run.first;
                    front.len += run.len;
                }
                _ => self.runs.push_front(*run),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(list: &FreeList) -> Vec<u64> {
        list.runs().collect::<Runs>().values().collect()
    }

    proptest! {
        #[test]
        fn a_list_behaves_like_a_deque(ops in proptest::collection::vec((0_u8..4, 0_u64..8), 0..60)) {
            let mut list = FreeList::new(1, 20);
            let mut model: VecDeque<u64> = (1..=20).collect();
            let mut held: Vec<u64> = Vec::new();
            for (op, count) in ops {
                let n = usize::try_from(count).unwrap();
                match op {
                    0 | 1 => {
                        let got = if op == 0 { list.take_front(count) } else { list.take_back(count) };
                        let fits = n <= model.len();
                        prop_assert_eq!(got.is_some(), fits);
                        if fits {
                            let from = if op == 0 { 0 } else { model.len() - n };
                            let expected: Vec<u64> = model.drain(from..from + n).collect();
                            let got: Vec<u64> = got.unwrap().values().collect();
                            prop_assert_eq!(&got, &expected);
                            held.extend(got);
                        }
                    }
                    _ => {
                        let n = n.min(held.len());
                        let back = held.split_off(held.len() - n);
                        let freed: Runs = back.iter().copied().collect();
                        if op == 2 {
                            list.push_back(&freed);
                            model.extend(back);
                        } else {
                            list.push_front(&freed);
                            back.into_iter().rev().for_each(|value| model.push_front(value));
                        }
                    }
                }
                prop_assert_eq!(values(&list), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(list.len(), model.len() as u64);
            }
        }
    }
}
