//! All scenario files of a folder, in a fixed order.

use crate::{
    path::KeyPath,
    problem::{Code, Place, Problem, Problems},
    scenario::Scenario,
};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

/// Folders with catalogs, which hold no scenarios.
pub const CATALOGS: [&str; 2] = ["devices", "models"];

/// Deepest folder that is looked into.
const MAX_DEPTH: usize = 16;

/// One scenario file.
#[derive(Debug)]
pub struct Entry {
    /// Its path, below the folder that was asked for.
    pub path: PathBuf,
    /// What it holds, or what is wrong with it.
    pub scenario: Result<Scenario, Problems>,
}

/// Paths of the `*.yaml` files below `folder`, sorted by path; folders named as in [`CATALOGS`], hidden
/// files and linked folders are left out.
///
/// # Errors
/// When a folder cannot be listed.
pub fn scenario_files(folder: &Path) -> Result<Vec<PathBuf>, Problems> {
    let mut files = Vec::new();
    collect(folder, 0, &mut files)
        .map_err(|error| Problems::unreadable(&folder.display().to_string(), &error))?;
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("folders are more than {MAX_DEPTH} deep")));
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            if !CATALOGS.contains(&name.as_ref()) {
                collect(&path, depth + 1, files)?;
            }
        } else if path.extension() == Some(OsStr::new("yaml")) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads every scenario below `folder`. A name that two files share is a problem of the second.
///
/// # Errors
/// When a folder cannot be listed; problems of one file stand in its entry.
pub fn load_folder(folder: &Path) -> Result<Vec<Entry>, Problems> {
    let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut entries = Vec::new();
    for path in scenario_files(folder)? {
        let mut scenario = Scenario::load(&path, &[]);
        if let Ok(read) = &scenario {
            if let Some(other) = names.get(&read.name) {
                scenario = Err(same_name(&path, &read.name, other));
            } else {
                names.insert(read.name.clone(), path.clone());
            }
        }
        entries.push(Entry { path, scenario });
    }
    Ok(entries)
}

fn same_name(path: &Path, name: &str, other: &Path) -> Problems {
    let text = fs::read_to_string(path).unwrap_or_default();
    let key = KeyPath::of("name");
    let place = Place::Text(crate::yaml::locate(&text, &key, crate::yaml::Part::Value));
    let message = format!("`{name}` is also the name of {}", other.display());
    let problem = Problem::new(Code::Contradiction, place, key, message);
    Problems::new(&path.display().to_string(), &text, vec![problem])
}
