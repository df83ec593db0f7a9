//! Names of devices in a log.

/// Words of which every line that names a device holds one.
pub(super) const WORDS: &[&str] = &[
    "NVIDIA ",
    "device_name=",
    "AMD Instinct",
    "AMD Radeon",
    "Tesla ",
    "Ascend9",
    "Ascend 9",
    "Gaudi",
];

/// What a name begins with; what follows is a digit or a letter of the series.
const STARTS: [&str; 16] = [
    "NVIDIA A",
    "NVIDIA H",
    "NVIDIA B",
    "NVIDIA L",
    "NVIDIA GB",
    "NVIDIA GH",
    "NVIDIA RTX",
    "NVIDIA GeForce",
    "NVIDIA T",
    "NVIDIA Thor",
    "NVIDIA Jetson",
    "NVIDIA P",
    "AMD Instinct MI",
    "AMD Radeon",
    "Tesla ",
    "Ascend",
];

/// Bytes of a name that are kept.
const NAME: usize = 48;

/// The device that the line names, with blanks for underscores.
pub(super) fn read(line: &str) -> Option<String> {
    if let Some(rest) = super::fields::after(line, "device_name=") {
        let end = rest.find([',', ']', ' ', ')', '.']).unwrap_or(rest.len());
        let name = rest.get(..end)?.trim_matches(['\'', '"']).replace('_', " ");
        return (!name.is_empty() && name.len() <= NAME).then_some(name);
    }
    let at = STARTS.iter().filter_map(|start| line.find(start)).min()?;
    let rest = line.get(at..)?;
    let end =
        rest.find([',', ';', '|', '"', '\'', '(', ')', ':', '/', ']', '.']).unwrap_or(rest.len());
    let name = rest.get(..end)?;
    let name = name.split("  ").next()?.trim();
    let series = name.bytes().any(|b| b.is_ascii_digit()) || name.ends_with("Thor");
    (series && name.len() <= NAME).then(|| name.to_owned())
}
