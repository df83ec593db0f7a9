//! A model under the engine's loop.

use std::time::Instant;

use plimsoll_core::{
    engine::live::{Body, BodyError, LiveRow},
    kv::Runs,
    sched::Made,
    tape::own::{Draw, Outputs, Sequence},
    units::Nanos,
};

use super::{
    asked::Desk,
    model::{Chosen, Model},
};

/// A model, its clock, and who wants its tokens.
pub(super) struct ModelBody<'a> {
    model: &'a mut dyn Model,
    desk: &'a Desk,
    ready: Instant,
    page_size: u64,
    /// Token ids, pages and draws of the rows, one after the other; their room is kept.
    tokens: Vec<u32>,
    tables: Vec<u32>,
    draws: Vec<Option<Draw>>,
}

impl<'a> ModelBody<'a> {
    pub(super) fn new(model: &'a mut dyn Model, desk: &'a Desk, page_size: u64) -> Self {
        let (tokens, tables, draws) = (Vec::new(), Vec::new(), Vec::new());
        Self { model, desk, ready: Instant::now(), page_size, tokens, tables, draws }
    }

    /// Lays out what the rows bring to a step.
    fn lay_out(&mut self, rows: &[LiveRow<'_>]) {
        self.tokens.clear();
        self.tables.clear();
        self.draws.clear();
        let draws = self.model.draws();
        for row in rows {
            add_tokens(row, &mut self.tokens);
            add_pages(row.slots, self.page_size, &mut self.tables);
            if row.samples {
                self.draws.push(if draws { self.desk.draw(row.request) } else { None });
            }
        }
    }
}

/// Adds the ids of a pass's new tokens.
fn add_tokens(row: &LiveRow<'_>, tokens: &mut Vec<u32>) {
    let mut cursor = row.ids.range(row.prefix, row.prefix + row.extend);
    while let Some(run) = cursor.head() {
        tokens.extend((run.first..run.first + run.len).map(|id| id as u32));
        cursor.advance(run.len);
    }
}

/// Adds the model's number of each page that the slots lie in: the scheduler's page 0 is a dummy.
fn add_pages(slots: &Runs, page: u64, table: &mut Vec<u32>) {
    let mut at = 0_u64;
    for run in slots.runs() {
        let mut next = at.next_multiple_of(page) - at;
        while next < run.len {
            table.push(((run.first + next) / page).saturating_sub(1) as u32);
            next += page;
        }
        at += run.len;
    }
}

impl Body for ModelBody<'_> {
    fn now(&mut self) -> Nanos {
        Nanos(u64::try_from(self.ready.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn step(&mut self, rows: &[LiveRow<'_>], made: &mut Vec<Made>) -> Result<(), BodyError> {
        self.lay_out(rows);
        let (mut tokens, mut tables) = (self.tokens.as_slice(), self.tables.as_slice());
        let sequences = rows.iter().map(|row| {
            let pages = row.slots.len().div_ceil(self.page_size) as usize;
            let (mine, others) = tokens.split_at((row.extend as usize).min(tokens.len()));
            let (table, rest) = tables.split_at(pages.min(tables.len()));
            (tokens, tables) = (others, rest);
            let outputs = if row.samples { Outputs::Last } else { Outputs::None };
            Sequence { tokens: mine, table, before: row.prefix as usize, outputs }
        });
        let sequences: Vec<Sequence<'_>> = sequences.collect();
        let mut sampled = rows.iter().filter(|row| row.samples).map(|row| row.request);
        let desk = self.desk;
        self.model.step(&sequences, &self.draws, &mut |chosen| {
            let Some(request) = sampled.next() else { return };
            made.push(match chosen {
                Chosen::Token(token) => desk.drawn(request, token),
                Chosen::Logits(logits) => desk.choose(request, logits),
            });
        })?;
        match sampled.count() {
            0 => Ok(()),
            missing => Err(BodyError::Failed(format!("{missing} rows of a step came to nothing"))),
        }
    }

    fn lend(&mut self, pages: &Runs) -> Result<(), BodyError> {
        pages.values().try_for_each(|page| self.model.lend(page.saturating_sub(1) as u32))
    }

    fn take_back(&mut self, pages: &Runs) -> Result<(), BodyError> {
        for (done, page) in pages.values().enumerate() {
            if let Err(error) = self.model.take_back(page.saturating_sub(1) as u32) {
                // All or nothing: what was taken goes again.
                for page in pages.values().take(done) {
                    self.model.lend(page.saturating_sub(1) as u32)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::kv::Run;

    #[test]
    fn pages_of_slots_that_are_scattered() {
        // Pages 5, 6 and 2 of four slots, the last one half full.
        let slots: Runs =
            [Run { first: 20, len: 8 }, Run { first: 8, len: 2 }].into_iter().collect();
        let mut table = Vec::new();
        add_pages(&slots, 4, &mut table);
        assert_eq!(table, [4, 5, 1]);
        let mut table = Vec::new();
        add_pages(&slots, 1, &mut table);
        assert_eq!(table, [19, 20, 21, 22, 23, 24, 25, 26, 7, 8]);
    }
}
