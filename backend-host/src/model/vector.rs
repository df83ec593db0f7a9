//! Element by element: the exponential, norms, rotation, SwiGLU. All under the processor's vectors, all in
//! one order.

use super::dot::dot;

/// e^x to about 1e-7 of it: Cephes' polynomial on the rest after powers of two. Zero below -87.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has few bits, so its multiples are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding it rounds to a whole number, whose bits stand at the end.
    const MAGIC: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped.mul_add(LOG2_E, MAGIC);
    let whole = shifted - MAGIC;
    let rest = whole.mul_add(-LN2_LOW, whole.mul_add(-LN2_HIGH, clamped));
    let mut poly = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        poly = poly.mul_add(rest, c);
    }
    let value = poly.mul_add(rest * rest, rest + 1.0);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { value * power }
}

/// RMS norm of one row.
#[inline(always)]
pub(super) fn norm(from: &[f32], weight: &[f32], eps: f32, to: &mut [f32]) {
    let scale = norm_scale(from, eps);
    for ((to, value), weight) in to.iter_mut().zip(from).zip(weight) {
        *to = value * scale * weight;
    }
}

/// The same in place.
#[inline(always)]
pub(super) fn norm_in_place(row: &mut [f32], weight: &[f32], eps: f32) {
    let scale = norm_scale(row, eps);
    for (value, weight) in row.iter_mut().zip(weight) {
        *value = *value * scale * weight;
    }
}

#[inline(always)]
fn norm_scale(row: &[f32], eps: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt()
}

/// Turns one head by the angles of its position: the planes are (i, i + half).
#[inline(always)]
pub(super) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x * cos - y * sin;
        *b = y * cos + x * sin;
    }
}

/// SiLU of the first half times the second.
#[inline(always)]
pub(super) fn swiglu(from: &[f32], to: &mut [f32]) {
    let (gate, up) = from.split_at(to.len());
    for ((to, gate), up) in to.iter_mut().zip(gate).zip(up) {
        *to = gate / (1.0 + exp(-gate)) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_exponential_is_one(x in -86.9_f32..88.0) {
            let exact = f64::from(x).exp();
            let apart = (f64::from(exp(x)) - exact).abs() / exact;
            prop_assert!(apart < 3e-7, "{x}: {apart}");
        }
    }

    #[test]
    fn ends_of_the_exponential() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
