//! `explain`: pages about codes, operating rules and usual answers that are wrong.

use crate::{
    args::{ExplainArgs, Format},
    exit::{self, Failure},
    output::Output,
    render::explain as render,
};
use plimsoll_diagnosis::pages::{self, PAGES, Page};
use plimsoll_replay::problem::near;

/// Shows the pages that are asked for, or what there is.
pub fn explain(args: &ExplainArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let asked: Vec<&Page> = args.names.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
    let listed = asked.is_empty();
    let pages: Vec<&Page> = if listed { PAGES.iter().collect() } else { asked };
    output.write(&match format {
        Format::Json => format!("{:#}\n", render::json(&pages)),
        Format::Jsonl => {
            pages.iter().map(|page| format!("{}\n", render::page_json(page))).collect()
        }
        Format::Md if listed => render::list_markdown(),
        Format::Md => render::markdown(&pages),
        Format::Human | Format::Csv | Format::Sarif if listed => render::list(output),
        Format::Human | Format::Csv | Format::Sarif => {
            let pages: Vec<String> = pages.iter().map(|page| render::human(page, output)).collect();
            pages.join("\n")
        }
    })?;
    Ok(exit::OK)
}

/// The page of a name.
fn find(name: &str) -> Result<&'static Page, Failure> {
    pages::find(name).ok_or_else(|| {
        let keys = PAGES.iter().map(|page| page.key);
        // A part of a name is enough to be near it.
        let key = pages::key_of(name);
        let holds = |page: &&Page| key.len() > 2 && page.key.contains(&key);
        let mut close: Vec<&str> = PAGES.iter().filter(holds).map(|page| page.key).collect();
        close.extend(near(&key, keys).filter(|near| !close.contains(near)));
        close.truncate(3);
        let close = match close[..] {
            [] => String::new(),
            _ => format!("; near: {}", close.join(", ")),
        };
        Failure::input(format!("no page `{name}`{close}; `plimsoll explain` lists them all"))
    })
}
