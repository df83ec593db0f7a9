//! Pasted commands of the engines' benchmark clients: which client, and its flags.
//!
//! What the flags mean is the business of whoever builds the workload: the two clients mean different things
//! by the same names.

use crate::launch::{Engine, nearest};
use std::collections::BTreeMap;

/// A benchmark command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BenchCommand {
    /// Whose client.
    pub client: Engine,
    /// Flags by name, with dashes and without those in front; the last of several counts. A switch has no
    /// value.
    pub flags: BTreeMap<&'static str, Option<String>>,
}

impl BenchCommand {
    /// The value of a flag.
    #[must_use]
    pub fn get(&self, flag: &str) -> Option<&str> {
        self.flags.get(flag).and_then(Option::as_deref)
    }

    /// Whether a switch is set.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains_key(flag)
    }
}

/// Flags that take a value.
const SGLANG: &[&str] = &[
    "backend",
    "base-url",
    "host",
    "port",
    "ready-check-timeout-sec",
    "dataset-name",
    "dataset-path",
    "model",
    "served-model-name",
    "tokenizer",
    "num-prompts",
    "sharegpt-output-len",
    "sharegpt-context-len",
    "random-input-len",
    "random-output-len",
    "random-range-ratio",
    "request-rate",
    "max-concurrency",
    "output-file",
    "seed",
    "extra-request-body",
    "prompt-suffix",
    "profile-prefill-url",
    "profile-decode-url",
    "profile-start-step",
    "profile-steps",
    "profile-num-steps",
    "profile-output-dir",
    "warmup-requests",
    "tag",
    "lora-name",
    "lora-request-distribution",
    "lora-zipf-alpha",
    "header",
    "top-logprobs-num",
    "logprob-start-len",
    "gsp-num-groups",
    "gsp-prompts-per-group",
    "gsp-system-prompt-len",
    "gsp-question-len",
    "gsp-output-len",
    "gsp-range-ratio",
    "gsp-num-turns",
    "gsp-group-distribution",
    "gsp-zipf-alpha",
    "gsp-prewarm-concurrency",
    "mooncake-slowdown-factor",
    "mooncake-num-rounds",
    "mooncake-workload",
    "image-count",
    "image-resolution",
    "image-format",
    "image-content",
];
const SGLANG_SWITCHES: &[&str] = &[
    "apply-chat-template",
    "disable-ignore-eos",
    "disable-stream",
    "disable-tqdm",
    "return-logprob",
    "return-routed-experts",
    "profile",
    "profile-activities",
    "profile-by-stage",
    "pd-separated",
    "flush-cache",
    "tokenize-prompt",
    "output-details",
    "use-trace-timestamps",
    "gsp-fast-prepare",
    "gsp-send-routing-key",
    "gsp-ordered",
    "gsp-prewarm-prefixes",
    "cache-report",
    "print-requests",
    "plot-throughput",
];
const VLLM: &[&str] = &[
    "label",
    "backend",
    "endpoint-type",
    "base-url",
    "host",
    "port",
    "endpoint",
    "header",
    "max-concurrency",
    "model",
    "input-len",
    "output-len",
    "tokenizer",
    "tokenizer-mode",
    "logprobs",
    "request-rate",
    "burstiness",
    "num-warmups",
    "metadata",
    "result-dir",
    "result-filename",
    "percentile-metrics",
    "metric-percentiles",
    "goodput",
    "request-id-prefix",
    "top-p",
    "top-k",
    "min-p",
    "temperature",
    "frequency-penalty",
    "presence-penalty",
    "repetition-penalty",
    "served-model-name",
    "lora-modules",
    "ramp-up-strategy",
    "ramp-up-start-rps",
    "ramp-up-end-rps",
    "ready-check-timeout-sec",
    "extra-body",
    "seed",
    "num-prompts",
    "dataset-name",
    "dataset-path",
    "custom-output-len",
    "spec-bench-output-len",
    "spec-bench-category",
    "sonnet-input-len",
    "sonnet-output-len",
    "sonnet-prefix-len",
    "sharegpt-output-len",
    "random-input-len",
    "random-output-len",
    "random-range-ratio",
    "random-prefix-len",
    "random-batch-size",
    "hf-subset",
    "hf-split",
    "hf-name",
    "hf-output-len",
    "prefix-repetition-prefix-len",
    "prefix-repetition-suffix-len",
    "prefix-repetition-num-prefixes",
    "prefix-repetition-output-len",
];
const VLLM_SWITCHES: &[&str] = &[
    "use-beam-search",
    "trust-remote-code",
    "disable-tqdm",
    "profile",
    "save-result",
    "save-detailed",
    "append-result",
    "ignore-eos",
    "no-stream",
    "no-oversample",
    "skip-chat-template",
    "disable-shuffle",
    "no-reranker",
    "insecure",
    "plot-timeline",
    "plot-dataset-stats",
    "skip-tokenizer-init",
];
/// Flags that take as many values as follow; none of them changes what is sent.
const MANY: &[&str] =
    &["header", "metadata", "goodput", "lora-modules", "lora-name", "profile-activities"];

/// Reads a command.
///
/// # Errors
///
/// What is wrong in words: a quote that is open, a program that is no benchmark client, a flag that it does not
/// have with the nearest that it has, a flag without its value.
pub fn parse(text: &str) -> Result<BenchCommand, String> {
    // A line that goes on, whatever its end.
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let words = shlex::split(&text).ok_or("a quote is not closed")?;
    let (client, start) = program(&words).ok_or(
        "this starts no benchmark client: `python -m sglang.bench_serving …` or `vllm bench serve …`",
    )?;
    let (valued, switches) = match client {
        Engine::Sglang => (SGLANG, SGLANG_SWITCHES),
        Engine::Vllm => (VLLM, VLLM_SWITCHES),
    };
    let mut flags = BTreeMap::new();
    let mut words = words.into_iter().skip(start).peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else {
            return Err(format!("`{}` stands where a flag is expected", shown(&word)));
        };
        let (name, mut value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        let name = name.replace('_', "-");
        let find = |list: &[&'static str]| list.iter().find(|known| **known == name).copied();
        if let Some(name) = find(switches).filter(|_| value.is_none()) {
            while MANY.contains(&name) && words.next_if(|word| !word.starts_with("--")).is_some() {}
            flags.insert(name, None);
            continue;
        }
        let Some(name) = find(valued) else {
            let all = valued.iter().chain(switches).copied();
            let near = nearest(&name, all);
            let near =
                near.first().map_or(String::new(), |near| format!("; did you mean `--{near}`?"));
            return Err(format!("{} has no flag `--{}`{near}", client_name(client), shown(&name)));
        };
        if value.is_none() {
            // A negative number is a value.
            value = words.next_if(|word| !word.starts_with("--"));
        }
        while MANY.contains(&name) && words.next_if(|word| !word.starts_with("--")).is_some() {}
        let Some(value) = value else { return Err(format!("`--{name}` has no value")) };
        flags.insert(name, Some(value));
    }
    Ok(BenchCommand { client, flags })
}

/// The client's name in messages.
#[must_use]
pub const fn client_name(client: Engine) -> &'static str {
    match client {
        Engine::Sglang => "SGLang's bench_serving",
        Engine::Vllm => "vLLM's bench serve",
    }
}

fn shown(word: &str) -> String {
    word.chars().take(60).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The client, and the place of its first flag.
fn program(words: &[String]) -> Option<(Engine, usize)> {
    words.iter().enumerate().find_map(|(at, word)| {
        let base = word.rsplit('/').next().unwrap_or(word);
        let next = |ahead: usize| words.get(at + ahead).map(String::as_str);
        match base {
            "sglang.bench_serving" | "bench_serving.py" | "sglang.benchmark.serving" => {
                Some((Engine::Sglang, at + 1))
            }
            "vllm" if next(1) == Some("bench") && next(2) == Some("serve") => {
                Some((Engine::Vllm, at + 3))
            }
            "benchmark_serving.py" => Some((Engine::Vllm, at + 1)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_into_flags() {
        let text = "CUDA_VISIBLE_DEVICES=0 python3 -m sglang.bench_serving --backend sglang \\\n  --num-prompts=20 \
                    --dataset-name random --flush-cache --request_rate 2.5";
        let command = parse(text).unwrap();
        assert_eq!(command.client, Engine::Sglang);
        assert_eq!(
            (command.get("num-prompts"), command.get("request-rate")),
            (Some("20"), Some("2.5"))
        );
        assert!(command.has("flush-cache") && !command.has("profile"));
        let vllm =
            parse("vllm bench serve --goodput ttft:200 tpot:50 --ignore-eos --burstiness 0.5")
                .unwrap();
        assert_eq!((vllm.client, vllm.get("burstiness")), (Engine::Vllm, Some("0.5")));
        assert!(vllm.has("ignore-eos"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| parse(text).unwrap_err();
        assert!(error("vllm serve m").contains("starts no benchmark client"));
        assert_eq!(
            error("vllm bench serve --num-promts 3"),
            "vLLM's bench serve has no flag `--num-promts`; did you mean `--num-prompts`?"
        );
        assert_eq!(error("vllm bench serve --seed --ignore-eos"), "`--seed` has no value");
        assert_eq!(error("vllm bench serve 5"), "`5` stands where a flag is expected");
        assert_eq!(error("vllm bench serve '5"), "a quote is not closed");
        assert!(error("python -m sglang.bench_serving --burstiness 2").contains("has no flag"));
    }
}
