//! Layers that repeat the one before are copied: a model has dozens, and they are all alike.

use super::event::BufferId;
use super::recorder::{Recorder, Start};
use super::setup::LayerMlp;

/// Follows the loop over the layers of a model.
#[derive(Default)]
pub(super) struct Series {
    /// Where the layer before began.
    before: Option<Start>,
}

impl Series {
    /// To be called where layer `at` of `layers` begins, which goes on from `hidden`. Answers how many layers
    /// from it on were written, all like the one before; `hidden` is the output of the last of them then.
    ///
    /// A layer depends on its kind and on what it begins with, and the first of a kind may make what later ones
    /// find. So the layer before has to be the second of its kind in a row.
    pub(super) fn copy(
        &mut self,
        rec: &mut Recorder,
        layers: &[LayerMlp],
        at: usize,
        hidden: &mut Option<BufferId>,
    ) -> usize {
        #[cfg(test)]
        if rec.asks {
            return 0;
        }
        let here = rec.start(*hidden);
        let before = self.before.replace(here);
        let (Some(before), Some(here)) = (before, &self.before) else { return 0 };
        let [.., first, second] = layers.get(..at).unwrap_or_default() else { return 0 };
        if first != second || !before.returns_in(here) {
            return 0;
        }
        let rest = layers.get(at..).unwrap_or_default();
        let alike = rest.iter().take_while(|mlp| *mlp == second).count();
        let Some(times) = u32::try_from(alike).ok().filter(|times| *times > 0) else { return 0 };
        *hidden = rec.copy(&before, times);
        self.before = None;
        alike
    }

    /// The layers from here on hold something else, too: nothing is known of the one before.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }
}
