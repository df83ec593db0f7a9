//! Turns the catalog folders into tables of (file name, names, text) that the crate embeds.
//! Only the names are read here; an entry is parsed when it is asked for.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../scenarios");
    let out = env::var("OUT_DIR")?;
    for folder in ["models", "devices"] {
        let from = root.join(folder);
        println!("cargo:rerun-if-changed={}", from.display());
        let table = table(&from)?;
        fs::write(Path::new(&out).join(format!("{folder}.rs")), table)?;
    }
    Ok(())
}

/// A slice literal of `(stem, names, text)`, sorted by stem. A folder that is not there is empty.
fn table(folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut files = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "yaml") {
                files.push(path.canonicalize()?);
            }
        }
    }
    files.sort();
    let mut out = String::from("&[\n");
    for path in &files {
        println!("cargo:rerun-if-changed={}", path.display());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let names = names(&fs::read_to_string(path)?);
        writeln!(out, "({stem:?}, &{names:?}, include_str!({:?})),", path.to_string_lossy())?;
    }
    out.push(']');
    Ok(out)
}

/// The values of top-level `hub_id:`, `name:` and `aliases: [a, b]`, in that form only.
fn names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines() {
        let value = ["hub_id:", "name:", "aliases:"].iter().find_map(|k| line.strip_prefix(k));
        let Some(value) = value else { continue };
        let list = value.trim().trim_start_matches('[').trim_end_matches(']');
        for name in list.split(',') {
            let name = name.trim().trim_matches(|c| c == '"' || c == '\'');
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
    }
    names
}
