//! What other programs hold as a distribution: drawn by the seed, or fixed at a quantile.
//!
//! A law stands where an amount may stand. Before the file is checked, each becomes the amount that was drawn,
//! so that everything that follows sees amounts alone, and checks them as if they had been written so.

use super::{
    Places,
    collect::describe,
    de::{Fault, Node},
    form::{Form, checked},
    lengths::number_within,
    value::{Amount, optional_amount},
};
use crate::{
    path::{KeyPath, Step},
    problem::{Code, Problem},
    workload::Stream,
    yaml::Part,
};
use plimsoll_core::units::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{borrow::Cow, fmt, path::Path};

/// How distributions of what other programs hold are taken.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Neighbours {
    /// Each seed draws.
    #[default]
    Drawn,
    /// All at this quantile, above 0 and below 1.
    Quantile(f64),
}

impl std::str::FromStr for Neighbours {
    type Err = String;

    /// `drawn`, or a percentile: `p99`, `p99.9`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "drawn" {
            return Ok(Self::Drawn);
        }
        let percent = text.strip_prefix('p').and_then(|number| number.parse::<f64>().ok());
        match percent {
            Some(percent) if percent > 0.0 && percent < 100.0 => {
                Ok(Self::Quantile(percent / 100.0))
            }
            _ => Err("`drawn`, or a percentile above p0 and below p100, such as `p99`".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for Neighbours {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(|expected: String| {
            de::Error::invalid_value(de::Unexpected::Str(&text), &expected.as_str())
        })
    }
}

impl JsonSchema for Neighbours {
    fn schema_name() -> Cow<'static, str> {
        "Neighbours".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "`drawn` or a percentile",
            "type": "string",
            "pattern": r"^(drawn|p[0-9]{1,2}(\.[0-9]+)?)$",
            "default": "drawn",
        })
    }
}

/// An amount that was drawn, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// The key whose value is a distribution.
    pub path: KeyPath,
    /// What it became.
    pub bytes: Bytes,
    /// The file of its samples, where they stand in one.
    pub samples: Option<SamplesFile>,
}

/// A file of samples.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SamplesFile {
    /// As the scenario names it.
    pub name: String,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

/// A distribution of amounts.
#[derive(Clone, PartialEq, Debug)]
enum Law {
    Lognormal {
        log_median: f64,
        sigma: f64,
        ends: Ends,
    },
    Normal {
        mean: f64,
        sd: f64,
        ends: Ends,
    },
    Uniform {
        low: u64,
        high: u64,
    },
    /// Ascending, at least one.
    Samples(Vec<u64>),
    /// A file of samples, which is read later.
    File(String),
}

/// Amounts beyond become these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ends {
    min: u64,
    max: u64,
}

impl Ends {
    /// To the nearest byte, half up, and cut; what is below zero is zero.
    fn cut(self, bytes: f64) -> u64 {
        ((bytes + 0.5).floor() as u64).clamp(self.min, self.max)
    }
}

impl Law {
    fn draw(&self, stream: &mut Stream) -> u64 {
        match self {
            Self::Lognormal { log_median, sigma, ends } => {
                ends.cut(libm::exp(log_median + sigma * stream.normal()))
            }
            Self::Normal { mean, sd, ends } => ends.cut(mean + sd * stream.normal()),
            Self::Uniform { low, high } => low + stream.below(high - low + 1),
            Self::Samples(all) => {
                let at = stream.below(all.len() as u64) as usize;
                all.get(at).copied().unwrap_or(0)
            }
            Self::File(_) => 0,
        }
    }

    /// The amount that a share `q` of all draws does not exceed.
    fn quantile(&self, q: f64) -> u64 {
        match self {
            Self::Lognormal { log_median, sigma, ends } => {
                ends.cut(libm::exp(log_median + sigma * normal_quantile(q)))
            }
            Self::Normal { mean, sd, ends } => ends.cut(mean + sd * normal_quantile(q)),
            Self::Uniform { low, high } => low + ((high - low) as f64 * q).round() as u64,
            Self::Samples(all) => {
                let rank = (libm::ceil(q * all.len() as f64 - 1e-9) as usize).clamp(1, all.len());
                all.get(rank - 1).copied().unwrap_or(0)
            }
            Self::File(_) => 0,
        }
    }
}

/// The quantile of the normal distribution of mean 0 and deviation 1, by bisection on its function: exact to
/// the last bits, and the same everywhere.
fn normal_quantile(q: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        let below = 0.5 * libm::erfc(-middle / std::f64::consts::SQRT_2);
        if below < q { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// Replaces every distribution of the tree by an amount, and answers what was drawn. What is wrong with one is
/// added to `problems`.
pub(super) fn settle(
    tree: &mut Value,
    file: &str,
    places: &Places<'_>,
    problems: &mut Vec<Problem>,
) -> Vec<Drawn> {
    let seed = tree.get("seed").and_then(Value::as_u64).unwrap_or(1);
    let how = tree.get("neighbours").and_then(Value::as_str);
    // A word that is wrong is told when the key itself is read.
    let how = how.and_then(|text| text.parse().ok()).unwrap_or_default();
    let folder = Path::new(file).parent().unwrap_or_else(|| Path::new(""));
    let mut drawn = Vec::new();
    for path in spots(tree) {
        let Some(value) = super::de::get(tree, &path).filter(|value| value.is_object()) else {
            continue;
        };
        let (bytes, samples) = match read(value, &path, folder, places) {
            Ok((law, samples)) => match how {
                Neighbours::Drawn => {
                    let stream = &mut Stream::named(seed, &path.to_string(), "neighbours");
                    (law.draw(stream), samples)
                }
                Neighbours::Quantile(q) => (law.quantile(q), samples),
            },
            Err(problem) => {
                problems.push(*problem);
                (0, None)
            }
        };
        put(tree, &path, Value::String(format!("{bytes} B")));
        drawn.push(Drawn { path, bytes: Bytes(bytes), samples });
    }
    drawn
}

/// Where a distribution may stand, of the keys that are there.
fn spots(tree: &Value) -> Vec<KeyPath> {
    let mut all = vec![KeyPath::of("machine.others_on_host")];
    let weaker = KeyPath::of("machine.weaker");
    match super::de::get(tree, &weaker) {
        Some(Value::Array(list)) => {
            all.extend((0..list.len()).map(|at| weaker.index(at).key("others_hold")));
        }
        Some(Value::Object(_)) => all.push(weaker.key("others_hold")),
        _ => {}
    }
    let events = tree.get("events").and_then(Value::as_array).map_or(0, Vec::len);
    for at in 0..events {
        let event = KeyPath::of("events").index(at);
        all.extend([event.key("others_hold"), event.key("host_others_hold")]);
        for growth in ["others_grow", "host_others_grow"] {
            all.extend([event.key(growth).key("to"), event.key(growth).key("by")]);
        }
    }
    all
}

fn put(tree: &mut Value, path: &KeyPath, value: Value) {
    let mut here = tree;
    for step in &path.0 {
        let next = match step {
            Step::Key(key) => here.get_mut(key.as_str()),
            Step::Index(index) => here.get_mut(*index),
        };
        match next {
            Some(next) => here = next,
            None => return,
        }
    }
    *here = value;
}

fn read(
    value: &Value,
    path: &KeyPath,
    folder: &Path,
    places: &Places<'_>,
) -> Result<(Law, Option<SamplesFile>), Box<Problem>> {
    let law = Law::deserialize(Node { value, path: path.clone() }).map_err(|fault: Fault| {
        let at = fault.path.clone().unwrap_or_else(|| path.clone());
        let shown = super::de::get(value, &KeyPath(at.0[path.0.len().min(at.0.len())..].to_vec()))
            .map(|value| value.to_string());
        Box::new(describe(&fault.kind, &at, fault.part, shown, places))
    })?;
    let Law::File(name) = law else { return Ok((law, None)) };
    let read = samples_of(&folder.join(&name));
    let whole =
        |(all, sha256)| (Law::Samples(all), Some(SamplesFile { name: name.clone(), sha256 }));
    read.map(whole).map_err(|why| {
        let message = format!("`{path}`: {name}: {why}");
        Box::new(places.problem(Code::BadValue, &path.key("samples"), Part::Value, message))
    })
}

/// Most bytes of a file of samples.
const MAX_FILE: u64 = 16 << 20;

/// Amounts of a file, one a line, and its hash; empty lines and what follows `#` are left out.
fn samples_of(file: &Path) -> Result<(Vec<u64>, String), String> {
    let about = std::fs::metadata(file).map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > MAX_FILE {
        return Err(format!("it is no file of at most {MAX_FILE} bytes"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let amount: Bytes = line.parse().map_err(|error| format!("line {}: {error}", at + 1))?;
        all.push(amount.0);
    }
    all.sort_unstable();
    if all.is_empty() {
        return Err("it holds no sample".to_owned());
    }
    let hash = Sha256::new().chain_update(text.as_bytes());
    Ok((all, crate::digest::hex(hash)))
}

fn sigma<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.0, 4.0)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LognormalForm {
    /// Median; or `mean`.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"4 GiB")]
    median: Option<Bytes>,
    /// Mean; or `median`.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"5 GiB")]
    mean: Option<Bytes>,
    /// Standard deviation of the logarithm.
    #[serde(default, deserialize_with = "sigma")]
    #[schemars(required, range(min = 0, max = 4), example = &0.5)]
    sigma: Option<f64>,
    /// Smaller amounts become this.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"1 GiB")]
    min: Option<Bytes>,
    /// Larger amounts become this.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"40 GiB")]
    max: Option<Bytes>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NormalForm {
    /// Mean.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(required, with = "Amount", example = &"4 GiB")]
    mean: Option<Bytes>,
    /// Standard deviation.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(required, with = "Amount", example = &"1 GiB")]
    sd: Option<Bytes>,
    /// Smaller amounts become this.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"1 GiB")]
    min: Option<Bytes>,
    /// Larger amounts become this.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"40 GiB")]
    max: Option<Bytes>,
}

fn ends<E: de::Error>(min: Option<Bytes>, max: Option<Bytes>) -> Result<Ends, E> {
    let (min, max) = (min.unwrap_or(Bytes::ZERO).0, max.map_or(u64::MAX / 2, |max| max.0));
    match min <= max {
        true => Ok(Ends { min, max }),
        false => {
            Err(E::custom(format!("`min` is {}, above `max`, which is {}", Bytes(min), Bytes(max))))
        }
    }
}

struct Lognormal(Law);
struct Normal(Law);

impl Form for LognormalForm {
    type Whole = Lognormal;
    const EXPECTED: &'static str = "a law, such as `{median: 4 GiB, sigma: 0.5}`";

    fn build<E: de::Error>(self) -> Result<Lognormal, E> {
        let sigma = self.sigma.ok_or_else(|| E::missing_field("sigma"))?;
        let log_median = match (self.mean, self.median) {
            (Some(Bytes(mean @ 1..)), None) => libm::log(mean as f64) - sigma * sigma / 2.0,
            (None, Some(Bytes(median @ 1..))) => libm::log(median as f64),
            _ => {
                let why = "a lognormal law has either a `mean` or a `median`, above 0 B";
                return Err(E::custom(why));
            }
        };
        Ok(Lognormal(Law::Lognormal { log_median, sigma, ends: ends(self.min, self.max)? }))
    }
}

impl Form for NormalForm {
    type Whole = Normal;
    const EXPECTED: &'static str = "a law, such as `{mean: 4 GiB, sd: 1 GiB}`";

    fn build<E: de::Error>(self) -> Result<Normal, E> {
        let mean = self.mean.ok_or_else(|| E::missing_field("mean"))?.0 as f64;
        let sd = self.sd.ok_or_else(|| E::missing_field("sd"))?.0 as f64;
        Ok(Normal(Law::Normal { mean, sd, ends: ends(self.min, self.max)? }))
    }
}

impl<'de> Deserialize<'de> for Lognormal {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<LognormalForm, D>(d)
    }
}

impl<'de> Deserialize<'de> for Normal {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<NormalForm, D>(d)
    }
}

/// The two ends, lowest first.
struct Span(u64, u64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Vec::<Amount>::deserialize(d)?.as_slice() {
            [low, high] if low.0 <= high.0 => Ok(Self(low.0.0, high.0.0)),
            _ => Err(de::Error::custom(
                "`uniform` is a list of two, lowest first, such as `uniform: [2 GiB, 12 GiB]`",
            )),
        }
    }
}

/// Samples in the file, or the name of one.
enum Samples {
    Here(Vec<u64>),
    There(String),
}

impl<'de> Deserialize<'de> for Samples {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Samples;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a list of amounts, such as `[2 GiB, 6 GiB]`, or the name of a file of such",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Samples, E> {
                Ok(Samples::There(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Samples, A::Error> {
                let mut all = Vec::new();
                while let Some(Amount(Bytes(amount))) = list.next_element()? {
                    all.push(amount);
                }
                all.sort_unstable();
                match all.is_empty() {
                    true => Err(de::Error::custom("there is at least one sample")),
                    false => Ok(Samples::Here(all)),
                }
            }
        }
        d.deserialize_any(Form)
    }
}

/// The names of the laws.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum LawName {
    Lognormal,
    Normal,
    Uniform,
    Samples,
}

impl<'de> Deserialize<'de> for Law {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct LawVisitor;
        impl<'de> Visitor<'de> for LawVisitor {
            type Value = Law;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "an amount such as `4 GiB`, or a law such as `{lognormal: {median: 4 GiB, sigma: 0.5}}`",
                )
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Law, A::Error> {
                let law = match map.next_key()? {
                    Some(LawName::Lognormal) => map.next_value::<Lognormal>()?.0,
                    Some(LawName::Normal) => map.next_value::<Normal>()?.0,
                    Some(LawName::Uniform) => {
                        let Span(low, high) = map.next_value()?;
                        Law::Uniform { low, high }
                    }
                    Some(LawName::Samples) => match map.next_value()? {
                        Samples::Here(all) => Law::Samples(all),
                        Samples::There(file) => Law::File(file),
                    },
                    None => return Err(de::Error::custom(ONE_LAW)),
                };
                match map.next_key::<LawName>()? {
                    None => Ok(law),
                    Some(_) => Err(de::Error::custom(ONE_LAW)),
                }
            }
        }
        d.deserialize_any(LawVisitor)
    }
}

const ONE_LAW: &str = "a distribution has one law: `lognormal`, `normal`, `uniform` or `samples`";

/// An amount, or a distribution of amounts: for the schema alone.
pub(crate) struct Held;

impl JsonSchema for Held {
    fn schema_name() -> Cow<'static, str> {
        "Held".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let amount = g.subschema_for::<Amount>();
        let lognormal = g.subschema_for::<LognormalForm>();
        let normal = g.subschema_for::<NormalForm>();
        json_schema!({ "title": "amount or distribution", "anyOf": [
            amount,
            { "type": "object", "additionalProperties": false, "minProperties": 1,
              "maxProperties": 1, "properties": {
                "lognormal": { "anyOf": [lognormal],
                  "description": "A lognormal law, cut at the ends." },
                "normal": { "anyOf": [normal],
                  "description": "A normal law, cut at the ends and at 0 B." },
                "uniform": { "title": "[lowest, highest]", "type": "array",
                  "description": "Each amount from the first to the second as likely.",
                  "items": amount, "minItems": 2, "maxItems": 2,
                  "examples": [["2 GiB", "12 GiB"]] },
                "samples": { "title": "list of amount or file", "anyOf": [
                    { "type": "array", "items": amount, "minItems": 1 },
                    { "type": "string" } ],
                  "description": "Measured amounts, each as likely: here, or in a file beside the scenario, one a \
                                  line.",
                  "examples": [["2 GiB", "6 GiB"]] },
              } },
        ]})
    }
}
