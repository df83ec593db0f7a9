//! Memory of AMD cards as the amdgpu driver's files tell it: no tool is needed.

use crate::linux::Roots;
use plimsoll_core::units::Bytes;
use std::fs;

/// One card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AmdGpu {
    /// Its number among the cards that tell their memory, in the order of the driver's.
    pub index: u32,
    /// Its memory (`mem_info_vram_total`).
    pub total: Bytes,
    /// What of it is used (`mem_info_vram_used`).
    pub used: Bytes,
}

/// The cards, in the order of the driver's numbers; empty without the driver.
#[must_use]
pub fn read(roots: &Roots) -> Vec<AmdGpu> {
    let Ok(entries) = fs::read_dir(roots.sys.join("class/drm")) else { return Vec::new() };
    let mut cards: Vec<(u32, Bytes, Bytes)> = entries
        .flatten()
        .filter_map(|entry| {
            // `card0-HDMI-A-1` is a connector.
            let number = entry.file_name().to_str()?.strip_prefix("card")?.parse().ok()?;
            let amount = |file: &str| {
                let path = entry.path().join("device").join(file);
                fs::read_to_string(path).ok()?.trim().parse().ok().map(Bytes)
            };
            Some((number, amount("mem_info_vram_total")?, amount("mem_info_vram_used")?))
        })
        .collect();
    cards.sort_by_key(|(number, ..)| *number);
    (0..).zip(cards).map(|(index, (_, total, used))| AmdGpu { index, total, used }).collect()
}
