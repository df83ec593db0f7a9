//! Pages in a real browser: no error, nothing asked of any network, the failure's figures at its moment.
//!
//! The browser is `CHROMIUM`, or one found on the path. Without one these tests say so and pass; under `CI` they
//! fail.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const FOUNDING: &str = "scenarios/founding/margin-0.93.yaml";

/// The browser, where there is one.
fn browser() -> Option<PathBuf> {
    let named = env::var_os("CHROMIUM").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let found = || {
        let path = env::var_os("PATH")?;
        let files = env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
        files.into_iter().find(|file| file.is_file())
    };
    let browser = named.or_else(found);
    if browser.is_none() {
        assert!(env::var_os("CI").is_none(), "no Chromium: install it, or name it in CHROMIUM");
        println!("SKIPPED: no Chromium; install it, or name it in CHROMIUM");
    }
    browser
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// What the page is after its script has run.
fn dom(browser: &Path, page: &Path, fragment: &str) -> String {
    let profile = page.with_extension("profile");
    let _ = fs::remove_dir_all(&profile);
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}{fragment}", page.display()))
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&profile);
    let text = String::from_utf8(output.stdout).unwrap();
    let root = text.lines().find(|line| line.starts_with("<html")).unwrap_or_default();
    assert!(root.contains("data-state=\"ready\""), "{root}");
    assert!(!root.contains("data-error"), "{root}");
    text
}

fn report(folder: &Path, args: &[&str]) -> PathBuf {
    let page = folder.join("run.html");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(args)
        .arg("--report")
        .arg(&page)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.code().is_some_and(|code| code < 2), "{output:?}");
    page
}

#[test]
fn the_founding_crash_opens_at_its_moment() {
    let Some(browser) = browser() else { return };
    let folder = folder("report-founding");
    let page = report(&folder, &["run", FOUNDING]);
    for fragment in ["#t=12.010996671s", "#t=12.01s", "#step=134"] {
        let text = dom(&browser, &page, fragment);
        let panel = text.split_once("id=\"panel\"").unwrap().1.split_once("</aside>").unwrap().0;
        for words in [
            "12.011 s: failure",
            "896.00 MiB (939524096 B)",
            "267.74 MiB (280742586 B)",
            "layer 1 mlp.experts.intermediate_cache13",
            "prefill, 8,192 tokens",
        ] {
            assert!(panel.contains(words), "{fragment}: no `{words}` in {panel}");
        }
        assert!(text.contains("load line 93.91 GiB"), "the load line is drawn");
    }
    let early = dom(&browser, &page, "#step=0");
    let panel = early.split_once("id=\"panel\"").unwrap().1.split_once("</aside>").unwrap().0;
    assert!(panel.contains("0.000 s: prefill") && panel.contains("839"), "{panel}");
}

#[test]
fn other_ends_open_too() {
    let Some(browser) = browser() else { return };
    for (name, file) in [
        ("retraction", "scenarios/retraction/llama-3.1-8b-conservativeness-0.3.yaml"),
        ("neighbour", "scenarios/vllm/serve-neighbour-after-start.yaml"),
        ("start", "scenarios/dedicated-gpu/kimi-k2.5-0.93-start.yaml"),
    ] {
        let page = report(&folder(&format!("report-{name}")), &["run", file]);
        dom(&browser, &page, "");
    }
}

/// A name may be anything that a scenario may be called; `why` may be anything at all.
#[test]
fn foreign_text_does_nothing() {
    let Some(browser) = browser() else { return };
    let evil = "why=\"</script><img src=x onerror=document.documentElement.dataset.error=1><script>\
                document.documentElement.dataset.error=2</script>\"";
    let folder = folder("report-foreign");
    let page = report(&folder, &["run", FOUNDING, "--set", evil]);
    let text = dom(&browser, &page, "");
    assert!(text.contains("&lt;img src=x"), "the text is shown as text");
}
