//! Products planned ahead: for every kind and every number of rows that the matrix library is ever asked for,
//! its algorithm is chosen before the first step.

use super::program::{Action, Program};
use crate::{
    device::{DevicePointer, Failure, Float, Gemm, Planned, Shape, Stream, bucket},
    failure,
};
use plimsoll_core::tape::own::StepLimits;

/// Planned products by kind and rows.
pub(super) struct Products {
    tokens: Vec<u32>,
    outputs: Vec<u32>,
    /// By kind, then in the order of `tokens` or `outputs`.
    planned: Vec<Vec<Planned>>,
}

/// All buckets up to that of `most` rows.
pub(super) fn buckets(most: u64) -> Vec<u32> {
    let (mut buckets, last) = (vec![1], bucket(most as u32));
    while let Some(next) = buckets.last().map(|b| bucket(b + 1)).filter(|next| *next <= last) {
        buckets.push(next);
    }
    buckets
}

/// Where a kind of product is run to warm it up: input, weights, result.
pub(super) type Places<'a> = &'a dyn Fn(&Action, u32) -> Result<[DevicePointer; 3], Failure>;

impl Products {
    /// Plans every product of a program and runs each once, so that whatever the library loads for it is
    /// loaded. With `timed` the fastest algorithm is taken.
    pub(super) fn new(
        gemm: &mut Gemm,
        program: &Program,
        (limits, float, timed): (StepLimits, Float, bool),
        places: Places<'_>,
        stream: &Stream,
    ) -> Result<Self, Failure> {
        let mut products = Self {
            tokens: buckets(limits.tokens),
            outputs: buckets(limits.outputs),
            planned: Vec::new(),
        };
        for (number, kind) in program.kinds.iter().enumerate() {
            let is = |a: &&Action| matches!(a, Action::Product { kind, .. } if *kind == number);
            let unused = || failure::Failure::misuse("cublasLtMatmul", "a kind without a product");
            let action = program.actions.iter().find(is).ok_or_else(unused)?;
            let rows = if kind.by_output { &products.outputs } else { &products.tokens };
            let mut planned = Vec::with_capacity(rows.len());
            for rows in rows.iter().copied() {
                let shape = Shape {
                    rows,
                    outputs: kind.outputs as u32,
                    inputs: kind.inputs as u32,
                    float,
                    wide: kind.wide,
                    add: kind.add,
                };
                let [x, w, y] = places(action, rows)?;
                planned.push(match timed {
                    true => gemm.timed(shape, [x, w, y], stream)?,
                    false => {
                        let planned = gemm.plan(shape)?;
                        gemm.run(planned, x, w, y, stream)?;
                        planned
                    }
                });
            }
            products.planned.push(planned);
        }
        stream.synchronize()?;
        Ok(products)
    }

    /// The product of a kind for so many rows.
    pub(super) fn find(&self, kind: usize, by_output: bool, rows: u32) -> Option<Planned> {
        let buckets = if by_output { &self.outputs } else { &self.tokens };
        let at = buckets.partition_point(|bucket| *bucket < rows);
        self.planned.get(kind)?.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_rows_has_a_bucket() {
        for most in [1_u64, 2, 3, 9, 130, 520] {
            let all = buckets(most);
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(all.last(), Some(&bucket(most as u32)));
            for rows in 1..=most as u32 {
                let at = all.partition_point(|bucket| *bucket < rows);
                assert_eq!(all[at], bucket(rows));
            }
        }
        assert!(buckets(8448).len() < 80);
    }
}
