//! Python's float arithmetic where the engines decide by it: `round`, `//`, `repr`, `int`.

/// `round(x, digits)`: the nearest decimal of the exact binary value, ties to even, then the
/// nearest double. Source: CPython `float.__round__` (correctly rounded dtoa).
#[must_use]
pub fn round_digits(x: f64, digits: usize) -> f64 {
    if !x.is_finite() {
        return x;
    }
    // Rust formats the exact binary value with round-half-even, as dtoa does.
    format!("{x:.digits$}").parse().unwrap_or(x)
}

/// `a // b` on doubles. Source: CPython `float_floor_div` (`fmod`, then the floor of the quotient).
#[must_use]
pub fn floor_div(a: f64, b: f64) -> f64 {
    let remainder = a % b;
    let mut quotient = (a - remainder) / b;
    if remainder != 0.0 && (b < 0.0) != (remainder < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return 0.0_f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}

/// `int(x)`: toward zero; saturates at the ends of `i64`, NaN is 0.
#[must_use]
pub fn trunc_i64(x: f64) -> i64 {
    x as i64
}

/// `repr(x)`: the shortest decimal that reads back as `x`, always with a point or an exponent.
#[must_use]
pub fn repr(x: f64) -> String {
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) || !x.is_finite() {
        return format!("{x:?}");
    }
    let sci = format!("{x:e}");
    match sci.split_once('e') {
        Some((mantissa, exp)) => {
            let exp: i32 = exp.parse().unwrap_or(0);
            let sign = if exp < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exp.abs())
        }
        None => sci,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_like_python() {
        assert_eq!(round_digits(0.8125, 3), 0.812); // A tie in binary: to even.
        assert_eq!(round_digits(0.0005, 3), 0.001); // 0.0005 is above the tie in binary.
        assert_eq!(round_digits(2.675, 2), 2.67);
        assert_eq!(repr(0.1 + 0.2), "0.30000000000000004");
        assert_eq!(repr(1e-5), "1e-05");
        assert_eq!(floor_div(7.0, 2.0), 3.0);
        assert_eq!(floor_div(-7.0, 2.0), -4.0);
        assert_eq!(floor_div(1.0, 0.1), 9.0);
    }
}
