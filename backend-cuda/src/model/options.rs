//! What a model on CUDA is opened for, and what is refused before a card is touched.

use super::error::CudaError;
use plimsoll_core::{
    policy::plimsoll::{KvCell, KvFormat, Settings, device::DeviceArgs},
    tape::own::DecoderShape,
    units::Bytes,
};

/// Most ranks: the devices of one machine.
const RANKS_MAX: u64 = 16;
/// Widest head that the kernels are built for.
const HEAD_MAX: u64 = 256;
/// Most of anything that a kernel counts in 32 bits with a sign.
const COUNT_MAX: u64 = 1 << 30;

/// The type of activations and matrices; sums are float32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Arithmetic {
    /// bfloat16.
    Bf16,
    /// float16.
    F16,
}

impl Arithmetic {
    /// The KV format of the same type.
    #[must_use]
    pub const fn kv(self) -> KvFormat {
        match self {
            Self::Bf16 => KvFormat::Bf16,
            Self::F16 => KvFormat::F16,
        }
    }

    /// Name, as in a flag.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }
}

/// What a model is opened for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// CUDA ordinals; a rank of tensor parallelism on each.
    pub devices: Vec<u32>,
    /// What the scheduler may form: the largest step, running requests, the longest sequence.
    pub settings: Settings,
    /// Consecutive positions of a page.
    pub page_tokens: u64,
    /// How keys and values are kept: in the arithmetic's type, or in fp8.
    pub kv: KvFormat,
    /// Type of activations and matrices.
    pub arithmetic: Arithmetic,
    /// Batch sizes whose decode step is captured as a graph ([`graph_sizes`]); none for no graphs.
    pub graphs: Vec<u64>,
    /// Margin and the pool's largest size.
    pub args: DeviceArgs,
    /// Pages of the pinned tier on the host; 0 for none.
    pub host_pages: u64,
    /// Workspace of the matrix library.
    pub workspace: Bytes,
    /// The matrix library's algorithms are timed on the device instead of taken from its heuristic: faster,
    /// and two starts may differ in the last bits.
    pub timed_products: bool,
    /// Memory that nobody claims is an error instead of a row.
    pub strict: bool,
}

impl CudaOptions {
    /// Device 0, bfloat16, a graph for every batch that may run.
    #[must_use]
    pub fn new(settings: Settings, page_tokens: u64) -> Self {
        Self {
            devices: vec![0],
            settings,
            page_tokens,
            kv: KvFormat::Bf16,
            arithmetic: Arithmetic::Bf16,
            graphs: graph_sizes(settings.max_running_requests),
            args: DeviceArgs::default(),
            host_pages: 0,
            workspace: Bytes::mib(32),
            timed_products: false,
            strict: false,
        }
    }

    /// The page of one rank.
    ///
    /// # Errors
    /// [`CudaError::Cell`].
    pub(crate) fn cell(&self, own: &DecoderShape) -> Result<KvCell, CudaError> {
        Ok(KvCell::new(own, self.kv, self.page_tokens)?)
    }

    /// Checks everything that needs no device.
    pub(crate) fn check(&self, shape: &DecoderShape) -> Result<(), CudaError> {
        shape.check()?;
        let settings = &self.settings;
        let (limits, running) = (settings.limits, settings.max_running_requests);
        for (what, value, most) in [
            ("ranks", self.devices.len() as u64, RANKS_MAX),
            ("head width", shape.head_dim, HEAD_MAX),
            ("vocabulary", shape.vocab, COUNT_MAX),
            ("tokens of a step", limits.tokens, COUNT_MAX),
            ("requests of a step", running, limits.tokens),
            ("context", settings.context_length, shape.context.min(COUNT_MAX)),
            ("pages of the host", self.host_pages + 1, COUNT_MAX),
        ] {
            if !(1..=most).contains(&value) {
                let allowed = format!("1 to {most}");
                return Err(CudaError::Option { what, value, allowed });
            }
        }
        for (at, device) in self.devices.iter().enumerate() {
            if self.devices[..at].contains(device) {
                let (what, value) = ("device", u64::from(*device));
                return Err(CudaError::Option { what, value, allowed: "each once".to_owned() });
            }
        }
        if self.kv != self.arithmetic.kv() && self.kv != KvFormat::Fp8E4m3 {
            let allowed = format!("{} or fp8_e4m3", self.arithmetic.kv().name());
            return Err(CudaError::KvFormat { given: self.kv.name(), allowed });
        }
        self.check_widths(shape)?;
        self.check_graphs(limits.outputs.min(running))
    }

    /// Rows that a product reads begin at multiples of 16 bytes.
    fn check_widths(&self, shape: &DecoderShape) -> Result<(), CudaError> {
        let own = shape.of_rank(self.devices.len() as u64)?;
        let inner = own.layers.iter().map(|layer| ("feed-forward width", layer.intermediate));
        let widths = [("hidden size", own.hidden), ("width of the query heads", own.q_width())];
        for (what, value) in widths.into_iter().chain(inner) {
            if !value.is_multiple_of(8) {
                let allowed = "a multiple of 8 on each rank".to_owned();
                return Err(CudaError::Option { what, value, allowed });
            }
        }
        Ok(())
    }

    fn check_graphs(&self, largest: u64) -> Result<(), CudaError> {
        let rising = self.graphs.windows(2).all(|pair| pair[0] < pair[1]);
        let wrong = |last: &u64| !rising || self.graphs[0] == 0 || *last > largest;
        match self.graphs.last().filter(|last| wrong(last)) {
            Some(last) => {
                let allowed = format!("rising sizes up to {largest}");
                Err(CudaError::Option { what: "batch of a graph", value: *last, allowed })
            }
            None => Ok(()),
        }
    }
}

/// Batch sizes of decode graphs for up to `most` running requests: 1, 2, 4, 8, 12, 16, then every 8th up to
/// 256, every 16th up to 512 and every 32nd beyond; the last is `most` itself. A batch runs in the smallest
/// one that holds it.
#[must_use]
pub fn graph_sizes(most: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut next = 1;
    while next < most {
        sizes.push(next);
        next += match next {
            1 => 1,
            2 => 2,
            4..12 => 4,
            12 => 4,
            16..256 => 8,
            256..512 => 16,
            _ => 32,
        };
    }
    if most > 0 {
        sizes.push(most);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::tape::own::{LayerShape, StepLimits};

    #[test]
    fn sizes_of_graphs() {
        assert_eq!(graph_sizes(0), [0_u64; 0]);
        assert_eq!(graph_sizes(1), [1]);
        assert_eq!(graph_sizes(8), [1, 2, 4, 8]);
        assert_eq!(graph_sizes(30), [1, 2, 4, 8, 12, 16, 24, 30]);
        let many = graph_sizes(600);
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(many.last(), Some(&600));
        assert!(many.contains(&256) && many.contains(&272) && !many.contains(&264));
        assert!(many.len() < 60);
    }

    fn shape() -> DecoderShape {
        DecoderShape {
            vocab: 100,
            hidden: 64,
            layers: vec![LayerShape { intermediate: 32, window: None }],
            q_heads: 4,
            kv_heads: 2,
            head_dim: 16,
            norm_eps: 1e-5,
            rope: vec![1.0; 8],
            tied: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            context: 128,
        }
    }

    #[test]
    fn options_out_of_range_are_errors() {
        let settings = Settings {
            max_running_requests: 8,
            chunked_prefill_size: 24,
            context_length: 128,
            limits: StepLimits { tokens: 32, outputs: 8 },
        };
        let right = CudaOptions::new(settings, 16);
        assert!(right.check(&shape()).is_ok());
        let told = |change: fn(&mut CudaOptions)| {
            let mut options = right.clone();
            change(&mut options);
            options.check(&shape()).unwrap_err().to_string()
        };
        assert_eq!(told(|o| o.devices.clear()), "ranks is 0; allowed: 1 to 16");
        assert_eq!(told(|o| o.devices = vec![1, 1]), "device is 1; allowed: each once");
        assert_eq!(told(|o| o.settings.context_length = 129), "context is 129; allowed: 1 to 128");
        let graphs = "allowed: rising sizes up to 8";
        assert_eq!(told(|o| o.graphs = vec![4, 2]), format!("batch of a graph is 2; {graphs}"));
        assert_eq!(told(|o| o.graphs = vec![9]), format!("batch of a graph is 9; {graphs}"));
        assert_eq!(
            told(|o| o.kv = KvFormat::F32),
            "keys and values in float32 with this arithmetic; allowed: bfloat16 or fp8_e4m3"
        );
        let requests = "requests of a step is 0; allowed: 1 to 32";
        assert_eq!(told(|o| o.settings.max_running_requests = 0), requests);
        let mut odd = shape();
        odd.layers[0].intermediate = 36;
        let error = right.check(&odd).unwrap_err().to_string();
        assert_eq!(error, "feed-forward width is 36; allowed: a multiple of 8 on each rank");
        let mut wide = shape();
        (wide.head_dim, wide.rope) = (320, vec![1.0; 160]);
        assert!(right.check(&wide).is_err());
    }
}
