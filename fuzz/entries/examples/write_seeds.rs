//! Writes the seeds of every target to `FOLDER/<target>/`, where the fuzzer starts from them.

use plimsoll_fuzz_entries::TARGETS;
use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("usage: write_seeds FOLDER"))?;
    for target in TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (index, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("seed-{index}")), seed)?;
        }
        let words = target.words.iter().map(|word| {
            let bytes: String = word.bytes().map(|b| format!("\\x{b:02x}")).collect();
            format!("\"{bytes}\"\n")
        });
        fs::write(folder.with_extension("dict"), words.collect::<String>())?;
    }
    Ok(())
}
