//! Mappings whose keys are checked together once they are read.

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{fmt, marker::PhantomData};

/// The keys of a mapping, as they are written.
pub(crate) trait Form: Sized {
    /// What they make together.
    type Whole;

    /// The mapping in words, for messages.
    const EXPECTED: &'static str;

    /// Checks them together.
    fn build<E: de::Error>(self) -> Result<Self::Whole, E>;
}

/// Reads a mapping and checks its keys together: what is wrong then has the place of the mapping.
pub(crate) fn checked<'de, F: Form + Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<F::Whole, D::Error> {
    struct Keys<F>(PhantomData<F>);
    impl<'de, F: Form + Deserialize<'de>> Visitor<'de> for Keys<F> {
        type Value = F::Whole;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(F::EXPECTED)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<F::Whole, A::Error> {
            F::deserialize(MapAccessDeserializer::new(map))?.build()
        }
    }
    d.deserialize_map(Keys::<F>(PhantomData))
}
