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

/// Whether what is left after graphs was measured on a start with this launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// It was: the ceiling is as good as its figures.
    Measured,
    /// It is an estimate: the engine's automatic value is the first to try.
    Estimated,
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
    /// Below it the pool does not hold one prefill chunk, so the first long prompt fills it; at least
    /// the window's floor.
    pub useful: f64,
    /// Who else is there.
    pub tenancy: Tenancy,
    /// What the ceiling rests on.
    pub evidence: Evidence,
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
    if inputs.window.is_empty() {
        return Advice::NoFraction;
    }
    let target = target(inputs);
    if inputs.current <= inputs.useful {
        return Advice::Raise { to: target };
    }
    let one_below = limit(inputs) - STEP;
    let spends_the_reserve = trusted_automatic(inputs)
        .is_some_and(|automatic| inputs.current > automatic + STEP && target < inputs.current);
    if !spends_the_reserve && inputs.current <= one_below + 1e-9 {
        return Advice::Keep;
    }
    if target < inputs.current { Advice::Lower { to: target } } else { Advice::Keep }
}

/// The ceiling in hundredths: the best value where it was measured, the sure one where it was not.
fn limit(inputs: &AdviceInputs) -> f64 {
    floor_to_cents(match inputs.evidence {
        Evidence::Measured => inputs.window.ceiling,
        Evidence::Estimated => inputs.window.ceiling_sure,
    })
}

/// The automatic value, where nothing better than an estimate says how far one may go.
fn trusted_automatic(inputs: &AdviceInputs) -> Option<f64> {
    let window = inputs.window;
    let trusted = inputs.evidence == Evidence::Estimated && inputs.tenancy == Tenancy::Dedicated;
    inputs.automatic.filter(|a| trusted && *a > inputs.useful && *a < window.ceiling)
}

/// The automatic value where it is to be trusted; else two steps below the limit, nearer to it where
/// the window is narrow.
fn target(inputs: &AdviceInputs) -> f64 {
    let window = inputs.window;
    if let Some(automatic) = trusted_automatic(inputs) {
        // A value to type: rounded down, unless that leaves the window.
        let short = (automatic * 1000.0 + 1e-9).floor() / 1000.0;
        return if short > window.floor { short } else { automatic };
    }
    let two_below = cents(limit(inputs) - 2.0 * STEP);
    if two_below > inputs.useful && two_below < window.ceiling {
        return two_below;
    }
    thousandths(window.floor + (window.ceiling - window.floor) / 2.0)
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

    fn window(floor: f64, ceiling: f64) -> Window {
        Window { floor, floor_sure: floor, ceiling, ceiling_sure: ceiling }
    }

    fn advice(current: f64, window: Window, evidence: Evidence) -> Advice {
        let (automatic, tenancy) = (Some(0.848), Tenancy::Dedicated);
        let useful = window.floor + 0.005;
        advise(&AdviceInputs { current, automatic, window, useful, tenancy, evidence })
    }

    #[test]
    fn the_founding_case_goes_back_to_088() {
        let at = |f| advice(f, window(0.7691, 0.9229), Evidence::Measured);
        assert_eq!(at(0.93), Advice::Lower { to: 0.88 });
        assert_eq!(at(0.88), Advice::Keep);
        assert_eq!(at(0.85), Advice::Keep);
    }

    #[test]
    fn without_a_measurement_the_automatic_value_comes_first() {
        let at = |f| advice(f, window(0.768, 0.954), Evidence::Estimated);
        assert_eq!(at(0.93), Advice::Lower { to: 0.848 });
        assert_eq!(at(0.86), Advice::Keep);
    }

    #[test]
    fn an_automatic_value_is_passed_in_thousandths() {
        let inputs = AdviceInputs {
            current: 0.93,
            automatic: Some(0.774_249_999_999_999_9),
            window: window(0.5, 0.954),
            useful: 0.0,
            tenancy: Tenancy::Dedicated,
            evidence: Evidence::Estimated,
        };
        assert_eq!(advise(&inputs), Advice::Lower { to: 0.774 });
        let narrow = AdviceInputs { window: window(0.7741, 0.954), ..inputs };
        assert_eq!(advise(&narrow), Advice::Lower { to: 0.774_249_999_999_999_9 });
    }

    #[test]
    fn an_automatic_value_without_a_useful_pool_is_not_advised() {
        let at = |f| advice(f, window(0.846, 0.954), Evidence::Estimated);
        assert_eq!(at(0.93), Advice::Keep);
        assert_eq!(at(0.848), Advice::Raise { to: 0.91 });
    }

    #[test]
    fn below_the_floor_it_is_raised_and_an_empty_window_has_no_fraction() {
        let at = |f, w| advice(f, w, Evidence::Measured);
        assert_eq!(at(0.70, window(0.7691, 0.9229)), Advice::Raise { to: 0.88 });
        assert_eq!(at(0.70, window(0.91, 0.90)), Advice::NoFraction);
        assert_eq!(at(0.905, window(0.89, 0.91)), Advice::Lower { to: 0.9 });
    }
}
