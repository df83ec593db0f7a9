//! Matrix products by cuBLASLt over a workspace that the plan holds. What a product needs is
//! found once, when it is planned; running it asks nothing and allocates nothing.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::cublaslt::{
    ALIGNMENT, Algorithm, Data, Handle, Lt, Places, Product, Sizes, Status,
};
use crate::ffi::memory::DevicePointer;
use crate::stream::{Event, Stream};
use plimsoll_core::units::Nanos;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Numbers of activations and weights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Float {
    /// `bf16`.
    Bf16,
    /// `f16`.
    F16,
}

/// A product `y[rows, outputs] = x[rows, inputs] · w[outputs, inputs]^T`, all row by row,
/// accumulated in float32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shape {
    /// Rows of `x` and `y`, at least 1; [`bucket`] of it are computed.
    pub rows: u32,
    /// Columns of `y`.
    pub outputs: u32,
    /// Columns of `x` and `w`.
    pub inputs: u32,
    /// Numbers of `x`, `w`, and of `y` unless `wide`.
    pub float: Float,
    /// Whether `y` is float32.
    pub wide: bool,
    /// Whether the product is added to what `y` holds.
    pub add: bool,
}

/// Rows that are computed for `rows`: 1, 2, 4, 8, then the next multiple of
/// `max(8, 2^(floor(log2 rows) - 3))`. So a sixteenth of them at most is in vain from 128 on, and
/// few plans are made.
#[must_use]
pub const fn bucket(rows: u32) -> u32 {
    if rows <= 8 {
        return if rows == 0 { 1 } else { rows.next_power_of_two() };
    }
    let fine = 1 << (rows.ilog2() - 3);
    let step = if fine > 8 { fine } else { 8 };
    rows.div_ceil(step).saturating_mul(step)
}

/// A product that is planned; of the [`Gemm`] that planned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    index: usize,
    bucket: u32,
}

impl Planned {
    /// Rows that it computes: `x` and `y` have as many.
    #[must_use]
    pub const fn rows(self) -> u32 {
        self.bucket
    }
}

struct Plan {
    shape: Shape,
    product: Option<Product>,
    algorithm: Algorithm,
    candidates: Vec<Algorithm>,
}

/// The products of one card.
pub struct Gemm {
    lt: &'static Lt,
    card: Rc<Card>,
    handle: Option<Handle>,
    workspace: DevicePointer,
    plans: Vec<Plan>,
    known: BTreeMap<Shape, Planned>,
}

/// How often each candidate runs when they are timed, after one run to warm up.
const TIMES: u32 = 3;

impl Shape {
    const fn data(&self) -> Data {
        match self.float {
            Float::Bf16 => Data::Bf16,
            Float::F16 => Data::F16,
        }
    }

    const fn output(&self) -> Data {
        if self.wide { Data::F32 } else { self.data() }
    }

    /// Bytes of `x`, `w` and `y`.
    fn bytes(&self) -> (u64, u64, u64) {
        let (rows, outputs) = (u64::from(self.rows), u64::from(self.outputs));
        let inputs = u64::from(self.inputs);
        let width = if self.wide { 4 } else { 2 };
        (rows * inputs * 2, outputs * inputs * 2, rows * outputs * width)
    }
}

impl Gemm {
    /// Opens cuBLASLt on a card. `workspace` is device memory, which only products that run on
    /// one stream share; it lives longer than this.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Missing` when the library is not found.
    pub fn new(card: &Rc<Card>, workspace: DevicePointer) -> Result<Self, Failure> {
        let lt = Lt::load()?;
        card.enter()?;
        let handle = lt.create().map_err(|status| failed(card, "cublasLtCreate", status))?;
        Ok(Self {
            lt,
            card: Rc::clone(card),
            handle: Some(handle),
            workspace,
            plans: Vec::new(),
            known: BTreeMap::new(),
        })
    }

    /// Release of the library: 10000 × major + 100 × minor + patch.
    #[must_use]
    pub fn version(&self) -> usize {
        self.lt.version()
    }

    fn handle(&self) -> Result<&Handle, Failure> {
        self.handle.as_ref().ok_or_else(|| Failure::misuse("cuBLASLt", "it is closed"))
    }

    /// Describes a product and chooses how it is computed: the heuristic's first answer that the
    /// workspace is large enough for, so that every start chooses alike. Asked again, it answers
    /// from memory.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Library` when cuBLASLt knows no way.
    pub fn plan(&mut self, shape: Shape) -> Result<Planned, Failure> {
        let rows = bucket(shape.rows);
        let shape = Shape { rows, ..shape };
        if let Some(known) = self.known.get(&shape) {
            return Ok(*known);
        }
        let sizes = Sizes {
            rows: u64::from(rows),
            outputs: u64::from(shape.outputs),
            inputs: u64::from(shape.inputs),
            data: shape.data(),
            output: shape.output(),
        };
        self.card.enter()?;
        let described = self.lt.describe(&sizes);
        let product = described.map_err(|s| failed(&self.card, "cublasLtMatrixLayoutCreate", s))?;
        // From here on the plan owns the descriptors, whatever fails.
        let algorithm = Algorithm::default();
        let mut plan = Plan { shape, product: Some(product), algorithm, candidates: Vec::new() };
        let chosen = self.choose(&mut plan);
        if let Err(failure) = chosen {
            self.forget(&mut plan);
            return Err(failure);
        }
        let planned = Planned { index: self.plans.len(), bucket: rows };
        self.plans.push(plan);
        self.known.insert(shape, planned);
        Ok(planned)
    }

    fn choose(&self, plan: &mut Plan) -> Result<(), Failure> {
        const CALL: &str = "cublasLtMatmulAlgoGetHeuristic";
        let Some(product) = &plan.product else { return Ok(()) };
        let found = self.lt.candidates(self.handle()?, product, self.workspace.size());
        plan.candidates = found.map_err(|status| failed(&self.card, CALL, status))?;
        let none = || Failure::Library {
            call: CALL,
            name: format!("no algorithm for {:?}", plan.shape),
            code: 15,
        };
        plan.algorithm = *plan.candidates.first().ok_or_else(none)?;
        Ok(())
    }

    /// Plans a product and takes the fastest of the heuristic's candidates, measured on the device
    /// with these matrices; `y` is overwritten. Two starts may choose differently.
    ///
    /// # Errors
    ///
    /// As [`Self::plan`] and [`Self::run`].
    pub fn timed(
        &mut self,
        shape: Shape,
        [x, w, y]: [DevicePointer; 3],
        stream: &Stream,
    ) -> Result<Planned, Failure> {
        let planned = self.plan(shape)?;
        let (from, to) = (Event::timed(&self.card)?, Event::timed(&self.card)?);
        let candidates = self.at(planned)?.candidates.clone();
        let mut best: Option<(Nanos, Algorithm)> = None;
        for algorithm in candidates {
            self.plans[planned.index].algorithm = algorithm;
            self.run(planned, x, w, y, stream)?;
            from.record(stream)?;
            for _ in 0..TIMES {
                self.run(planned, x, w, y, stream)?;
            }
            to.record(stream)?;
            stream.synchronize()?;
            let took = to.since(&from)?;
            if best.is_none_or(|(fastest, _)| took < fastest) {
                best = Some((took, algorithm));
            }
        }
        if let Some((_, algorithm)) = best {
            self.plans[planned.index].algorithm = algorithm;
        }
        Ok(planned)
    }

    fn at(&self, planned: Planned) -> Result<&Plan, Failure> {
        let unknown = || Failure::misuse("cublasLtMatmul", "a product that was not planned here");
        self.plans.get(planned.index).ok_or_else(unknown)
    }

    /// Puts a planned product on a stream. `x` and `y` have [`Planned::rows`] rows; they and `w`
    /// may be longer than what is used.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when a matrix is too short or its address is no multiple of 16.
    pub fn run(
        &self,
        planned: Planned,
        x: DevicePointer,
        w: DevicePointer,
        y: DevicePointer,
        stream: &Stream,
    ) -> Result<(), Failure> {
        const CALL: &str = "cublasLtMatmul";
        let plan = self.at(planned)?;
        let (x_bytes, w_bytes, y_bytes) = plan.shape.bytes();
        for (name, place, needed) in [("x", x, x_bytes), ("w", w, w_bytes), ("y", y, y_bytes)] {
            let aligned = place.address().is_multiple_of(u64::from(ALIGNMENT));
            if place.size() < needed || !aligned {
                let size = place.size();
                let what = format!("{name} has {size} bytes at {:#x}", place.address());
                return Err(Failure::misuse(
                    CALL,
                    format!("{what} for {needed}: {:?}", plan.shape),
                ));
            }
        }
        let Some(product) = &plan.product else { return Ok(()) };
        let places = Places { input: x, weights: w, output: y, workspace: self.workspace };
        let (handle, raw) = (self.handle()?, stream.raw()?);
        self.card.enter()?;
        let put =
            self.lt.multiply(handle, (product, &plan.algorithm), &places, plan.shape.add, raw);
        put.map_err(|status| failed(&self.card, CALL, status))
    }

    fn forget(&self, plan: &mut Plan) {
        if let Some(product) = plan.product.take() {
            self.lt.forget(product);
        }
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        let mut plans = std::mem::take(&mut self.plans);
        let open = self.card.enter().is_ok();
        for plan in &mut plans {
            self.forget(plan);
        }
        if let (Some(handle), true) = (self.handle.take(), open) {
            let _ = self.lt.destroy(handle);
        }
    }
}

fn failed(card: &Card, call: &'static str, status: Status) -> Failure {
    if status == Status::NO_MEMORY {
        return Failure::OutOfMemory(call);
    }
    card.library(Failure::Library { call, name: status.name().to_owned(), code: status.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_rows_and_waste_little() {
        let first: Vec<u32> = (1..=17).map(bucket).collect();
        assert_eq!(first, [1, 2, 4, 4, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 24]);
        assert_eq!(bucket(0), 1);
        let mut last = 1;
        for rows in 1..20_000 {
            let bucket = bucket(rows);
            assert!(bucket >= rows && bucket >= last, "{rows}: {bucket} after {last}");
            assert_eq!(super::bucket(bucket), bucket, "a bucket is its own");
            assert!(rows < 128 || (bucket - rows) * 8 < rows, "{rows}: {bucket}");
            last = bucket;
        }
    }
}
