//! Recorded workloads that many runs share: each file is read once.

use super::{Loaded, TraceError, load};
use crate::scenario::{Scenario, Smear, TraceSource, Workload};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Traces that were read, for runs of one process. A file that changes meanwhile is not read again.
#[derive(Debug, Default)]
pub struct TraceStore {
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    source: TraceSource,
    folder: PathBuf,
    /// The seed, where the trace depends on it.
    seed: Option<u64>,
    loaded: Arc<Loaded>,
}

/// Most traces that are kept.
const MOST: usize = 64;

impl TraceStore {
    /// The traces of a scenario, as [`Scenario::traces`] reads them.
    ///
    /// # Errors
    ///
    /// [`TraceError`] of the first that cannot be read.
    pub fn traces(
        &self,
        scenario: &Scenario,
        file: &Path,
        strict: bool,
    ) -> Result<Vec<Arc<Loaded>>, TraceError> {
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        let sources = scenario.workload.iter().flat_map(Workload::traces);
        sources.map(|source| self.one(source, folder, scenario.seed, strict)).collect()
    }

    fn one(
        &self,
        source: &TraceSource,
        folder: &Path,
        seed: u64,
        strict: bool,
    ) -> Result<Arc<Loaded>, TraceError> {
        let mut source = source.clone();
        source.options.strict |= strict;
        let drawn = source.shuffle || source.smear != Smear::No;
        let key = drawn.then_some(seed);
        // Whoever panicked with the lock held left whole traces behind.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |one: &&Kept| one.seed == key && one.folder == folder && one.source == source;
        if let Some(found) = kept.iter().find(is_it) {
            return Ok(found.loaded.clone());
        }
        // Read with the lock held: the other runs wait for this very file.
        let loaded = Arc::new(load(&source, folder, seed, strict)?);
        if kept.len() >= MOST {
            kept.remove(0);
        }
        let folder = folder.to_path_buf();
        kept.push(Kept { source, folder, seed: key, loaded: loaded.clone() });
        Ok(loaded)
    }
}
