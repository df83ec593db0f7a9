//! What a step reads beside activations: ids, positions, page tables, tiles, draws. All of it has a fixed
//! place in one pinned buffer and in one region of the device, so a step is one or two copies up.

use super::options::CudaOptions;
use plimsoll_core::tape::own::{Draw, Sequence};

/// Every part begins at a multiple of this, in bytes.
const ALIGNMENT: u64 = 256;
/// Rows of a tile of prefill attention at most.
pub(crate) const TILE_ROWS: usize = 64;
/// 32-bit words of a draw on the device: temperature, top-k, top-p, min-p, and the unit in double precision.
const DRAW_WORDS: usize = 6;
/// 32-bit words of a tile: first row, rows, sequence, position of the first row.
const TILE_WORDS: usize = 4;
/// Pairs of pages that one launch copies.
pub(crate) const PAIRS_MAX: usize = 64;
/// 32-bit words of a pair: two numbers of 64 bits.
const PAIR_WORDS: usize = 4;

/// Consecutive 32-bit words of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// First word.
    pub(crate) at: usize,
    /// Words.
    pub(crate) len: usize,
}

impl Part {
    /// Offset in bytes.
    pub(crate) const fn offset(self) -> u64 {
        self.at as u64 * 4
    }

    /// Length in bytes.
    pub(crate) const fn bytes(self) -> u64 {
        self.len as u64 * 4
    }

    fn of(self, words: &mut [u32]) -> &mut [u32] {
        words.get_mut(self.at..self.at + self.len).unwrap_or_default()
    }
}

/// The places of the largest step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InputLayout {
    /// Token ids by row.
    pub(crate) tokens: Part,
    /// Positions by row; -1 is padding.
    pub(crate) positions: Part,
    /// Sequences by row.
    pub(crate) seq_of: Part,
    /// Rows by output.
    pub(crate) outputs: Part,
    /// First entry of a sequence's table.
    pub(crate) table_start: Part,
    /// Tiles of prefill attention.
    pub(crate) tiles: Part,
    /// Draws by output.
    pub(crate) draws: Part,
    /// Page tables, one after the other; behind the other inputs, of which only what is used goes up.
    pub(crate) tables: Part,
    /// Block numbers of copies between pages: 64 bits each.
    pub(crate) pairs: Part,
    /// Tokens that the device chooses, by output; only on the device.
    pub(crate) chosen: Part,
    /// Words before the tables.
    pub(crate) head: usize,
    /// Positions of a page.
    page_tokens: u64,
}

impl InputLayout {
    /// For the largest step.
    pub(crate) fn new(options: &CudaOptions) -> Self {
        let mut at = 0_usize;
        let mut part = |len: usize| {
            let start = at.next_multiple_of(ALIGNMENT as usize / 4);
            at = start + len;
            Part { at: start, len }
        };
        let limits = options.settings.limits;
        let (tokens, outputs) = (limits.tokens as usize, limits.outputs as usize);
        let sequences = options.settings.max_running_requests as usize;
        let pages = options.settings.context_length.div_ceil(options.page_tokens.max(1)) as usize;
        let mut layout = Self {
            tokens: part(tokens),
            positions: part(tokens),
            seq_of: part(tokens),
            outputs: part(outputs),
            table_start: part(sequences),
            tiles: part((tokens / TILE_ROWS + sequences) * TILE_WORDS),
            draws: part(outputs * DRAW_WORDS),
            tables: part(sequences.saturating_mul(pages)),
            pairs: part(PAIRS_MAX * PAIR_WORDS),
            chosen: part(outputs),
            head: 0,
            page_tokens: options.page_tokens.max(1),
        };
        layout.head = layout.tables.at;
        layout
    }

    /// Bytes of all of it.
    pub(crate) const fn bytes(&self) -> u64 {
        self.chosen.offset() + self.chosen.bytes()
    }

    /// Most entries of page tables.
    pub(crate) const fn tables_max(&self) -> usize {
        self.tables.len
    }

    /// Words of page tables that the sequences use.
    pub(crate) fn table_words(&self, sequences: &[Sequence<'_>]) -> usize {
        sequences.iter().map(|sequence| self.pages(sequence)).sum()
    }

    fn pages(&self, sequence: &Sequence<'_>) -> usize {
        let all = sequence.before + sequence.tokens.len();
        all.div_ceil(self.page_tokens as usize)
    }

    /// Writes a step whose sequences are checked and within the layout. `padded` is the batch of the graph
    /// that runs it: rows and outputs beyond the step's own are padding.
    pub(crate) fn write(
        &self,
        words: &mut [u32],
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        padded: Option<usize>,
    ) -> Written {
        let rows = self.write_rows(words, sequences);
        let outputs = self.write_outputs(words, sequences);
        let tables = self.write_tables(words, sequences);
        let decode = sequences.iter().all(|sequence| sequence.tokens.len() == 1);
        let tiles = if decode { 0 } else { self.write_tiles(words, sequences) };
        let all_draws = draws.iter().copied().chain(std::iter::repeat(None));
        let width = padded.unwrap_or(outputs);
        let places = self.draws.of(words).chunks_exact_mut(DRAW_WORDS);
        for (place, draw) in places.zip(all_draws).take(width) {
            place.copy_from_slice(&draw_words(draw));
        }
        if let Some(batch) = padded {
            self.pad(words, (rows, outputs), batch);
        }
        Written {
            rows: padded.unwrap_or(rows),
            outputs: width,
            asked: outputs,
            tiles,
            decode,
            tables,
        }
    }

    fn write_rows(&self, words: &mut [u32], sequences: &[Sequence<'_>]) -> usize {
        let mut at = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let end = at + sequence.tokens.len();
            if let Some(ids) = self.tokens.of(words).get_mut(at..end) {
                ids.copy_from_slice(sequence.tokens);
            }
            let positions = self.positions.of(words).get_mut(at..end).unwrap_or_default();
            for (position, place) in (sequence.before as u32..).zip(positions) {
                *place = position;
            }
            self.seq_of.of(words).get_mut(at..end).unwrap_or_default().fill(index as u32);
            at = end;
        }
        at
    }

    fn write_outputs(&self, words: &mut [u32], sequences: &[Sequence<'_>]) -> usize {
        let places = self.outputs.of(words);
        let (mut row, mut outputs) = (0_usize, 0_usize);
        for sequence in sequences {
            row += sequence.tokens.len();
            for output in row - sequence.output_rows()..row {
                if let Some(place) = places.get_mut(outputs) {
                    *place = output as u32;
                }
                outputs += 1;
            }
        }
        outputs
    }

    fn write_tables(&self, words: &mut [u32], sequences: &[Sequence<'_>]) -> usize {
        let mut at = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            if let Some(start) = self.table_start.of(words).get_mut(index) {
                *start = at as u32;
            }
            let table = sequence.table.get(..self.pages(sequence)).unwrap_or_default();
            if let Some(places) = self.tables.of(words).get_mut(at..at + table.len()) {
                places.copy_from_slice(table);
            }
            at += table.len();
        }
        at
    }

    fn write_tiles(&self, words: &mut [u32], sequences: &[Sequence<'_>]) -> usize {
        let (mut tiles, mut row) = (0, 0);
        let mut places = self.tiles.of(words).chunks_exact_mut(TILE_WORDS);
        for (index, sequence) in sequences.iter().enumerate() {
            let new = sequence.tokens.len();
            for start in (0..new).step_by(TILE_ROWS) {
                let rows = TILE_ROWS.min(new - start);
                let tile = [row + start, rows, index, sequence.before + start];
                if let Some(place) = places.next() {
                    place.copy_from_slice(&tile.map(|number| number as u32));
                    tiles += 1;
                }
            }
            row += new;
        }
        tiles
    }

    /// Writes pairs of pages, at most [`PAIRS_MAX`]; answers how many.
    pub(crate) fn write_pairs(
        &self,
        words: &mut [u32],
        pairs: impl Iterator<Item = (u32, u32)>,
    ) -> usize {
        let places = self.pairs.of(words).chunks_exact_mut(PAIR_WORDS);
        let written = places.zip(pairs).map(|(place, (from, to))| {
            place.copy_from_slice(&[from, 0, to, 0]);
        });
        written.count()
    }

    /// Padding of a graph's batch: a row without a position, whose token is the first of the vocabulary; an
    /// output of the first row, which nobody reads.
    fn pad(&self, words: &mut [u32], (rows, outputs): (usize, usize), batch: usize) {
        for (part, value) in [(self.tokens, 0), (self.positions, u32::MAX), (self.seq_of, 0)] {
            part.of(words).get_mut(rows..batch).unwrap_or_default().fill(value);
        }
        self.outputs.of(words).get_mut(outputs..batch).unwrap_or_default().fill(0);
    }
}

/// A row whose logits come to the host is drawn greedily too, which nobody reads.
fn draw_words(draw: Option<Draw>) -> [u32; DRAW_WORDS] {
    let Some(draw) = draw else { return [0; DRAW_WORDS] };
    let unit = draw.unit.to_bits();
    [
        draw.temperature.to_bits(),
        draw.top_k.min(i32::MAX as u32),
        draw.top_p.to_bits(),
        draw.min_p.to_bits(),
        unit as u32,
        (unit >> 32) as u32,
    ]
}

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    /// Rows that the kernels run over, padding included.
    pub(crate) rows: usize,
    /// Rows of logits, padding included.
    pub(crate) outputs: usize,
    /// Outputs that were asked for.
    pub(crate) asked: usize,
    /// Tiles; 0 for a decode step.
    pub(crate) tiles: usize,
    /// Whether each sequence has one new token.
    pub(crate) decode: bool,
    /// Words of the page tables.
    pub(crate) tables: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::{
        policy::plimsoll::Settings,
        tape::own::{Outputs, StepLimits},
    };
    use proptest::prelude::*;

    const MOST: usize = 300;

    fn options(sequences: u64, page_tokens: u64) -> CudaOptions {
        let limits = StepLimits { tokens: MOST as u64, outputs: MOST as u64 };
        let settings = Settings {
            max_running_requests: sequences,
            chunked_prefill_size: 64,
            context_length: 512,
            limits,
        };
        CudaOptions::new(settings, page_tokens)
    }

    #[test]
    fn parts_do_not_overlap() {
        let layout = InputLayout::new(&options(7, 16));
        let parts = [
            layout.tokens,
            layout.positions,
            layout.seq_of,
            layout.outputs,
            layout.table_start,
            layout.tiles,
            layout.draws,
            layout.tables,
            layout.pairs,
            layout.chosen,
        ];
        for pair in parts.windows(2) {
            assert!(pair[0].at + pair[0].len <= pair[1].at);
            assert!(pair[1].offset().is_multiple_of(ALIGNMENT));
        }
        assert_eq!((layout.tables.len, layout.head), (7 * 32, layout.tables.at));
        assert_eq!(layout.bytes(), layout.chosen.offset() + MOST as u64 * 4);
    }

    #[test]
    fn a_decode_step_is_padded_to_its_graph() {
        let layout = InputLayout::new(&options(7, 16));
        let mut words = vec![9; layout.bytes() as usize / 4];
        let draw = Draw { temperature: 0.5, top_k: 3, top_p: 0.9, min_p: 0.1, unit: 0.25 };
        let table = [4, 5];
        let one = Sequence { tokens: &[7], table: &table, before: 20, outputs: Outputs::Last };
        let silent = Sequence { outputs: Outputs::None, before: 3, ..one };
        let written = layout.write(&mut words, &[silent, one], &[Some(draw)], Some(4));
        let expected = Written { rows: 4, outputs: 4, asked: 1, tiles: 0, decode: true, tables: 3 };
        assert_eq!(written, expected);
        let part = |part: Part| &words[part.at..part.at + 4];
        assert_eq!(part(layout.tokens), [7, 7, 0, 0]);
        assert_eq!(part(layout.positions), [3, 20, u32::MAX, u32::MAX]);
        assert_eq!(part(layout.seq_of), [0, 1, 0, 0]);
        assert_eq!(part(layout.outputs), [1, 0, 0, 0]);
        assert_eq!(part(layout.table_start)[..2], [0, 1]);
        assert_eq!(part(layout.tables)[..3], [4, 4, 5]);
        let draws = &words[layout.draws.at..][..12];
        let unit = 0.25_f64.to_bits();
        assert_eq!(draws[..4], [0.5_f32.to_bits(), 3, 0.9_f32.to_bits(), 0.1_f32.to_bits()]);
        assert_eq!(u64::from(draws[4]) | u64::from(draws[5]) << 32, unit);
        assert_eq!(draws[6..], [0; 6]);
    }

    proptest! {
        /// Tiles are the rows of the step in order, each of one sequence and at most 64 long.
        #[test]
        fn tiles_cover_the_rows(
            lengths in prop::collection::vec((1_usize..100, 0_usize..200), 1..7),
        ) {
            let total: usize = lengths.iter().map(|(new, _)| new).sum();
            prop_assume!(total <= MOST && lengths.iter().any(|(new, _)| *new > 1));
            let tokens: Vec<u32> = (0..MOST as u32).collect();
            let table: Vec<u32> = (0..64).collect();
            let sequences: Vec<Sequence<'_>> = lengths.iter().map(|(new, before)| Sequence {
                tokens: &tokens[..*new], table: &table, before: *before, outputs: Outputs::Last,
            }).collect();
            let layout = InputLayout::new(&options(7, 8));
            let mut words = vec![0; layout.bytes() as usize / 4];
            let written = layout.write(&mut words, &sequences, &[], None);
            prop_assert_eq!((written.rows, written.outputs), (total, lengths.len()));
            prop_assert!(!written.decode);
            prop_assert_eq!(written.tables, layout.table_words(&sequences));
            let (mut row, mut last) = (0_u32, 0);
            for tile in words[layout.tiles.at..].chunks_exact(4).take(written.tiles) {
                let [first, rows, sequence, position] = *<&[u32; 4]>::try_from(tile).unwrap();
                prop_assert_eq!(first, row);
                prop_assert!((1..=64).contains(&rows) && sequence >= last);
                for row in first..first + rows {
                    prop_assert_eq!(words[layout.seq_of.at + row as usize], sequence);
                    let at = words[layout.positions.at + row as usize];
                    prop_assert_eq!(at, position + row - first);
                }
                (row, last) = (first + rows, sequence);
            }
            prop_assert_eq!(row as usize, total);
        }
    }
}
