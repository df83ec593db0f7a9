//! What identifies a person, a machine or an account is left out of what is kept.

/// Whether texts are kept as they stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redact {
    /// Secrets, addresses, names in paths are left out.
    #[default]
    Yes,
    /// Everything stays.
    No,
}

/// Directories whose inside is told whole: packages of engines and what they stand on.
const PACKAGES: [&str; 30] = [
    "sglang",
    "vllm",
    "lmdeploy",
    "tensorrt_llm",
    "text_generation_server",
    "torch",
    "torch_npu",
    "transformers",
    "flashinfer",
    "sgl_kernel",
    "deep_gemm",
    "deep_ep",
    "flash_attn",
    "flash_mla",
    "triton",
    "aiter",
    "xformers",
    "ray",
    "mlx_lm",
    "mlx",
    "bitsandbytes",
    "compressed_tensors",
    "safetensors",
    "uvicorn",
    "fastapi",
    "starlette",
    "asyncio",
    "multiprocessing",
    "concurrent",
    "mooncake",
];

/// Beginnings of keys and tokens of well-known services.
const SECRETS: [&str; 11] = [
    "sk-",
    "hf_",
    "AKIA",
    "ASIA",
    "ghp_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "eyJ",
    "nvapi-",
];

impl Redact {
    /// The text, redacted, at most `limit` bytes of it.
    pub(super) fn cut(self, text: &str, limit: usize) -> Box<str> {
        // What is redacted may become longer or shorter; nothing beyond twice the limit can be kept.
        let text = head(text, limit * 2 + 256);
        match self {
            Self::No => head(text, limit).into(),
            Self::Yes => head(&redacted(text), limit).into(),
        }
    }

    /// The path of a source file or a model, cut to what lies inside a known package, or to its last part.
    pub(super) fn path(self, path: &str) -> Box<str> {
        match self {
            Self::No => head(path, 512).into(),
            Self::Yes => head(&short_path(path), 256).into(),
        }
    }
}

/// The longest beginning of at most `limit` bytes.
pub(super) fn head(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let end = (0..=limit).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or("")
}

/// What the words before say of the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Plain,
    Secret,
    Host,
}

fn redacted(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut next = Next::Plain;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_gap).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        if matches!(word, "" | ":" | "None" | "null") {
            clean.push_str(word);
        } else if next == Next::Secret && !word.eq_ignore_ascii_case("bearer") {
            clean.push_str("<secret>");
        } else if next == Next::Host && !is_own_host(word) {
            clean.push_str("<address>");
        } else {
            word_into(word, &mut clean);
        }
        if !matches!(word, "" | ":") {
            next = announced(word, tail);
        }
        let gap_end = tail.find(|c| !is_gap(c)).unwrap_or(tail.len());
        let (gap, tail) = tail.split_at(gap_end);
        clean.push_str(gap);
        rest = tail;
    }
    clean
}

fn is_gap(c: char) -> bool {
    c.is_whitespace() || "'\"`=,;()[]{}<>|".contains(c)
}

/// Whether what follows is a secret (`--api-key X`, `HF_TOKEN=X`, `Bearer X`, `"password": X`) or names a machine
/// (`--dist-init-addr X`, `host='X'`).
fn announced(word: &str, tail: &str) -> Next {
    const SECRETS: [&str; 8] = [
        "api_key",
        "apikey",
        "hf_token",
        "access_token",
        "auth_token",
        "secret",
        "password",
        "secret_key",
    ];
    const HOSTS: [&str; 7] =
        ["host", "dist_init_addr", "master_addr", "hostname", "node_ip", "master_address", "addr"];
    let name =
        word.trim_start_matches('-').trim_end_matches(':').to_ascii_lowercase().replace('-', "_");
    let quoted = tail.trim_start_matches(['\'', '"']).starts_with([':', '=']);
    let valued = word.starts_with("--") || word.ends_with(':') || tail.starts_with('=') || quoted;
    if name == "bearer" || valued && SECRETS.iter().any(|end| name.ends_with(end)) {
        return Next::Secret;
    }
    let flagged = word.starts_with("--") || tail.starts_with('=');
    if flagged && HOSTS.contains(&name.as_str()) { Next::Host } else { Next::Plain }
}

fn is_own_host(word: &str) -> bool {
    ["0.0.0.0", "127.0.0.1", "localhost", "::"].iter().any(|own| word.starts_with(own))
}

fn word_into(word: &str, clean: &mut String) {
    if is_secret(word) {
        clean.push_str("<secret>");
    } else if let Some((scheme, rest)) = word.split_once("://") {
        url_into(scheme, rest, clean);
    } else if is_mail(word) {
        clean.push_str("<mail>");
    } else if is_address(word) {
        clean.push_str("<address>");
    } else if is_path(word) {
        clean.push_str(&short_path(word));
    } else {
        clean.push_str(word);
    }
}

fn is_secret(word: &str) -> bool {
    word.len() >= 16
        && SECRETS.iter().any(|start| word.starts_with(start))
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// User names, passwords and hosts go, the scheme and the last part of the path stay.
fn url_into(scheme: &str, rest: &str, clean: &mut String) {
    let host = rest.split('/').next().unwrap_or("");
    let known = [
        "huggingface.co",
        "github.com",
        "pytorch.org",
        "docs.",
        "localhost",
        "127.0.0.1",
        "0.0.0.0",
    ];
    clean.push_str(scheme);
    clean.push_str("://");
    if !host.contains('@') && known.iter().any(|name| host.contains(name)) {
        clean.push_str(rest);
    } else {
        clean.push_str("<host>");
    }
}

fn is_mail(word: &str) -> bool {
    word.split_once('@').is_some_and(|(name, host)| {
        !name.is_empty()
            && host.contains('.')
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b))
    })
}

/// An address of the network, with or without a port; those of the machine itself tell nothing.
fn is_address(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ':']);
    let bare = word.strip_prefix("ip-").unwrap_or(word);
    let (host, port) = bare.rsplit_once(':').unwrap_or((bare, "0"));
    if port.parse::<u16>().is_ok()
        && let Ok(address) = host.parse::<std::net::Ipv4Addr>()
    {
        return !(address.is_loopback() || address.is_unspecified());
    }
    bare.bytes().filter(|b| *b == b':').count() > 1
        && bare.parse::<std::net::Ipv6Addr>().is_ok_and(|address| !address.is_loopback())
}

/// An absolute path of at least two parts; routes of a server are none.
fn is_path(word: &str) -> bool {
    let windows = word.get(1..3).is_some_and(|part| part == ":\\" || part == ":/")
        && word.starts_with(|c: char| c.is_ascii_alphabetic());
    let rooted = word.starts_with("~/") || word.starts_with("\\\\") || {
        word.strip_prefix('/').is_some_and(|rest| {
            rest.trim_end_matches('/').contains('/')
                && !rest.starts_with("v1/")
                && !rest.starts_with('/')
        })
    };
    windows || rooted
}

fn short_path(path: &str) -> String {
    let plain = path.replace('\\', "/");
    if let Some(at) = plain.find("models--") {
        let model = plain.get(at + "models--".len()..).unwrap_or("");
        return model.split('/').next().unwrap_or("").replacen("--", "/", 1);
    }
    for root in ["site-packages/", "dist-packages/"] {
        if let Some(at) = plain.rfind(root) {
            return plain.get(at + root.len()..).unwrap_or("").to_owned();
        }
    }
    for package in PACKAGES {
        let inside = format!("/{package}/");
        if let Some(at) = plain.rfind(&inside) {
            return plain.get(at + 1..).unwrap_or("").to_owned();
        }
    }
    if let Some(at) = plain.rfind("/python3.")
        && let Some((_, inside)) = plain.get(at + 1..).and_then(|rest| rest.split_once('/'))
    {
        return inside.to_owned();
    }
    if !is_path(path) {
        return path.to_owned();
    }
    let mut parts = plain.trim_end_matches('/').rsplit('/');
    let last = parts.next().unwrap_or("");
    match parts.next() {
        Some("home" | "Users" | "user" | "users") => "<user>".to_owned(),
        _ => last.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        Redact::Yes.cut(text, 1000).into()
    }

    #[test]
    fn secrets_go_and_what_tells_stays() {
        for (text, expected) in [
            ("--api-key sk-abcdefghijklmnop --tp 2", "--api-key <secret> --tp 2"),
            ("--api-key hunter2 --tp 2", "--api-key <secret> --tp 2"),
            ("api_key='hunter2', port=1", "api_key='<secret>', port=1"),
            ("api_key=None, port=1", "api_key=None, port=1"),
            ("{\"password\": \"hunter2\"}", "{\"password\": \"<secret>\"}"),
            ("-e HF_TOKEN=hf_x -e A=1", "-e HF_TOKEN=<secret> -e A=1"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer <secret>"),
            ("key hf_abcdefghijklmnopqrst ok", "key <secret> ok"),
            ("AKIAIOSFODNN7EXAMPLE", "<secret>"),
            ("s3://user:pass@bucket/x", "s3://<host>"),
            ("see https://pytorch.org/docs/x.html", "see https://pytorch.org/docs/x.html"),
            ("mail a.b@example.com now", "mail <mail> now"),
            ("ip=10.1.2.3, [fe80::1:2:3]:80", "ip=<address>, [<address>]:80"),
            ("127.0.0.1:30000 and 0.5.8.1", "127.0.0.1:30000 and <address>"),
            (
                "--dist-init-addr node7:5000 --host 0.0.0.0",
                "--dist-init-addr <address> --host 0.0.0.0",
            ),
            ("host='box.example', tp_size=1", "host='<address>', tp_size=1"),
            ("model orchard/Pear-8B at /v1/models", "model orchard/Pear-8B at /v1/models"),
            ("model_path='/home/jo/m/Pear-8B'", "model_path='Pear-8B'"),
            ("/data/hub/models--orchard--Pear/snapshots/0f", "orchard/Pear"),
            ("in ~/x/y.py and /home/jo", "in y.py and <user>"),
            ("C:\\Users\\jo\\m.gguf", "m.gguf"),
            ("GPU 0 has 1/2 and/or 3", "GPU 0 has 1/2 and/or 3"),
        ] {
            assert_eq!(clean(text), expected);
            assert_eq!(&*Redact::No.cut(text, 1000), text);
        }
    }

    #[test]
    fn paths_are_told_from_the_package_on() {
        for (path, expected) in [
            ("/a/lib/python3.12/site-packages/sglang/srt/x.py", "sglang/srt/x.py"),
            ("/data/jo/sglang/python/sglang/srt/x.py", "sglang/srt/x.py"),
            ("/usr/lib/python3.12/threading.py", "threading.py"),
            ("C:\\Users\\jo\\x\\torch\\nn\\m.py", "torch/nn/m.py"),
            ("/home/jo/serve/run.py", "run.py"),
            ("indexer.py", "indexer.py"),
            ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
            ("...", "..."),
        ] {
            assert_eq!(&*Redact::Yes.path(path), expected);
        }
    }

    #[test]
    fn the_limit_holds_between_signs() {
        assert_eq!(&*Redact::Yes.cut("äöü", 3), "ä");
        assert_eq!(&*Redact::No.cut("äöü", 3), "ä");
    }
}
