//! Where the weights of a rank lie: one region, matrices of one projection under each other, so that one
//! product does them all.

use plimsoll_core::tape::own::{DecoderShape, Role, Split, WeightId};
use std::collections::BTreeMap;

/// Every group begins at a multiple of this: what the matrix library's algorithms are chosen for.
pub(crate) const ALIGNMENT: u64 = 256;
/// Bytes of a matrix's value in either arithmetic.
const MATRIX_BYTES: u64 = 2;
/// Bytes of a vector's value.
const VECTOR_BYTES: u64 = 4;

/// What stands under each other.
const GROUPS: [&[Role]; 4] = [
    &[Role::Query, Role::Key, Role::Value],
    &[Role::Gate, Role::Up],
    &[Role::QueryBias, Role::KeyBias, Role::ValueBias],
    &[Role::GateBias, Role::UpBias],
];

/// One weight of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// From the region's beginning, in bytes.
    pub(crate) offset: u64,
    /// Rows of the rank's part; 1 for a vector.
    pub(crate) rows: u64,
    /// Columns of the rank's part.
    pub(crate) columns: u64,
    /// Whether its values are of the arithmetic's type; float32 otherwise.
    pub(crate) matrix: bool,
}

impl Place {
    /// Bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        self.rows * self.columns * if self.matrix { MATRIX_BYTES } else { VECTOR_BYTES }
    }
}

/// A part of a weight as stored: which of its rows and columns a rank has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    /// First row.
    pub(crate) row: u64,
    /// First column.
    pub(crate) column: u64,
    /// The rank has zeros in its place.
    pub(crate) zeros: bool,
}

/// All weights of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WeightLayout {
    places: BTreeMap<WeightId, Place>,
    total: u64,
    rank: u64,
}

impl WeightLayout {
    /// Lays out what rank `rank` has; `own` is the shape of one rank. Only rank 0 has what makes logits.
    pub(crate) fn new(own: &DecoderShape, rank: u64) -> Self {
        let mut layout = Self { places: BTreeMap::new(), total: 0, rank };
        for id in own.weights() {
            let skipped = rank > 0 && matches!(id.role, Role::Head | Role::FinalNorm);
            let group = GROUPS.iter().find(|group| group.contains(&id.role));
            match group {
                _ if skipped => {}
                None => layout.group(own, id, &[id.role]),
                Some(group) if group[0] == id.role => layout.group(own, id, group),
                Some(_) => {}
            }
        }
        layout
    }

    fn group(&mut self, own: &DecoderShape, first: WeightId, roles: &[Role]) {
        self.total = self.total.next_multiple_of(ALIGNMENT);
        for role in roles {
            let id = WeightId { layer: first.layer, role: *role };
            let Some(extent) = own.extent(id) else { continue };
            let place = Place {
                offset: self.total,
                rows: extent.rows,
                columns: extent.columns,
                matrix: role.is_matrix(),
            };
            self.total += place.bytes();
            self.places.insert(id, place);
        }
    }

    /// Bytes of the region.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Where a weight lies; `None` for one that this rank does not have.
    pub(crate) fn place(&self, id: WeightId) -> Option<&Place> {
        self.places.get(&id)
    }

    /// Which part of the stored weight goes there.
    pub(crate) fn cut(&self, id: WeightId, place: &Place) -> Cut {
        let cut = Cut { row: 0, column: 0, zeros: false };
        match id.role.split() {
            Split::Whole => cut,
            Split::Rows if place.matrix => Cut { row: self.rank * place.rows, ..cut },
            // A bias is one row, and what is shared are its values.
            Split::Rows | Split::Columns => Cut { column: self.rank * place.columns, ..cut },
            Split::First => Cut { zeros: self.rank > 0, ..cut },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::tape::own::LayerShape;

    fn shape(biased: bool, tied: bool) -> DecoderShape {
        DecoderShape {
            vocab: 97,
            hidden: 40,
            layers: vec![LayerShape { intermediate: 36, window: None }; 2],
            q_heads: 4,
            kv_heads: 2,
            head_dim: 10,
            norm_eps: 1e-5,
            rope: vec![1.0; 5],
            tied,
            qkv_bias: biased,
            o_bias: biased,
            mlp_bias: biased,
            qk_norm: biased,
            context: 128,
        }
    }

    #[test]
    fn weights_do_not_overlap_and_groups_have_no_gaps() {
        for (biased, tied) in [(false, false), (true, true), (true, false)] {
            let shape = shape(biased, tied);
            let layout = WeightLayout::new(&shape, 0);
            let mut spans: Vec<_> = shape
                .weights()
                .map(|id| layout.place(id).map(|p| (p.offset, p.offset + p.bytes())).unwrap())
                .collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            assert_eq!(spans.last().unwrap().1, layout.total());
            let place = |role| *layout.place(WeightId { layer: Some(1), role }).unwrap();
            let (q, k, v) = (place(Role::Query), place(Role::Key), place(Role::Value));
            assert!(q.offset.is_multiple_of(ALIGNMENT));
            assert_eq!(k.offset, q.offset + q.bytes());
            assert_eq!(v.offset, k.offset + k.bytes());
            assert_eq!(place(Role::Up).offset, place(Role::Gate).offset + 36 * 40 * 2);
            if biased {
                assert_eq!(place(Role::KeyBias).offset, place(Role::QueryBias).offset + 160);
                assert!(!place(Role::KeyBias).matrix);
            }
        }
    }

    /// The ranks' parts together are the whole weight, each value once.
    #[test]
    fn ranks_have_all_of_a_weight() {
        let whole = shape(true, false);
        let own = whole.of_rank(2).unwrap();
        let layouts = [0, 1].map(|rank| WeightLayout::new(&own, rank));
        for id in whole.weights() {
            let extent = whole.extent(id).unwrap();
            let mut seen = vec![0; (extent.rows * extent.columns) as usize];
            for layout in &layouts {
                let Some(place) = layout.place(id) else { continue };
                let cut = layout.cut(id, place);
                for (r, c) in (0..place.rows).flat_map(|r| (0..place.columns).map(move |c| (r, c)))
                {
                    let at = (cut.row + r) * extent.columns + cut.column + c;
                    seen[at as usize] += u32::from(!cut.zeros);
                }
            }
            let shared = matches!(id.role.split(), Split::Whole);
            let logits = matches!(id.role, Role::Head | Role::FinalNorm);
            let times = if shared && !logits { 2 } else { 1 };
            assert!(seen.iter().all(|count| *count == times), "{id}");
        }
        assert!(layouts[1].total() < layouts[0].total());
    }
}
