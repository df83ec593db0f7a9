//! Whole checkpoints: both forms give the same weights, tokenizers know their traps, and bad files say what
//! is wrong with them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod files;

use files::{Gguf, Scratch, config, error, folder, tensors};
use plimsoll_checkpoint::{Around, Checkpoint, TextStream, open_weights};
use plimsoll_core::tape::own::{Role, WeightId, WeightSource};
use proptest::prelude::*;
use serde_json::json;

fn values(source: &mut impl WeightSource<Error: std::fmt::Debug>, id: WeightId) -> Vec<f32> {
    let matrix = source.weight(id).unwrap();
    let mut out = vec![0.0; (matrix.extent.rows * matrix.extent.columns) as usize];
    matrix.encoding.decode(&matrix.bytes, &mut out);
    out
}

#[test]
fn a_folder_and_a_gguf_file_give_the_same_weights() {
    let scratch = Scratch::new();
    let (hub, mut from_folder) = open_weights(&folder(&scratch, &config())).unwrap();
    for kind in ["llama", "qwen2"] {
        let path = scratch.file(&format!("{kind}.gguf"), Gguf::new(kind).bytes());
        let (shape, mut from_gguf) = open_weights(&path).unwrap();
        assert_eq!(shape.rope, hub.rope);
        assert_eq!(shape.weights().collect::<Vec<_>>(), hub.weights().collect::<Vec<_>>());
        for tensor in tensors() {
            assert_eq!(values(&mut from_folder, tensor.id), tensor.values, "{}", tensor.hub);
            assert_eq!(values(&mut from_gguf, tensor.id), tensor.values, "{kind} {}", tensor.ggml);
        }
    }
    let bias = WeightId { layer: Some(0), role: Role::QueryBias };
    let error = from_folder.weight(bias).unwrap_err().to_string();
    assert_eq!(error, "the model has no layer 0 QueryBias");
}

fn opened(change: impl FnOnce(&mut Gguf)) -> Checkpoint {
    let scratch = Scratch::new();
    let mut file = Gguf::new("llama");
    change(&mut file);
    Checkpoint::open(&scratch.file("m.gguf", file.bytes())).unwrap()
}

#[test]
fn no_space_is_put_before_a_text() {
    for pre in ["smollm", "llama-bpe", "qwen2"] {
        let checkpoint = opened(|file| file.pre = pre);
        let tokenizer = &checkpoint.tokenizer;
        // Token 257 is " a", token 256 is "ab".
        let ids = |text: &str| tokenizer.encode(text, Around::Nothing).unwrap();
        assert_eq!(ids("a a"), [97, 257], "{pre}");
        assert_eq!(ids("ab"), [256], "{pre}");
        assert_eq!(ids("<s>a</s>"), [258, 97, 259], "{pre}");
        let begins = tokenizer.encode("a", Around::Special).unwrap();
        let expected: &[u32] = if pre == "llama-bpe" { &[258, 97] } else { &[97] };
        assert_eq!(begins, expected);
        assert_eq!(tokenizer.decode(&[258, 97, 257, 259]).unwrap(), "a a");
        assert_eq!(checkpoint.eos, [259]);
    }
}

#[test]
fn digits_stand_apart() {
    let merged = |pre: &'static str| {
        let checkpoint = opened(|file| {
            file.pre = pre;
            file.vocabulary.0[256] = "12".to_owned();
            file.vocabulary.0[257] = "Ġ1".to_owned();
            file.vocabulary.1 = ["1 2", "Ġ 1"].map(str::to_owned).to_vec();
        });
        checkpoint.tokenizer.encode("12", Around::Nothing).unwrap()
    };
    assert_eq!(merged("smollm"), [49, 50]);
    assert_eq!(merged("qwen2"), [49, 50]);
    assert_eq!(merged("llama-bpe"), [256]);
}

#[test]
fn a_text_is_given_out_in_whole_characters() {
    let checkpoint = opened(|_| {});
    let text = "ab é 東京 🦀!";
    let ids = checkpoint.tokenizer.encode(text, Around::Nothing).unwrap();
    let mut stream = TextStream::default();
    let mut pieces = Vec::new();
    for id in &ids {
        pieces.push(stream.push(&checkpoint.tokenizer, *id).unwrap());
    }
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
    assert!(pieces.iter().any(|piece| piece == "🦀"));
    assert_eq!(stream.finish(&checkpoint.tokenizer).unwrap(), "");
    assert_eq!(pieces.concat(), text);
    // A text that ends within a character.
    let mut stream = TextStream::default();
    let cut = stream.push(&checkpoint.tokenizer, 0xc3).unwrap();
    assert_eq!(
        (cut.as_str(), stream.finish(&checkpoint.tokenizer).unwrap().as_str()),
        ("", "\u{fffd}")
    );
}

fn gguf_error(change: impl FnOnce(&mut Gguf)) -> String {
    let scratch = Scratch::new();
    let mut file = Gguf::new("llama");
    change(&mut file);
    error(&scratch.file("m.gguf", file.bytes()))
}

#[test]
fn bad_gguf_files_say_what_is_wrong() {
    assert_eq!(
        gguf_error(|f| f.tensors[3].0 = "blk.0.attn_p.weight".to_owned()),
        "DIR/m.gguf: tensor `blk.0.attn_q.weight` is missing; `blk.0.attn_p.weight` is there, is it meant?"
    );
    assert_eq!(
        gguf_error(|f| f.tensors[4].1 = vec![2, 16]),
        "DIR/m.gguf: tensor `blk.0.attn_k.weight` has shape [2, 16]; the configuration gives it [4, 8]"
    );
    assert_eq!(
        gguf_error(|f| {
            f.tensors.last_mut().unwrap().2.truncate(3);
        })
        .split(" ends")
        .next(),
        Some("DIR/m.gguf: truncated: tensor `blk.0.ffn_down.weight`")
    );
    assert_eq!(
        gguf_error(|f| f.pre = "qwen3"),
        "DIR/m.gguf: `tokenizer.ggml.pre` is qwen3; allowed: smollm, llama-bpe, llama3, llama-v3, qwen2, \
         deepseek-r1-qwen; nearest: qwen2"
    );
    assert_eq!(
        gguf_error(|f| f.pre = ""),
        "DIR/m.gguf: no tokenizer: tokenizer.ggml.model, .pre, .tokens or .merges is missing"
    );
    assert_eq!(
        gguf_error(|f| f.texts.push(("llama.rope.scaling.type".to_owned(), "yarn".to_owned()))),
        "DIR/m.gguf: `llama.rope.scaling.type` is Text(\"yarn\"); allowed: none or linear (yarn and longrope \
         are not executed)"
    );
    assert_eq!(
        gguf_error(|f| f.numbers.push(("llama.rope.dimension_count".to_owned(), 2))),
        "DIR/m.gguf: `llama.rope.dimension_count` is 2; allowed: the head width, 4"
    );
    assert_eq!(
        gguf_error(|f| {
            f.texts[0].1 = "gemma".to_owned();
            for (name, _) in &mut f.numbers {
                *name = name.replace("llama", "gemma");
            }
        }),
        "DIR/m.gguf: architecture `GemmaForCausalLM` is not executed (nearest that is: LlamaForCausalLM); \
         executed: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    );
}

fn folder_error(key: &str, value: serde_json::Value) -> String {
    let scratch = Scratch::new();
    let mut config = config();
    config[key] = value;
    error(&folder(&scratch, &config))
}

#[test]
fn bad_folders_say_what_is_wrong() {
    assert_eq!(folder_error("x", json!(1)), "DIR: no tokenizer: tokenizer.json is missing");
    assert_eq!(
        folder_error("tie_word_embeddings", json!(false)),
        "DIR: tensor `lm_head.weight` is missing"
    );
    assert_eq!(
        folder_error("attention_bias", json!(true)).split(" is missing").next(),
        Some("DIR: tensor `model.layers.0.self_attn.q_proj.bias`")
    );
    assert_eq!(
        folder_error("intermediate_size", json!(13)),
        "DIR/b.safetensors: tensor `model.layers.0.mlp.gate_proj.weight` has shape [12, 8]; the configuration \
         gives it [13, 8]"
    );
    assert_eq!(
        folder_error("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        "DIR/config.json: `rope_scaling.rope_type` is \"yarn\"; allowed: default, linear or llama3 (yarn, \
         dynamic and longrope are not executed)"
    );
    assert_eq!(
        folder_error("rope_scaling", json!({"rope_type": "linear"})),
        "DIR/config.json: `rope_scaling.factor` is missing; allowed: a number above 0, up to 1e12"
    );
    assert_eq!(
        folder_error("rms_norm_eps", json!(-1)),
        "DIR/config.json: `rms_norm_eps` is -1; allowed: a number above 0, up to 1e12"
    );
    assert_eq!(
        folder_error("hidden_act", json!("gelu")),
        "DIR/config.json: `hidden_act` is \"gelu\"; allowed: silu"
    );
    assert_eq!(
        folder_error("num_attention_heads", json!(3)),
        "DIR/a.safetensors: tensor `model.layers.0.self_attn.q_proj.weight` has shape [8, 8]; the \
         configuration gives it [12, 8]"
    );
    let scratch = Scratch::new();
    let path = folder(&scratch, &config());
    let bytes = std::fs::read(path.join("b.safetensors")).unwrap();
    scratch.file("b.safetensors", &bytes[..bytes.len() - 1]);
    assert!(error(&path).starts_with("DIR/b.safetensors: truncated: tensor `model.layers.0."));
    std::fs::remove_file(path.join("b.safetensors")).unwrap();
    assert!(error(&path).starts_with("DIR/b.safetensors: "));
    scratch.file("b.safetensors", std::fs::read(path.join("a.safetensors")).unwrap());
    assert_eq!(
        error(&path).split(" is in").next(),
        Some("DIR/b.safetensors: tensor `model.embed_tokens.weight`")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_files_give_an_error_or_a_whole_checkpoint(
        gguf: bool, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let scratch = Scratch::new();
        let path = folder(&scratch, &config());
        let (path, name, mut bytes) = if gguf {
            (path.join("m.gguf"), "m.gguf", Gguf::new("llama").bytes())
        } else {
            let bytes = std::fs::read(path.join("a.safetensors")).unwrap();
            (path, "a.safetensors", bytes)
        };
        // The header is what a change may confuse.
        let head = bytes.len().min(1400);
        for (index, byte) in changes {
            bytes[index.index(head)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        scratch.file(name, &bytes);
        match open_weights(&path) {
            Ok((shape, mut weights)) => {
                for id in shape.weights() {
                    let matrix = weights.weight(id).unwrap();
                    prop_assert_eq!(Some(matrix.extent), shape.extent(id));
                }
            }
            Err(error) => {
                let message = error.to_string();
                prop_assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
            }
        }
    }
}
