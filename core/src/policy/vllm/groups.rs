//! Groups of layers that share a block table, and the bytes of one block id over all of them.

use super::{
    refusal::Refusal,
    rules::{GroupSizeRule, Rules},
    settings::Settings,
    spec::{Kind, LayerSpec},
};
use crate::{
    figure::{Tag, Why},
    units::Bytes,
};

/// Layers with one block table. A block id means the same byte range in every group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Indices into the layers that were grouped.
    pub layers: Vec<usize>,
    /// Spec that stands for them: kind and block size.
    pub spec: LayerSpec,
}

/// A bucket of equal layers that does not fill its groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Padding {
    /// Padding layers added.
    pub layers: u64,
    /// Real layers of the bucket.
    pub bucket: u64,
}

impl Padding {
    /// Waste in percent of the bucket, as the engine warns of it.
    #[must_use]
    pub fn percent(self) -> f64 {
        self.layers as f64 / self.bucket.max(1) as f64 * 100.0
    }
}

/// How one rank's layers are grouped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grouping {
    /// The layers with the block sizes and padding that grouping gave them.
    pub layers: Vec<LayerSpec>,
    /// The groups, in the order of their first layer.
    pub groups: Vec<Group>,
    /// Bytes of one block id: the largest sum of pages over groups.
    pub bytes_per_block: Bytes,
    /// Buckets that waste memory.
    pub padding: Vec<Padding>,
    /// Derivation of `bytes_per_block`.
    pub why: Why,
}

impl Grouping {
    /// Blocks that one request of `len` tokens takes, summed over groups.
    #[must_use]
    pub fn blocks_per_request(&self, settings: &Settings, len: u64) -> u64 {
        self.groups.iter().map(|g| g.spec.blocks(settings, len)).fold(0, u64::saturating_add)
    }

    /// Smallest block size of a group, tokens.
    #[must_use]
    pub fn min_block_size(&self) -> u64 {
        self.groups.iter().map(|g| g.spec.block_size).min().unwrap_or(0)
    }
}

/// Groups the layers of one rank; layers that cache nothing are left out.
///
/// Source: vLLM `kv_cache_utils.get_kv_cache_groups` (0.10+), `unify_hybrid_kv_cache_specs`.
///
/// # Errors
/// [`Refusal::CannotUnify`] when a latent page does not divide the largest page.
pub fn group(settings: &Settings, layers: &[LayerSpec]) -> Result<Grouping, Refusal> {
    let promote =
        !settings.hybrid_manager.is_on() || settings.rules.group_size == GroupSizeRule::PromoteAll;
    let layers: Vec<LayerSpec> = layers
        .iter()
        .filter(|l| l.caches())
        .map(|l| if promote { promoted(*l) } else { *l })
        .collect();
    if is_one_type(&layers) {
        return Ok(single(&settings.rules, layers));
    }
    let layers = unify_pages(layers)?;
    Ok(hybrid(&settings.rules, layers))
}

/// A window or chunk layer stored as full attention.
fn promoted(layer: LayerSpec) -> LayerSpec {
    match layer.kind {
        Kind::SlidingWindow { .. } | Kind::ChunkedLocal { .. } => {
            LayerSpec { kind: Kind::Full, ..layer }
        }
        _ => layer,
    }
}

/// One type and one block size, whatever the widths: a single group. Full and latent count as one.
fn is_one_type(layers: &[LayerSpec]) -> bool {
    let class = |kind| if kind == Kind::Latent { Kind::Full } else { kind };
    layers.windows(2).all(|pair| {
        class(pair[0].kind) == class(pair[1].kind) && pair[0].block_size == pair[1].block_size
    })
}

fn single(rules: &Rules, layers: Vec<LayerSpec>) -> Grouping {
    let bytes_per_block = sum_pages(layers.iter());
    let groups = match layers.first() {
        Some(&spec) => vec![Group { layers: (0..layers.len()).collect(), spec }],
        None => Vec::new(),
    };
    let why = why(rules, "one group: sum over layers of page size")
        .with("layers", layers.len())
        .with("page of the first layer", layers.first().map_or(0, |l| l.page_size().0));
    Grouping { layers, groups, bytes_per_block, padding: Vec::new(), why }
}

/// Saturates, so that an absurd block size cannot overflow.
fn sum_pages<'a>(layers: impl Iterator<Item = &'a LayerSpec>) -> Bytes {
    layers.map(LayerSpec::page_size).fold(Bytes::ZERO, Bytes::saturating_add)
}

fn why(rules: &Rules, rule: &str) -> Why {
    Why::new(Tag::Computed, rule, format!("{} kv_cache_utils.get_kv_cache_groups", rules.release()))
}

/// Brings every page to the largest: a larger block where it divides, padding for mamba and
/// head-wise attention elsewhere. Source: vLLM `unify_kv_cache_spec_page_size`.
fn unify_pages(layers: Vec<LayerSpec>) -> Result<Vec<LayerSpec>, Refusal> {
    let largest = layers.iter().map(LayerSpec::page_size).max().unwrap_or(Bytes::ZERO);
    layers
        .into_iter()
        .map(|layer| {
            let page = layer.page_size();
            if page == largest {
                return Ok(layer);
            }
            match layer.kind {
                Kind::Mamba => Ok(LayerSpec { page_size_padded: Some(largest), ..layer }),
                _ if largest.0.is_multiple_of(page.0) => {
                    let block_size = layer.block_size.saturating_mul(largest.0 / page.0);
                    Ok(LayerSpec { block_size, ..layer })
                }
                Kind::Latent => Err(Refusal::CannotUnify { page, largest }),
                _ => Ok(LayerSpec { page_size_padded: Some(largest), ..layer }),
            }
        })
        .collect()
}

fn hybrid(rules: &Rules, layers: Vec<LayerSpec>) -> Grouping {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        match buckets.iter_mut().find(|b| layers[b[0]] == *layer) {
            Some(bucket) => bucket.push(i),
            None => buckets.push(vec![i]),
        }
    }
    let size = group_size(rules.group_size, &buckets);
    let mut groups = Vec::new();
    let mut padding = Vec::new();
    for bucket in &buckets {
        let cuts = bucket.len().div_ceil(size);
        for cut in 0..cuts {
            let members: Vec<usize> = bucket.iter().copied().skip(cut).step_by(cuts).collect();
            groups.push(Group { layers: members, spec: layers[bucket[0]] });
        }
        let short = (cuts * size - bucket.len()) as u64;
        if short > 0 {
            padding.push(Padding { layers: short, bucket: bucket.len() as u64 });
        }
    }
    let pages = |g: &Group| sum_pages(g.layers.iter().map(|&i| &layers[i]));
    let bytes_per_block = groups.iter().map(pages).max().unwrap_or(Bytes::ZERO);
    let why = why(rules, "hybrid: the largest group's sum of page sizes")
        .with("groups", groups.len())
        .with("group size", size)
        .with("page", layers.first().map_or(0, |l| l.page_size().0));
    Grouping { layers, groups, bytes_per_block, padding, why }
}

fn group_size(rule: GroupSizeRule, buckets: &[Vec<usize>]) -> usize {
    let smallest = buckets.iter().map(Vec::len).min().unwrap_or(1);
    let largest = buckets.iter().map(Vec::len).max().unwrap_or(1);
    match rule {
        GroupSizeRule::Factor { num, den } if (largest as u64) * den < (smallest as u64) * num => {
            largest
        }
        _ => smallest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::vllm::testing::{layers, settings};

    const WINDOW: Kind = Kind::SlidingWindow { window: 1024 };

    fn mix(minor: u16, full: usize, window: usize) -> Grouping {
        let mut all = layers(Kind::Full, full, 16);
        all.extend(layers(WINDOW, window, 16));
        group(&settings(minor, 131_072, |_| {}), &all).unwrap()
    }

    fn shape(g: &Grouping) -> (Vec<usize>, u64) {
        (g.groups.iter().map(|g| g.layers.len()).collect(), g.bytes_per_block.0 / (16 * 4096))
    }

    #[test]
    fn group_size_by_release() {
        assert_eq!(shape(&mix(20, 18, 18)), (vec![18, 18], 18));
        // 10 and 12: all factors prefer 12; 10 and 13: only 1.5 does; 0.11 keeps the smallest.
        assert_eq!(shape(&mix(11, 10, 12)).1, 10);
        assert_eq!(shape(&mix(12, 10, 12)), (vec![10, 12], 12));
        assert_eq!(shape(&mix(15, 10, 13)), (vec![10, 7, 6], 10));
        assert_eq!(shape(&mix(18, 10, 13)), (vec![10, 13], 13));
        // 10 and 15 is not below 1.5 times.
        assert_eq!(shape(&mix(18, 10, 15)).1, 10);
        // No hybrid manager before 0.10: all layers in one group.
        assert_eq!(shape(&mix(9, 10, 12)), (vec![22], 22));
    }

    #[test]
    fn padding_is_counted_as_the_engine_warns() {
        let g = mix(20, 11, 34);
        assert_eq!(shape(&g), (vec![11, 9, 9, 8, 8], 11));
        assert_eq!(g.padding, [Padding { layers: 10, bucket: 34 }]);
        assert_eq!(format!("{:.2}", g.padding[0].percent()), "29.41");
        // Layers are dealt in turn.
        assert_eq!(g.groups[1].layers[..2], [11, 15]);
    }

    #[test]
    fn without_the_hybrid_manager_windows_are_full() {
        let s = settings(20, 131_072, |a| a.disable_hybrid_kv_cache_manager = true);
        let mut all = layers(Kind::Full, 5, 16);
        all.extend(layers(WINDOW, 29, 16));
        let g = group(&s, &all).unwrap();
        assert_eq!(shape(&g), (vec![34], 34));
        assert_eq!(g.blocks_per_request(&s, 131_072), 8192);
    }

    #[test]
    fn pages_are_brought_to_the_largest() {
        let s = settings(20, 4096, |_| {});
        let with = |other: LayerSpec| group(&s, &[layers(Kind::Full, 1, 16)[0], other]);
        // Half the page: twice the block. Same type and block size would be one group.
        let half = LayerSpec { bytes: 2048, kind: WINDOW, ..layers(WINDOW, 1, 16)[0] };
        assert_eq!(with(half).unwrap().layers[1].block_size, 32);
        // A page that does not divide is padded, a latent is refused.
        let odd = LayerSpec { bytes: 3000, ..half };
        assert_eq!(with(odd).unwrap().layers[1].page_size(), Bytes(65_536));
        let latent = LayerSpec { block_size: 10, ..LayerSpec::latent(576, 2, 16) };
        let refused = with(latent).unwrap_err();
        assert_eq!(refused, Refusal::CannotUnify { page: Bytes(11_520), largest: Bytes(65_536) });
        // Latents and their index are one type: one group of both pages.
        let sparse = [LayerSpec::packed_latent(656, 64), LayerSpec::indexer(128, 64)];
        assert_eq!(group(&s, &sparse).unwrap().bytes_per_block, Bytes(64 * 788));
    }
}
