//! `watch` against servers that really listen, and its recordings.

mod server;

use super::{Shown, command, run, schema_check::check, shown, verbs::folder};
use serde_json::Value;
use server::{Answer, Fake};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const INFO: &str = r#"{"mem_fraction_static":0.88,"chunked_prefill_size":8192,"model_path":"org/small-1B",
    "api_key":"sk-in-the-page","host":"10.9.8.7","max_total_num_tokens":50000,"version":"0.5.8",
    "internal_states":[{"last_gen_throughput":80.25,
    "memory_usage":{"weight":2.5,"kvcache":6.0,"token_capacity":50000,"graph":0.5}}]}"#;

/// SGLang's page at the how-manieth request: the second rank prefills most between requests 3 and 4.
fn metrics(n: usize) -> String {
    let prefill = [0, 100, 200, 300, 9300, 9400, 9500, 9600, 9700];
    let tokens = prefill[n.min(8)];
    format!(
        "# TYPE sglang:token_usage gauge\n\
         sglang:token_usage{{tp_rank=\"0\",dp_rank=\"0\"}} 0.25\n\
         sglang:num_used_tokens{{tp_rank=\"0\",dp_rank=\"0\"}} 12500.0\n\
         sglang:num_running_reqs{{tp_rank=\"0\",dp_rank=\"0\"}} {n}.0\n\
         sglang:num_queue_reqs{{tp_rank=\"0\",dp_rank=\"0\"}} 0.0\n\
         sglang:num_retracted_requests_total{{tp_rank=\"0\",dp_rank=\"0\"}} 0.0\n\
         sglang:realtime_tokens_total{{tp_rank=\"0\",dp_rank=\"0\",mode=\"prefill_compute\"}} {n}.0\n\
         sglang:token_usage{{tp_rank=\"0\",dp_rank=\"1\"}} 0.5\n\
         sglang:realtime_tokens_total{{tp_rank=\"0\",dp_rank=\"1\",mode=\"prefill_compute\"}} {tokens}.0\n"
    )
}

fn sglang(path: &str, n: usize) -> Answer {
    match path {
        "/metrics" => Answer::Page(metrics(n)),
        "/get_server_info" => Answer::Page(INFO.to_owned()),
        _ => Answer::Status(404),
    }
}

fn vllm(path: &str, n: usize) -> Answer {
    match path {
        "/metrics" => Answer::Chunks(format!(
            "vllm:cache_config_info{{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"1000\",\
             gpu_memory_utilization=\"0.9\"}} 1.0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.97\n\
             vllm:num_requests_running{{engine=\"0\"}} 8.0\n\
             vllm:prompt_tokens_total{{engine=\"0\"}} {}.0\n\
             vllm:num_preemptions_total{{engine=\"0\"}} {n}.0\n",
            n * 1000
        )),
        "/version" => Answer::Page("{\"version\":\"0.19.0\"}".to_owned()),
        "/v1/models" => Answer::Chunks(
            "{\"data\":[{\"id\":\"org/m\",\"owned_by\":\"vllm\",\"max_model_len\":4096}]}"
                .to_owned(),
        ),
        _ => Answer::Status(404),
    }
}

/// An `nvidia-smi` that shows one value of `free` a call, the last one ever after.
fn smi(name: &str, free: &[u64]) -> PathBuf {
    let folder = folder(name);
    fs::write(folder.join("calls"), "0\n").expect("written");
    let cases: String =
        free.iter().enumerate().map(|(at, mib)| format!("{at}) free={mib};;\n")).collect();
    let last = free.last().expect("a value");
    let text = format!(
        "#!/bin/sh\nread n < '{0}/calls'\necho $((n + 1)) > '{0}/calls'\n\
         case $n in\n{cases}*) free={last};;\nesac\n\
         echo \"0, Made-up Card, 81920, $free, $((81000 - free))\"\n",
        folder.display()
    );
    executable(&folder.join("nvidia-smi"), &text);
    folder
}

pub(super) fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

fn watch(path: &Path, args: &[&str]) -> Shown {
    let mut command = command(&[&["watch"], args].concat());
    command.env("PATH", path);
    shown(command)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn schema(of: &str) -> Value {
    json(&run(&["schema", of]).stdout)
}

/// Every line of a recording is as its schema says; answers the kinds.
fn kinds(recording: &Path) -> Vec<String> {
    let schema = schema("watch-recording");
    let text = fs::read_to_string(recording).expect("a recording");
    let kind = |line: &str| {
        let line = json(line);
        assert_eq!(check(&schema, &line), Vec::<String>::new(), "{line}");
        line["kind"].as_str().unwrap_or("header").to_owned()
    };
    text.lines().map(kind).collect()
}

#[test]
fn a_watch_says_what_it_saw_and_its_recording_says_the_same() {
    let folder = folder("watch-same");
    let path = smi("watch-same-smi", &[70_000, 3500, 50_000, 4000, 5000, 9000]);
    let recording = folder.join("watch.jsonl").display().to_string();
    let server = Fake::start(sglang);
    let args = [
        &server.url(),
        "--interval",
        "100ms",
        "--for",
        "550ms",
        "--min-free",
        "3GiB",
        "--format",
        "json",
        "--record",
        &recording,
    ];
    let live = watch(&path, &args);
    assert_eq!(live.code, 0, "{}", live.stderr);
    let summary = json(&live.stdout);
    assert_eq!(check(&schema("watch"), &summary), Vec::<String>::new());
    assert_eq!(summary["verdict"], "ok");
    assert_eq!(summary["settings"]["mem_fraction_static"], 0.88);
    assert_eq!(summary["heaviest_prefill"]["rank"], "dp1 tp0");
    assert_eq!(summary["heaviest_prefill"]["tokens"], 9000);
    // The page was read once before the first sample: the third sample is its fourth request.
    assert_eq!(summary["heaviest_prefill"]["least"]["free_bytes"], 4000_u64 << 20);
    assert_eq!(summary["least"]["free_bytes"], 3500_u64 << 20);
    assert_eq!(summary["margin_bytes"], (3500_i64 << 20) - (3 << 30));
    assert_eq!(summary["ranks"]["dp0 tp0"]["capacity_tokens"], 50_000);
    let again = run(&["watch", "--read", &recording, "--format", "json"]);
    assert_eq!((again.code, &again.stdout), (0, &live.stdout));
    let kinds = kinds(Path::new(&recording));
    assert_eq!(
        (kinds.first().unwrap().as_str(), kinds.last().unwrap().as_str()),
        ("header", "end")
    );
    // It only reads.
    let heads = server.heads();
    assert!(heads.iter().all(|head| head.starts_with("GET /")), "{heads:?}");
    assert!(live.stderr.contains("pool 12,500 of 50,000 (25 %)"), "{}", live.stderr);
    // Nothing of what the page should not have told is kept.
    let kept = fs::read_to_string(&recording).expect("a recording") + &live.stdout + &live.stderr;
    for secret in ["sk-in-the-page", "10.9.8.7", "127.0.0.1"] {
        assert!(!kept.contains(secret), "{kept}");
    }
}

#[test]
fn free_memory_below_the_line_is_exit_1_and_names_the_sample() {
    let path = smi("watch-line-smi", &[9000, 9000, 1000, 9000]);
    let server = Fake::start(sglang);
    let args = [&server.url(), "--interval", "100ms", "--for", "450ms", "--min-free", "2GiB"];
    let shown = watch(&path, &args);
    assert_eq!(shown.code, 1);
    // One call finds the devices.
    assert!(
        shown.stdout.starts_with("undercut: 1000.00 MiB free on device 0 at 0."),
        "{}",
        shown.stdout
    );
    assert!(
        shown.stdout.contains("(sample 2), 1.02 GiB below the line of 2.00"),
        "{}",
        shown.stdout
    );
    assert!(shown.stdout.contains("help: pass --mem-fraction-static 0.86"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("raise by"), "{}", shown.stdout);
}

#[test]
fn vllm_is_read_from_chunked_pages() {
    let path = smi("watch-vllm-smi", &[9000]);
    let server = Fake::start(vllm);
    let args = [&server.url(), "--interval", "100ms", "--for", "250ms", "--format", "json"];
    let shown = watch(&path, &args);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let summary = json(&shown.stdout);
    assert_eq!((&summary["server"], &summary["version"]), (&"vllm".into(), &"0.19.0".into()));
    assert_eq!(summary["settings"]["max_model_len"], 4096);
    let rank = &summary["ranks"]["engine0"];
    assert_eq!((&rank["peak_held_tokens"], &rank["retractions"]), (&15_520.into(), &2.into()));
    assert_eq!(summary["heaviest_prefill"]["by"], "prompt_tokens_total");
    // A full pool and preemptions, and 9000 MiB free: one step fits.
    let help = &summary["help"][0];
    assert_eq!((&help["action"], &help["value"]), (&"raise".into(), &"0.92".into()));
    assert_eq!(help["flag"], "--gpu-memory-utilization");
}

#[test]
fn sglang_without_metrics_is_watched_by_its_state() {
    let server = Fake::start(|path, _| match path {
        "/get_server_info" => Answer::Page(INFO.to_owned()),
        "/get_load" => Answer::Page(
            "[{\"dp_rank\":0,\"num_reqs\":9,\"num_waiting_reqs\":4,\"num_tokens\":3}]".to_owned(),
        ),
        _ => Answer::Status(404),
    });
    let shown = watch(Path::new("/none"), &[&server.url(), "--once", "--memory", "none"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stderr.contains("--enable-metrics"), "{}", shown.stderr);
    assert!(shown.stdout.contains("running at most 5; queue at most 4"), "{}", shown.stdout);
    assert!(shown.stdout.starts_with("ok: free memory cannot be seen"), "{}", shown.stdout);
}

#[test]
fn a_server_that_goes_away_is_exit_3_and_leaves_a_recording() {
    let recording = folder("watch-gone").join("watch.jsonl");
    let name = recording.display().to_string();
    let server = Fake::start(|path, n| match (path, n) {
        ("/metrics", 4..) => Answer::Gone,
        _ => sglang(path, n),
    });
    let path = smi("watch-gone-smi", &[9000]);
    let shown = watch(&path, &[&server.url(), "--interval", "100ms", "--record", &name]);
    assert_eq!(shown.code, 3, "{}", shown.stderr);
    assert!(shown.stdout.starts_with("lost: SGLang no longer answers"), "{}", shown.stdout);
    assert_eq!(
        kinds(&recording),
        ["header", "sample", "sample", "missed", "missed", "missed", "end"]
    );
    let again = run(&["watch", "--read", &name]);
    assert_eq!((again.code, &again.stdout), (0, &shown.stdout));
    // Cut off within its last line but two.
    let text = fs::read_to_string(&recording).expect("a recording");
    let cut: usize = text.lines().take(5).map(|line| line.len() + 1).sum::<usize>() - 9;
    fs::write(&recording, &text[..cut]).expect("written");
    let shorter = run(&["watch", "--read", &name]);
    assert_eq!(shorter.code, 0);
    assert!(shorter.stderr.contains("breaks off in line 5 (byte "), "{}", shorter.stderr);
    assert!(shorter.stdout.contains("2 samples"), "{}", shorter.stdout);
}

#[test]
fn what_goes_wrong_meanwhile_is_recorded_and_passes() {
    let recording = folder("watch-wrong").join("watch.jsonl");
    let name = recording.display().to_string();
    let server = Fake::start(|path, n| match (path, n) {
        ("/metrics", 3) => Answer::Silence(Duration::from_millis(700)),
        ("/metrics", 4) => Answer::Status(503),
        ("/metrics", 6) => Answer::Page("<html>proxy</html>".to_owned()),
        ("/metrics", 7) => Answer::Endless,
        ("/metrics", 9) => Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n\xff\xfe\n"),
        ("/metrics", 10) => Answer::Raw(b"nonsense\r\n\r\n"),
        _ => sglang(path, n),
    });
    let args = [
        &server.url(),
        "--interval",
        "100ms",
        "--timeout",
        "500ms",
        "--for",
        "3s",
        "--record",
        &name,
        "--memory",
        "none",
    ];
    let shown = watch(Path::new("/none"), &args);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let text = fs::read_to_string(&recording).expect("a recording");
    let whys: Vec<String> = text
        .lines()
        .map(json)
        .filter(|line| line["kind"] == "missed")
        .map(|line| line["why"].as_str().unwrap_or_default().to_owned())
        .collect();
    let (endless, others): (Vec<&String>, Vec<&String>) =
        whys.iter().partition(|why| ["too_large"].contains(&why.as_str()));
    // A slow machine may not take 16 MiB in time.
    assert!(endless.len() <= 1);
    let mut expected = vec!["timed_out", "status_503", "no_page", "not_text", "broken"];
    if endless.is_empty() {
        expected.insert(3, "timed_out");
    }
    assert_eq!(others, expected);
}

#[test]
fn keys_and_passwords_stay_secret() {
    let locked = Fake::start(|path, _| match path {
        "/health" => Answer::Page(String::new()),
        _ => Answer::Status(401),
    });
    let shown = watch(Path::new("/none"), &[&locked.url(), "--once"]);
    assert_eq!(shown.code, 2, "{}", shown.stderr);
    assert!(shown.stderr.contains("--api-key-env"), "{}", shown.stderr);
    let server = Fake::start(sglang);
    let recording = folder("watch-key").join("watch.jsonl");
    let name = recording.display().to_string();
    let args =
        [&server.url(), "--once", "--record", &name, "--api-key-env", "MY_KEY", "--memory", "none"];
    let mut command = command(&[&["watch"], &args[..]].concat());
    command.env("MY_KEY", "sk-from-the-environment");
    let shown = super::shown(command);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let sent = server.heads().iter().all(|head| head.contains("Bearer sk-from-the-environment"));
    assert!(sent, "{:?}", server.heads());
    let kept = fs::read_to_string(&recording).expect("a recording");
    let with_user = format!("http://somebody:pass-word@127.0.0.1:{}", server.port);
    let user = watch(Path::new("/none"), &[&with_user, "--once", "--memory", "none"]);
    assert_eq!(user.code, 0, "{}", user.stderr);
    assert!(server.heads().last().unwrap().contains("Basic "), "{:?}", server.heads());
    let gone = watch(Path::new("/none"), &["http://somebody:pass-word@127.0.0.1:1", "--once"]);
    assert_eq!(gone.code, 3);
    let all = [kept, shown.stdout, shown.stderr, user.stdout, user.stderr, gone.stderr].concat();
    for secret in ["sk-from", "pass-word", "somebody"] {
        assert!(!all.contains(secret), "{all}");
    }
}

#[test]
fn who_is_no_server_is_told_so() {
    let page = |page: fn(&str) -> Answer| Fake::start(move |path, _| page(path));
    for (code, words, server) in [
        (2, "no page of SGLang", page(|_| Answer::Status(404))),
        (2, "no page of SGLang", page(|_| Answer::Page("<html>hello</html>".to_owned()))),
        (2, "no page of SGLang", page(|_| Answer::Status(302))),
        (
            2,
            "no page of SGLang",
            page(|_| Answer::Page("{\"data\":[{\"owned_by\":\"x\"}]}".to_owned())),
        ),
        (3, "status 503", page(|_| Answer::Status(503))),
        (3, "in time", page(|_| Answer::Silence(Duration::from_millis(600)))),
        (3, "broke", page(|_| Answer::Raw(b""))),
    ] {
        let shown = watch(Path::new("/none"), &[&server.url(), "--timeout", "300ms", "--once"]);
        assert_eq!(shown.code, code, "{words}: {}", shown.stderr);
        assert!(shown.stderr.contains(words), "{words}: {}", shown.stderr);
        assert_eq!(shown.stdout, "");
    }
    let endless = page(|_| Answer::Endless);
    let began = Instant::now();
    let shown = watch(Path::new("/none"), &[&endless.url(), "--timeout", "300ms", "--once"]);
    assert!([2, 3].contains(&shown.code), "{}", shown.stderr);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn bad_usage_is_exit_2() {
    let broken = folder("watch-usage").join("broken.jsonl");
    fs::write(&broken, "{\"schema\":\"plimsoll.watch/9\"}\n").expect("written");
    let broken = broken.display().to_string();
    for (args, words) in [
        (vec!["watch"], "<URL>"),
        (vec!["watch", "ftp://h"], "allowed: http, https"),
        (vec!["watch", "http://h:99999"], "1 to 65535"),
        (vec!["watch", "http://h", "--interval", "1ms"], "100 ms to 1 h"),
        (vec!["watch", "http://h", "--for", "0s"], "above 0"),
        (vec!["watch", "http://h", "--for", "3 parsecs"], "min"),
        (vec!["watch", "http://h", "--min-free", "2"], "`2` has no unit"),
        (vec!["watch", "http://h", "--once", "--for", "1s"], "--for"),
        (vec!["watch", "http://h", "--read", "x"], "--read"),
        (vec!["watch", "http://h", "--api-key-env", "NO_SUCH"], "no such variable"),
        (vec!["watch", "--read", "/no/such"], "/no/such"),
        (vec!["watch", "--read", &broken], "plimsoll.watch/9"),
        (vec!["watch", "--read", "x", "--format", "csv"], "human, json and jsonl"),
    ] {
        let shown = run(&args);
        assert_eq!(shown.code, 2, "{args:?}: {}", shown.stderr);
        assert!(shown.stderr.contains(words), "{args:?}: {}", shown.stderr);
    }
    let server = Fake::start(sglang);
    let args = [&server.url(), "--once", "--memory", "none", "--min-free", "1GiB"];
    let shown = watch(Path::new("/none"), &args);
    assert_eq!(shown.code, 3);
    assert!(shown.stderr.contains("--min-free needs free memory"), "{}", shown.stderr);
    let file = ["--once", "--memory", "none", "--record", "/no/such/folder/x"];
    let shown = watch(Path::new("/none"), &[&[server.url().as_str()], &file[..]].concat());
    assert_eq!(shown.code, 2, "{}", shown.stderr);
}

#[test]
fn ctrl_c_ends_a_watch_with_its_summary() {
    let recording = folder("watch-interrupt").join("watch.jsonl");
    let name = recording.display().to_string();
    let server = Fake::start(sglang);
    let args =
        ["watch", &server.url(), "--interval", "100ms", "--record", &name, "--memory", "none"];
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the binary runs");
    let began = Instant::now();
    // Two samples, then the signal.
    while fs::read_to_string(&recording).unwrap_or_default().lines().count() < 3 {
        assert!(began.elapsed() < Duration::from_secs(20), "no samples");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Command::new("/bin/kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("ok: "));
    let text = fs::read_to_string(&recording).expect("a recording");
    assert_eq!(json(text.lines().last().expect("lines"))["why"], "interrupted");
}
