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
    let bytes_per_block = layers.iter().map(LayerSpec::page_size).sum();
    let groups = match layers.first() {
        Some(&spec) => vec![Group { layers: (0..layers.len()).collect(), spec }],
        None => Vec::new(),
    };
    let why = why(rules, "one group: sum over layers of page size")
        .with("layers", layers.len())
        .with("page of the first layer", layers.first().map_or(0, |l| l.page_size().0));
    Grouping { layers, groups, bytes_per_block, padding: Vec::new(), why }
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
                    let block_size = layer.block_size * (largest.0 / page.0);
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
    let pages = |g: &Group| g.layers.iter().map(|&i| layers[i].page_size()).sum::<Bytes>();
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
