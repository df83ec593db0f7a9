//! The value to pass, by the operating rules: trust the automatic value first; find the limit, then
//! run one or two steps of 0.02 below it; on a shared machine set the fraction yourself.

use super::load_line::Window;

/// One step by which the fraction is moved.
const STEP: f64 = 0.02;

/// Who else is on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tenancy {
    /// Nobody: the automatic value can be trusted.
    Dedicated,
    /// Others, now or later: a snapshot at start does not hold.
    Shared,
}

/// What advice is made from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdviceInputs {
    /// The fraction of the launch, given or automatic.
    pub current: f64,
    /// The engine's automatic value, where it has one.
    pub automatic: Option<f64>,
    /// The feasible window.
    pub window: Window,
    /// Who else is there.
    pub tenancy: Tenancy,
}

/// What to do with the fraction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Advice {
    /// It holds with room: leave it.
    Keep,
    /// Pass this value: at the current one the heaviest step does not fit, or only just.
    Lower {
        /// The value to pass.
        to: f64,
    },
    /// Pass this value: at the current one there is no pool.
    Raise {
        /// The value to pass.
        to: f64,
    },
    /// No fraction alone helps: change the model, the ranks, the chunk or the graphs.
    NoFraction,
}

/// The advice for one start.
#[must_use]
pub fn advise(inputs: &AdviceInputs) -> Advice {
    let window = inputs.window;
    if window.is_empty() {
        return Advice::NoFraction;
    }
    let target = target(inputs);
    if inputs.current <= window.floor {
        return Advice::Raise { to: target };
    }
    let limit = floor_to_cents(window.ceiling);
    if inputs.current <= window.ceiling - STEP / 2.0 || inputs.current <= limit - STEP {
        return Advice::Keep;
    }
    if target < inputs.current { Advice::Lower { to: target } } else { Advice::Keep }
}

/// Two steps below the limit; nearer to it where the window is narrow. On a dedicated device the
/// automatic value is taken when it lies in the window and below that.
fn target(inputs: &AdviceInputs) -> f64 {
    let window = inputs.window;
    let limit = floor_to_cents(window.ceiling);
    let inside = |f: f64| f > window.floor && f < window.ceiling;
    let two_below = cents(limit - 2.0 * STEP);
    if inside(two_below) {
        return two_below;
    }
    match inputs.automatic {
        Some(automatic) if inside(automatic) && inputs.tenancy == Tenancy::Dedicated => automatic,
        _ => thousandths(window.floor + (window.ceiling - window.floor) / 2.0),
    }
}

fn floor_to_cents(f: f64) -> f64 {
    (f * 100.0 + 1e-9).floor() / 100.0
}

fn cents(f: f64) -> f64 {
    (f * 100.0).round() / 100.0
}

fn thousandths(f: f64) -> f64 {
    (f * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(current: f64, floor: f64, ceiling: f64) -> Advice {
        let window = Window { floor, floor_sure: floor, ceiling, ceiling_sure: ceiling };
        let tenancy = Tenancy::Dedicated;
        advise(&AdviceInputs { current, automatic: Some(0.848), window, tenancy })
    }

    #[test]
    fn the_founding_case_goes_back_to_088() {
        assert_eq!(advice(0.93, 0.7691, 0.9229), Advice::Lower { to: 0.88 });
        assert_eq!(advice(0.88, 0.7691, 0.9229), Advice::Keep);
        assert_eq!(advice(0.85, 0.7691, 0.9229), Advice::Keep);
    }

    #[test]
    fn below_the_floor_it_is_raised_and_an_empty_window_has_no_fraction() {
        assert_eq!(advice(0.70, 0.7691, 0.9229), Advice::Raise { to: 0.88 });
        assert_eq!(advice(0.70, 0.91, 0.90), Advice::NoFraction);
        assert_eq!(advice(0.905, 0.89, 0.91), Advice::Lower { to: 0.9 });
    }
}
