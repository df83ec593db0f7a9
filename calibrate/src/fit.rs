//! The fit: least squares of weighted residuals and of the distance from what is assumed, in the logarithms
//! of the coefficients, by Levenberg's and Marquardt's steps (Quart. Appl. Math. 2, 1944; SIAM J. Appl. Math.
//! 11, 1963). Derivatives are differences, for what is measured has steps of its own. No random numbers:
//! the same data give the same profile.

use crate::CalibrateError;
use plimsoll_core::estimate::coefficients::{Bounds, Coefficient};
use std::rc::Rc;

/// What a fit may move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unknown {
    /// A coefficient of the time model.
    Rate(Coefficient),
    /// Tokens of the pool, where the rules give an interval alone.
    Pool {
        /// Fewest.
        least: u64,
        /// Most.
        most: u64,
    },
}

impl Unknown {
    const fn bounds(self) -> Bounds {
        match self {
            Self::Rate(which) => which.bounds(),
            Self::Pool { least, most } => Bounds { least, most },
        }
    }
}

/// An unknown that is fitted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameter {
    /// Which.
    pub which: Unknown,
    /// Its assumed value.
    pub assumed: u64,
    /// How much that is doubted: one deviation of its logarithm.
    pub doubt: f64,
}

/// A coefficient after the fit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Which.
    pub which: Unknown,
    /// Logarithm of its value.
    pub log: f64,
    /// One deviation of the logarithm.
    pub deviation: f64,
    /// Whether the data say more of it than what was assumed.
    pub moved: bool,
}

/// A fit.
#[derive(Clone, PartialEq, Debug)]
pub struct Fitted {
    /// The coefficients.
    pub estimates: Vec<Estimate>,
    /// Times that the residuals were asked for.
    pub runs: usize,
}

impl Fitted {
    /// What is assumed, without data.
    #[must_use]
    pub fn assumed(parameters: &[Parameter]) -> Self {
        let estimate = |parameter: &Parameter| Estimate {
            which: parameter.which,
            log: log(parameter.assumed),
            deviation: parameter.doubt,
            moved: false,
        };
        Self { estimates: parameters.iter().map(estimate).collect(), runs: 0 }
    }
}

/// Width of a difference, in logarithms.
const WIDTH: f64 = 0.02;
/// Most steps in one run.
const MOST_STEPS: usize = 30;
/// Most runs from which a search goes on.
const MOST_RUNS: usize = 12;
/// A run that leads down by less than this share of its cost is not enough to go on with.
const SLOW: f64 = 0.8;
/// Width of a difference between runs, in logarithms: over less, jumps of who waits for whom are all that is seen.
const PROBE: f64 = 0.1;
/// Speeds of the devices from which a search begins, over what is assumed, and most runs of each.
const SPEEDS: [f64; 3] = [1.0, 0.75, 1.35];
const SOME_RUNS: usize = 5;
/// Times that a way is halved that does not lead down.
const HALVES: usize = 4;
/// A coefficient of whose doubt the data leave more than this is not moved by them.
const UNMOVED: f64 = 0.95;
/// Longest step of a coefficient, in logarithms.
const LONGEST: f64 = 0.7;

/// Residuals, each over its own deviation.
pub type Frozen<'a> = Rc<dyn Fn(&[(Unknown, u64)]) -> Vec<f64> + 'a>;

/// The residuals near a set of values: who joined which pass stays as it is there, so that they have slopes. At the
/// values themselves they are the true ones.
pub type Residuals<'a> = &'a dyn Fn(&[(Unknown, u64)]) -> Result<Frozen<'a>, CalibrateError>;

/// Pools that are tried over their interval.
const POOLS: u32 = 8;
/// Times that the interval between the best pool and its neighbours is halved.
const HALVINGS: u32 = 2;
/// The same for a pool that is tried.
const FEW_RUNS: usize = 2;

/// Fits; what the data do not move goes back to what is assumed, and the rest is fitted once more around it. What
/// is known of each is what is known of it while all are free. Of `alike` residuals one says something new.
///
/// # Errors
///
/// As the residuals.
pub fn fit(
    parameters: &[Parameter],
    alike: f64,
    of: Residuals<'_>,
) -> Result<Fitted, CalibrateError> {
    let is_pool = |one: &&Parameter| matches!(one.which, Unknown::Pool { .. });
    let pool = parameters.iter().find(is_pool).copied();
    let rates: Vec<Parameter> = parameters.iter().filter(|one| !is_pool(one)).copied().collect();
    let from = rates.iter().map(|one| log(one.assumed)).collect();
    let mut search = Search {
        parameters: rates.clone(),
        from,
        fixed: Vec::new(),
        of,
        runs: 0,
        most: MOST_RUNS,
        alike,
    };
    let mut estimates = Vec::new();
    if let Some(pool) = pool {
        let estimate = search.pool(&pool)?;
        search.fixed = vec![(pool.which, value(estimate.log))];
        estimates.push(estimate);
    }
    search.from = search.start()?;
    let (found, _) = search.minimum()?;
    let stays = |one: &Parameter| found.iter().any(|e| e.which == one.which && !e.moved);
    let (stay, go): (Vec<Parameter>, Vec<Parameter>) = rates.into_iter().partition(stays);
    if stay.is_empty() {
        estimates.extend(found);
    } else {
        search.fixed.extend(stay.iter().map(|one| (one.which, one.assumed)));
        let moved = found.iter().filter(|estimate| estimate.moved);
        search.from = moved.map(|estimate| estimate.log).collect();
        search.parameters = go;
        let (again, _) = search.minimum()?;
        let free = |which| found.iter().find(|one| one.which == which);
        estimates.extend(again.into_iter().map(|one| Estimate {
            moved: true,
            deviation: free(one.which).map_or(one.deviation, |free| free.deviation),
            ..one
        }));
        estimates.extend(Fitted::assumed(&stay).estimates);
    }
    estimates.sort_by_key(|estimate| estimate.which);
    Ok(Fitted { estimates, runs: search.runs })
}

/// Logarithm of a value, the same on every machine.
fn log(value: u64) -> f64 {
    libm::log(value.max(1) as f64)
}

/// The value of a logarithm.
#[must_use]
pub fn value(log: f64) -> u64 {
    libm::exp(log.clamp(0.0, 43.0)).round() as u64
}

struct Search<'a> {
    parameters: Vec<Parameter>,
    /// Where the search begins.
    from: Vec<f64>,
    fixed: Vec<(Unknown, u64)>,
    of: Residuals<'a>,
    runs: usize,
    /// Most runs from which it goes on.
    most: usize,
    /// Of so many residuals one says something new.
    alike: f64,
}

/// A point with its residuals, and those around it.
struct Point<'a> {
    frozen: Frozen<'a>,
    at: Vec<f64>,
    residuals: Vec<f64>,
    cost: f64,
}

impl<'a> Search<'a> {
    fn values(&self, at: &[f64]) -> Vec<(Unknown, u64)> {
        let names = self.parameters.iter().map(|parameter| parameter.which);
        let mut values: Vec<(Unknown, u64)> = names.zip(at.iter().map(|log| value(*log))).collect();
        values.extend(&self.fixed);
        values
    }

    /// A point in a run of its own.
    fn at(&mut self, at: Vec<f64>) -> Result<Point<'a>, CalibrateError> {
        self.runs += 1;
        let frozen = (self.of)(&self.values(&at))?;
        Ok(self.beside(&frozen, at))
    }

    /// A point in the run of another.
    fn beside(&self, frozen: &Frozen<'a>, at: Vec<f64>) -> Point<'a> {
        let residuals: Vec<f64> = frozen(&self.values(&at)).into_iter().map(tempered).collect();
        let data: f64 = residuals.iter().map(|r| r * r).sum();
        let doubts: f64 = self.distances(&at).map(|d| d * d).sum();
        Point { cost: data + doubts, at, residuals, frozen: Rc::clone(frozen) }
    }

    /// Distances from what is assumed, in deviations.
    fn distances(&self, at: &[f64]) -> impl Iterator<Item = f64> {
        let parameters = self.parameters.iter().zip(at.to_vec());
        parameters.map(|(one, at)| (at - log(one.assumed)) / one.doubt)
    }

    /// The pool, for which the rates are fitted anew: it decides who waits, and so has no slope to follow.
    fn pool(&mut self, pool: &Parameter) -> Result<Estimate, CalibrateError> {
        let Bounds { least, most } = pool.which.bounds();
        let assumed = Estimate {
            which: pool.which,
            log: log(pool.assumed),
            deviation: pool.doubt,
            moved: false,
        };
        let residuals = |search: &mut Self, tokens: u64| {
            search.fixed = vec![(pool.which, tokens)];
            Ok::<_, CalibrateError>(search.at(search.from.clone())?.residuals)
        };
        if least >= most || residuals(self, least)? == residuals(self, pool.assumed)? {
            return Ok(assumed);
        }
        // The rates come near first, as far as the pool lets them.
        let (rates, _) = self.minimum()?;
        self.from = rates.iter().map(|rate| rate.log).collect();
        self.most = FEW_RUNS;
        let (low, high) = (log(least), log(most));
        let mut width = (high - low) / f64::from(POOLS);
        let mut best: Option<(f64, f64, Vec<f64>)> = None;
        let mut tried: Vec<f64> = (0..=POOLS).map(|at| low + width * f64::from(at)).collect();
        for _ in 0..=HALVINGS {
            for at in std::mem::take(&mut tried) {
                self.fixed = vec![(pool.which, value(at))];
                let (rates, cost) = self.minimum()?;
                let distance = (at - log(pool.assumed)) / pool.doubt;
                let cost = cost + distance * distance;
                if best.as_ref().is_none_or(|best| cost < best.0) {
                    best = Some((cost, at, rates.iter().map(|rate| rate.log).collect()));
                }
            }
            let Some((_, at, rates)) = &best else { break };
            self.from = rates.clone();
            width /= 2.0;
            tried = [at - width, at + width].map(|at| at.clamp(low, high)).to_vec();
        }
        self.most = MOST_RUNS;
        let found = best.map_or(log(pool.assumed), |best| best.1);
        Ok(Estimate { log: found, deviation: width * 2.0, moved: true, ..assumed })
    }

    /// Where to begin: from what is assumed, or from a slower or faster device, for a server that keeps up and one
    /// that does not are two valleys.
    fn start(&mut self) -> Result<Vec<f64>, CalibrateError> {
        let (from, most) = (self.from.clone(), self.most);
        self.most = SOME_RUNS;
        let mut best: Option<(f64, Vec<f64>)> = None;
        for speed in SPEEDS {
            let share = |one: &Parameter| match one.which {
                Unknown::Rate(which) => which.is_share() && which != Coefficient::WeightBandwidth,
                Unknown::Pool { .. } => false,
            };
            let begin = from.iter().zip(&self.parameters);
            let shifted = |(at, one): (&f64, &Parameter)| {
                if share(one) { at + libm::log(speed) } else { *at }
            };
            self.from = begin.map(shifted).collect();
            let (found, cost) = self.minimum()?;
            if best.as_ref().is_none_or(|best| cost < best.0) {
                best = Some((cost, found.iter().map(|one| one.log).collect()));
            }
        }
        self.most = most;
        Ok(best.map_or(from, |best| best.1))
    }

    /// The minimum with its cost: the one of the run as it is, then of the run that this makes, until nothing moves.
    fn minimum(&mut self) -> Result<(Vec<Estimate>, f64), CalibrateError> {
        let mut here = self.at(self.from.clone())?;
        let mut idle = 0;
        for _ in 0..self.most {
            let before = here.cost;
            here = self.follow(here)?;
            if self.most > FEW_RUNS && here.cost > SLOW * before {
                here = self.probe(here)?;
            }
            idle = if here.cost > 0.999 * before { idle + 1 } else { 0 };
            if idle == 2 {
                break;
            }
        }
        let mut curvature = self.normal(&here);
        self.thin(&mut curvature);
        Ok((self.estimates(&here, &curvature), here.cost))
    }

    /// Goes to the minimum of the run as it is, or part of the way.
    fn follow(&mut self, here: Point<'a>) -> Result<Point<'a>, CalibrateError> {
        let mut goal = self.settle(&here);
        for _ in 0..HALVES {
            let there = self.at(goal.clone())?;
            if there.cost < here.cost {
                return Ok(there);
            }
            goal = goal.iter().zip(&here.at).map(|(a, b)| (a + b) / 2.0).collect();
        }
        Ok(here)
    }

    /// A step by differences of whole runs: where who waits for whom decides, a run as it is does not know the way.
    fn probe(&mut self, here: Point<'a>) -> Result<Point<'a>, CalibrateError> {
        let mut slopes = Vec::new();
        for which in 0..here.at.len() {
            let mut at = here.at.clone();
            if let Some(one) = at.get_mut(which) {
                *one += PROBE;
            }
            let there = self.at(at)?;
            slopes.push(slope(&there.residuals, &here.residuals, PROBE));
        }
        let normal = self.assemble(&here, &slopes);
        let mut damping = 1e-2;
        for _ in 0..HALVES {
            let there = self.at(self.beyond(&here, &normal, damping))?;
            if there.cost < here.cost {
                return Ok(there);
            }
            damping *= 10.0;
        }
        Ok(here)
    }

    /// Where a damped step leads.
    fn beyond(&self, here: &Point<'_>, normal: &Normal, damping: f64) -> Vec<f64> {
        let mut matrix = normal.matrix.clone();
        for (at, row) in matrix.iter_mut().enumerate() {
            if let Some(diagonal) = row.get_mut(at) {
                *diagonal *= 1.0 + damping;
            }
        }
        let right: Vec<f64> = normal.gradient.iter().map(|g| -g).collect();
        let step = solve(matrix, right);
        let moved = here.at.iter().zip(&step).zip(&self.parameters);
        let at = moved.map(|((at, step), one)| {
            let bounds = one.which.bounds();
            let next = at + step.clamp(-LONGEST, LONGEST);
            next.clamp(log(bounds.least), log(bounds.most))
        });
        at.collect()
    }

    /// The minimum of a run in which everybody stays in the passes that he joined.
    fn settle(&self, here: &Point<'a>) -> Vec<f64> {
        let mut at = self.beside(&here.frozen, here.at.clone());
        let mut damping = 1e-3;
        for _ in 0..MOST_STEPS {
            let before = at.cost;
            (at, damping) = self.step(at, damping);
            if before - at.cost <= 1e-6 * before {
                break;
            }
        }
        at.at
    }

    /// Tries shorter and shorter steps until one is better; answers the better point and the next damping.
    fn step(&self, here: Point<'a>, mut damping: f64) -> (Point<'a>, f64) {
        let curvature = self.normal(&here);
        for _ in 0..8 {
            let there = self.beside(&here.frozen, self.beyond(&here, &curvature, damping));
            if there.cost < here.cost {
                return (there, (damping / 3.0).max(1e-9));
            }
            damping *= 4.0;
        }
        (here, damping)
    }

    /// Curvature and gradient of half the cost.
    fn normal(&self, here: &Point<'a>) -> Normal {
        let n = here.at.len();
        let mut slopes: Vec<Vec<f64>> = Vec::with_capacity(n);
        for which in 0..n {
            let mut at = here.at.clone();
            if let Some(one) = at.get_mut(which) {
                *one += WIDTH;
            }
            let there = self.beside(&here.frozen, at);
            slopes.push(slope(&there.residuals, &here.residuals, WIDTH));
        }
        self.assemble(here, &slopes)
    }

    fn assemble(&self, here: &Point<'_>, slopes: &[Vec<f64>]) -> Normal {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut matrix: Vec<Vec<f64>> =
            slopes.iter().map(|a| slopes.iter().map(|b| dot(a, b)).collect()).collect();
        let mut gradient: Vec<f64> = slopes.iter().map(|a| dot(a, &here.residuals)).collect();
        let distances: Vec<f64> = self.distances(&here.at).collect();
        for (at, (one, distance)) in self.parameters.iter().zip(distances).enumerate() {
            if let Some(diagonal) = matrix.get_mut(at).and_then(|row| row.get_mut(at)) {
                *diagonal += 1.0 / (one.doubt * one.doubt);
            }
            if let Some(slope) = gradient.get_mut(at) {
                *slope += distance / one.doubt;
            }
        }
        Normal { matrix, gradient }
    }

    /// Takes what is alike out of a curvature.
    fn thin(&self, curvature: &mut Normal) {
        for (at, row) in curvature.matrix.iter_mut().enumerate() {
            row.iter_mut().for_each(|cell| *cell /= self.alike);
            let doubt = self.parameters.get(at).map_or(1.0, |one| one.doubt);
            if let Some(diagonal) = row.get_mut(at) {
                // The assumption stays what it was.
                *diagonal += (1.0 - 1.0 / self.alike) / (doubt * doubt);
            }
        }
    }

    fn estimates(&self, here: &Point<'_>, curvature: &Normal) -> Vec<Estimate> {
        let n = here.at.len();
        let deviation = |which: usize| {
            let unit: Vec<f64> = (0..n).map(|at| f64::from(u8::from(at == which))).collect();
            let column = solve(curvature.matrix.clone(), unit);
            column.get(which).copied().unwrap_or_default().max(0.0).sqrt()
        };
        let estimate = |(which, (one, log)): (usize, (&Parameter, &f64))| {
            let deviation = deviation(which);
            let moved = deviation < UNMOVED * one.doubt;
            Estimate { which: one.which, log: *log, deviation, moved }
        };
        self.parameters.iter().zip(&here.at).enumerate().map(estimate).collect()
    }
}

/// Slopes of the residuals between two points.
fn slope(there: &[f64], here: &[f64], width: f64) -> Vec<f64> {
    there.iter().zip(here).map(|(there, here)| (there - here) / width).collect()
}

struct Normal {
    matrix: Vec<Vec<f64>>,
    gradient: Vec<f64>,
}

/// A residual far out counts by its amount, not by its square (Huber, Ann. Math. Statist. 35, 1964): the first
/// request of a cold server says nothing of the others.
fn tempered(residual: f64) -> f64 {
    const BEND: f64 = 2.0;
    if residual.is_nan() {
        return BEND;
    }
    let size = residual.abs();
    if size <= BEND { residual } else { residual.signum() * (BEND * (2.0 * size - BEND)).sqrt() }
}

/// Gauss's elimination with the largest pivot of each column; a column without one gives 0.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for column in 0..n {
        let size =
            |row: &usize| matrix.get(*row).and_then(|r| r.get(column)).map_or(0.0, |x| x.abs());
        let pivot = (column..n).max_by(|a, b| size(a).total_cmp(&size(b)));
        let Some(pivot) = pivot.filter(|row| size(row) > 1e-300) else { continue };
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let Some(top) = matrix.get(column).cloned() else { continue };
        let value = right.get(column).copied().unwrap_or_default();
        let head = top.get(column).copied().unwrap_or(1.0);
        for row in (0..n).filter(|row| *row != column) {
            let Some(line) = matrix.get_mut(row) else { continue };
            let factor = line.get(column).copied().unwrap_or_default() / head;
            for (cell, above) in line.iter_mut().zip(&top) {
                *cell -= factor * above;
            }
            if let Some(cell) = right.get_mut(row) {
                *cell -= factor * value;
            }
        }
    }
    let cell = |at: usize| {
        let head = matrix.get(at).and_then(|row| row.get(at)).copied().unwrap_or_default();
        let value = right.get(at).copied().unwrap_or_default();
        if head.abs() > 1e-300 { value / head } else { 0.0 }
    };
    (0..n).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(which: Coefficient, assumed: u64, doubt: f64) -> Parameter {
        Parameter { which: Unknown::Rate(which), assumed, doubt }
    }

    /// Times of a straight line give its two numbers back; the third, which nothing depends on, stays.
    #[test]
    fn a_line_is_found() {
        let parameters = [
            parameter(Coefficient::Step, 1_000_000, 1.0),
            parameter(Coefficient::Request, 5_000, 1.5),
            parameter(Coefficient::Matmul, 550_000, 0.3),
        ];
        let line = |values: &[(Unknown, u64)]| {
            let get = |which| {
                values.iter().find(|v| v.0 == Unknown::Rate(which)).map_or(0, |v| v.1) as f64
            };
            let time = |n: f64| get(Coefficient::Step) + n * get(Coefficient::Request);
            let truth = |n: f64| 3_000_000.0 + n * 40_000.0;
            let residual = |n: i32| libm::log(time(f64::from(n)) / truth(f64::from(n))) / 0.01;
            (1..100).map(residual).collect::<Vec<f64>>()
        };
        let of = |_: &[(Unknown, u64)]| Ok(Rc::new(line) as Frozen<'_>);
        let fitted = fit(&parameters, 1.0, &of).unwrap();
        let [step, request, matmul] = fitted.estimates[..] else { panic!() };
        assert!(value(step.log).abs_diff(3_000_000) < 6_000, "{step:?}");
        assert!(value(request.log).abs_diff(40_000) < 80, "{request:?}");
        assert!(step.moved && request.moved && !matmul.moved);
        assert_eq!(value(matmul.log), 550_000);
        assert_eq!(fit(&parameters, 1.0, &of).unwrap(), fitted);
    }

    #[test]
    fn a_system_is_solved() {
        let matrix = vec![vec![0.0, 2.0, 1.0], vec![4.0, -1.0, 0.5], vec![1.0, 1.0, 3.0]];
        let right = vec![3.0, 2.0, -1.0];
        let x = solve(matrix.clone(), right.clone());
        for (row, right) in matrix.iter().zip(&right) {
            let sum: f64 = row.iter().zip(&x).map(|(a, b)| a * b).sum();
            assert!((sum - right).abs() < 1e-12, "{x:?}");
        }
        assert_eq!(solve(vec![vec![0.0]], vec![1.0]), [0.0], "no pivot, no value");
    }
}
