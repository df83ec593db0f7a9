#!/usr/bin/env python3
"""Makes the vectors of the host engine's tests: tiny random decoders with the logits that Hugging Face
transformers computes for them, and quantised blocks with what gguf-py makes of them.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors gguf numpy
    venv/bin/python scripts/make-model-vectors.py backend-host/tests/vectors

The output does not depend on the machine beyond float32 rounding of torch.
"""

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SMALL = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    bos_token_id=1, eos_token_id=2,
)
# The names are those of `rope_parameters` (transformers 5); older releases read `rope_theta` and `rope_scaling`.
ROPE = dict(rope_type="default", rope_theta=10000.0)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
MODELS = {
    "llama-tied": (LlamaConfig, dict(SMALL, tie_word_embeddings=True, rope_parameters=ROPE), "float32"),
    "llama-biased": (
        LlamaConfig,
        dict(SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=False, rope_parameters=ROPE),
        "float32",
    ),
    "llama3-rope": (
        LlamaConfig, dict(SMALL, head_dim=16, tie_word_embeddings=False, rope_parameters=LLAMA3), "bfloat16",
    ),
    "linear-rope": (
        LlamaConfig,
        dict(SMALL, tie_word_embeddings=True,
             rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
        "float16",
    ),
    "qwen2": (Qwen2Config, dict(SMALL, tie_word_embeddings=False, rope_parameters=ROPE), "float32"),
    "qwen3": (
        Qwen3Config,
        dict(SMALL, head_dim=24, tie_word_embeddings=True,
             rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        "float32",
    ),
    "mistral-window": (
        MistralConfig,
        dict(SMALL, num_key_value_heads=1, sliding_window=7, tie_word_embeddings=False, rope_parameters=ROPE),
        "float32",
    ),
}
TOKENS = 40


def pack(path, data):
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(data)


def make_model(name, out, seed):
    config_class, fields, dtype = MODELS[name]
    torch.manual_seed(seed)
    config = config_class(**fields)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    with torch.no_grad():
        for key, value in sorted(model.named_parameters()):
            noise = torch.randn(value.shape) * (0.2 if value.ndim > 1 else 0.3)
            value.copy_(noise + 1.0 if "norm" in key else noise)
        # What is stored decides: the reference computes in float32 on the rounded weights.
        for value in model.parameters():
            value.copy_(value.to(getattr(torch, dtype)).to(torch.float32))
    ids = [(7 * i * i + 3 * i + seed) % SMALL["vocab_size"] for i in range(TOKENS)]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].to(torch.float32).numpy()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shard = "30KB" if name == "qwen2" else "1GB"
        model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
        for path in sorted(Path(folder).iterdir()):
            if path.suffix == ".safetensors":
                pack(out / (path.name + ".gz"), path.read_bytes())
            elif path.name != "generation_config.json":
                shutil.copy(path, out / path.name)
    (out / "ids.json").write_text(json.dumps(ids) + "\n")
    pack(out / "logits.f32.gz", logits.astype("<f4").tobytes())


def make_blocks(out):
    """Random blocks of each type, and gguf-py's dequantisation. Scales are kept finite."""
    rng = np.random.default_rng(7)
    out.mkdir(parents=True, exist_ok=True)
    for kind in ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]:
        quant = getattr(gguf.GGMLQuantizationType, kind)
        block, size = gguf.GGML_QUANT_SIZES[quant]
        rows = rng.integers(0, 256, (64, size), dtype=np.uint8)
        halves = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [size - 2]}[kind]
        for at in halves:
            scale = (rng.standard_normal(64) * 0.05).astype("<f2")
            rows[:, at:at + 2] = scale.view(np.uint8).reshape(64, 2)
        values = gguf.quants.dequantize(rows.reshape(1, -1), quant).astype("<f4")
        assert values.size == 64 * block
        pack(out / f"{kind}.blocks.gz", rows.tobytes())
        pack(out / f"{kind}.f32.gz", values.tobytes())


def main():
    out = Path(sys.argv[1])
    for seed, name in enumerate(MODELS, 1):
        make_model(name, out / "models" / name, seed)
        print(name, file=sys.stderr)
    make_blocks(out / "blocks")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", file=sys.stderr)


main()
