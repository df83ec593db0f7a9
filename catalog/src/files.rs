//! Models on disk: a folder, a `config.json`, a GGUF file, or the local Hugging Face cache.

use std::path::{Path, PathBuf};

/// Where the caller's environment puts the Hugging Face cache.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct HubPaths {
    /// `HF_HUB_CACHE`: the hub folder itself.
    pub hub_cache: Option<PathBuf>,
    /// `HF_HOME`: its parent.
    pub hf_home: Option<PathBuf>,
    /// The user's home folder, for the default `~/.cache/huggingface`.
    pub home: Option<PathBuf>,
}

impl HubPaths {
    /// The hub folder, by the order in which `huggingface_hub` looks for it.
    #[must_use]
    pub fn hub(&self) -> Option<PathBuf> {
        self.hub_cache
            .clone()
            .or_else(|| self.hf_home.as_ref().map(|p| p.join("hub")))
            .or_else(|| self.home.as_ref().map(|p| p.join(".cache/huggingface/hub")))
    }
}

/// The snapshot folder of `hub_id` in the cache: the one that `refs/<revision>` names, else the
/// revision's own folder. `None` when it is not there or the id is not `org/name` (or `name`).
#[must_use]
pub fn snapshot(hub: &Path, hub_id: &str, revision: &str) -> Option<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let parts: Vec<&str> = hub_id.split('/').collect();
    let named = |p: &&str| !p.is_empty() && !p.starts_with('.') && p.chars().all(plain);
    if parts.len() > 2 || !parts.iter().all(named) || revision.contains("..") {
        return None;
    }
    let model = hub.join(format!("models--{}", parts.join("--")));
    let commit = std::fs::read_to_string(model.join("refs").join(revision));
    let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
    let folder = model.join("snapshots").join(commit);
    folder.is_dir().then_some(folder)
}
