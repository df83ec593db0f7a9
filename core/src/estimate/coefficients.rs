//! What a profile fits of the time model: shares of a device's peaks that kernels reach, and what a step
//! costs beside them. They belong to a device and an engine, not to a model: a model's work stays
//! computed, so that what one model showed holds for another.

use super::{
    roofline::KernelRates,
    time_inputs::{TimeBasis, bandwidth, link_bytes_per_second, link_nanos, operations, scale},
};
use crate::{
    device::{DeviceProfile, Link},
    figure::{FigureValue, NamedFigure, Tag, Why},
    units::Nanos,
};

/// One coefficient of the time model. Shares are parts per million, times nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Coefficient {
    /// Constant of a step: scheduler, launch, sampling, the way of a result to the loop.
    Step,
    /// Each request of a step: its rows of tables, its sampling, its part of the output.
    Request,
    /// Share of the bandwidth at which weights are read.
    WeightBandwidth,
    /// Share of the bandwidth at which attention reads KV.
    KvBandwidth,
    /// Share of the dense 16-bit rate that matrix products reach.
    Matmul,
    /// The same of routed experts, whose products are small.
    Experts,
    /// Share of the dense 16-bit rate that attention scores reach.
    Attention,
    /// Share of the assumed bus bandwidth that collectives reach.
    Link,
    /// Latency of one collective.
    Collective,
}

/// What a coefficient may be; a fit stays inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Smallest value.
    pub least: u64,
    /// Largest value.
    pub most: u64,
}

impl Coefficient {
    /// Every coefficient, in the order of a profile.
    pub const ALL: [Self; 9] = [
        Self::Step,
        Self::Request,
        Self::WeightBandwidth,
        Self::KvBandwidth,
        Self::Matmul,
        Self::Experts,
        Self::Attention,
        Self::Link,
        Self::Collective,
    ];

    /// Its name in a profile.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Step => "step_ns",
            Self::Request => "request_ns",
            Self::WeightBandwidth => "weight_bandwidth_ppm",
            Self::KvBandwidth => "kv_bandwidth_ppm",
            Self::Matmul => "matmul_ppm",
            Self::Experts => "experts_ppm",
            Self::Attention => "attention_ppm",
            Self::Link => "link_ppm",
            Self::Collective => "collective_ns",
        }
    }

    /// The coefficient of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|coefficient| coefficient.name() == name)
    }

    /// What it is, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Step => "constant of a step",
            Self::Request => "each request of a step",
            Self::WeightBandwidth => "bandwidth reached by weights",
            Self::KvBandwidth => "bandwidth reached by KV reads",
            Self::Matmul => "arithmetic reached by matrix products",
            Self::Experts => "arithmetic reached by routed experts",
            Self::Attention => "arithmetic reached by attention scores",
            Self::Link => "bandwidth reached by collectives",
            Self::Collective => "latency of one collective",
        }
    }

    /// Whether it is a share of a peak, in parts per million.
    #[must_use]
    pub const fn is_share(self) -> bool {
        !matches!(self, Self::Step | Self::Request | Self::Collective)
    }

    /// Its bounds. Shares may pass one, for a catalog's peak may be too low; nothing is free.
    #[must_use]
    pub const fn bounds(self) -> Bounds {
        match self {
            Self::Step => Bounds { least: 1_000, most: 1_000_000_000 },
            Self::Request => Bounds { least: 10, most: 10_000_000 },
            Self::Collective => Bounds { least: 100, most: 10_000_000 },
            _ => Bounds { least: 1_000, most: 4_000_000 },
        }
    }
}

/// A value for each coefficient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coefficients {
    values: [u64; Coefficient::ALL.len()],
}

/// Constant of a step that nothing was measured of. Assumed.
const STEP_NANOS: u64 = 1_000_000;
/// Each request of a step. Assumed.
const REQUEST_NANOS: u64 = 5_000;
const WEIGHT_PPM: u64 = 800_000;
const KV_PPM: u64 = 700_000;
const MATMUL_PPM: u64 = 550_000;
const EXPERTS_PPM: u64 = 300_000;
const ATTENTION_PPM: u64 = 250_000;
const LINK_PPM: u64 = 1_000_000;

impl Coefficients {
    /// What is assumed on a device before anything was measured.
    #[must_use]
    pub const fn assumed(link: Link) -> Self {
        let values = [
            STEP_NANOS,
            REQUEST_NANOS,
            WEIGHT_PPM,
            KV_PPM,
            MATMUL_PPM,
            EXPERTS_PPM,
            ATTENTION_PPM,
            LINK_PPM,
            link_nanos(link),
        ];
        Self { values }
    }

    /// The value of one.
    #[must_use]
    pub fn get(&self, coefficient: Coefficient) -> u64 {
        self.values.get(coefficient as usize).copied().unwrap_or_default()
    }

    /// The same with another value of one, held within its bounds.
    #[must_use]
    pub fn with(mut self, coefficient: Coefficient, value: u64) -> Self {
        let Bounds { least, most } = coefficient.bounds();
        if let Some(slot) = self.values.get_mut(coefficient as usize) {
            *slot = value.clamp(least, most);
        }
        self
    }
}

/// Collectives of a layer: after attention and after the feed-forward part.
const COLLECTIVES_A_LAYER: u64 = 2;

impl TimeBasis {
    /// Puts the rates of a profile into the model. `evidence` says where each value is from: its tag and its
    /// source. `layers` counts for latencies; collectives are those that the model has.
    pub fn calibrate(
        &mut self,
        device: &DeviceProfile,
        layers: u64,
        values: &Coefficients,
        evidence: &dyn Fn(Coefficient) -> (Tag, String),
    ) {
        let (bytes, flops) = (bandwidth(device).0, operations(device).0);
        let share = |peak: u64, which| scale(peak, values.get(which), 1_000_000).max(1);
        let linked = self.model.link_bytes_per_token > 0;
        let collectives = if linked { COLLECTIVES_A_LAYER.saturating_mul(layers) } else { 0 };
        let latency = collectives.saturating_mul(values.get(Coefficient::Collective));
        let link = link_bytes_per_second(device.link);
        self.model.kernels = Some(KernelRates {
            weight_bytes_per_second: share(bytes, Coefficient::WeightBandwidth),
            kv_bytes_per_second: share(bytes, Coefficient::KvBandwidth),
            matmul_flops_per_second: share(flops, Coefficient::Matmul),
            expert_flops_per_second: share(flops, Coefficient::Experts),
            attention_flops_per_second: share(flops, Coefficient::Attention),
            request: Nanos(values.get(Coefficient::Request)),
        });
        self.model.bytes_per_second = share(bytes, Coefficient::WeightBandwidth);
        self.model.flops_per_second = share(flops, Coefficient::Matmul);
        if linked {
            self.model.link_bytes_per_second = share(link, Coefficient::Link);
        }
        self.model.overhead = Nanos(values.get(Coefficient::Step).saturating_add(latency));
        let replaced = ["bandwidth_bytes_per_second", "flops_per_second", "step_overhead_ns"];
        let gone = |name: &str| replaced.contains(&name) || name == "link_bytes_per_second";
        self.figures.retain(|figure| !gone(figure.name));
        let experts = self.model.experts.bytes > 0;
        for which in Coefficient::ALL {
            let used = match which {
                Coefficient::Link | Coefficient::Collective => linked,
                Coefficient::Experts => experts,
                _ => true,
            };
            if used {
                let (tag, source) = evidence(which);
                let mut why = Why::new(tag, which.meaning(), source);
                if which.is_share() {
                    why = why.with("peak", peak_of(which, bytes, flops, link));
                }
                let value = FigureValue::Count(values.get(which));
                self.figures.push(NamedFigure::new(which.name(), value, why));
            }
        }
    }
}

fn peak_of(which: Coefficient, bytes: u64, flops: u64, link: u64) -> String {
    match which {
        Coefficient::WeightBandwidth | Coefficient::KvBandwidth => format!("{bytes} B/s"),
        Coefficient::Link => format!("{link} B/s"),
        _ => format!("{flops} operations/s"),
    }
}
