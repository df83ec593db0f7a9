//! Values of which only the kind matters: what is large in them is never kept.

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// A value, as far as it matters for a parameter that is not served.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Shape {
    /// Null, false, 0, an empty text, list or object: nothing is asked for.
    Nothing,
    /// A number.
    Number(f64),
    /// Anything else.
    Something,
}

impl Shape {
    fn of(nothing: bool) -> Self {
        if nothing { Self::Nothing } else { Self::Something }
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Shape, E> {
        Ok(Shape::of(!value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Shape, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Shape, E> {
        self.visit_f64(value as f64)
    }

    fn visit_f64<E>(self, value: f64) -> Result<Shape, E> {
        Ok(if value == 0.0 { Shape::Nothing } else { Shape::Number(value) })
    }

    fn visit_str<E>(self, value: &str) -> Result<Shape, E> {
        Ok(Shape::of(value.is_empty()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let mut nothing = true;
        while items.next_element::<IgnoredAny>()?.is_some() {
            nothing = false;
        }
        Ok(Shape::of(nothing))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let mut nothing = true;
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            nothing = false;
        }
        Ok(Shape::of(nothing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_values_ask_for_nothing() {
        for text in ["null", "false", "0", "-0.0", "\"\"", "[]", "{}"] {
            assert_eq!(serde_json::from_str::<Shape>(text).unwrap(), Shape::Nothing, "{text}");
        }
        for text in ["true", "\"x\"", "[null]", "{\"a\":0}"] {
            assert_eq!(serde_json::from_str::<Shape>(text).unwrap(), Shape::Something, "{text}");
        }
        assert_eq!(serde_json::from_str::<Shape>("-2").unwrap(), Shape::Number(-2.0));
    }
}
