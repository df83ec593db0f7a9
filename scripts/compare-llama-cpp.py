#!/usr/bin/env python3
"""Plimsoll's host engine beside llama.cpp: one GGUF file, the same loads, one machine, in turn.

    python3 -m venv venv && CMAKE_ARGS=-DGGML_NATIVE=ON venv/bin/pip install llama-cpp-python==0.3.36
    cargo build --release -p plimsoll-backend-host --example speed
    venv/bin/python scripts/compare-llama-cpp.py MODEL.gguf target/release/examples/speed [THREADS [ROUNDS]]

A load is some requests at once: tokens that their prompts share, tokens of their own, new tokens of each,
greedy. llama.cpp runs through its C interface in one batch a step; where prompts share a beginning it is
computed once there too and copied to the other sequences. The sides take turns, and each figure is the
median of the rounds. Prints a table in Markdown.
"""

import ctypes
import json
import statistics
import subprocess
import sys
import time

import llama_cpp as ll

# Requests, shared, own, new.
LOADS = [(1, 0, 512, 2), (1, 0, 16, 64), (16, 0, 32, 64), (16, 512, 32, 64)]
CHUNK = 512
# Kept: the library calls it as long as it is loaded.
QUIET = ll.llama_log_callback(lambda *_: None)


def token(i, vocab):
    return i * 7919 % vocab


class Llama:
    def __init__(self, path, threads, amx=False):
        ll.llama_log_set(QUIET, ctypes.c_void_p(0))
        ll.llama_backend_init()
        options = ll.llama_model_default_params()
        # Its AMX buffers are of no use on machines that announce AMX and do not execute it.
        options.use_extra_bufts = amx
        self.model = ll.llama_model_load_from_file(path.encode(), options)
        options = ll.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 16384, CHUNK, CHUNK
        options.n_seq_max, options.n_threads, options.n_threads_batch = 16, threads, threads
        options.kv_unified = True
        self.context = ll.llama_init_from_model(self.model, options)
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.batch = ll.llama_batch_init(CHUNK, 0, 1)

    def decode(self, entries):
        """Entries: token, position, sequence, whether logits are asked for."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, output) in enumerate(entries):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequence, output
        if ll.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def best(self, index):
        sampler = self.sampler
        return ll.llama_sampler_sample(sampler, self.context, index)

    def answer(self, requests, shared, own, new):
        memory = ll.llama_get_memory(self.context)
        ll.llama_memory_clear(memory, True)
        self.sampler = ll.llama_sampler_init_greedy()
        start = time.perf_counter()
        common = [(token(i, self.vocab), i, 0, False) for i in range(shared)]
        for at in range(0, shared, CHUNK):
            self.decode(common[at : at + CHUNK])
        for r in range(1, requests if shared else 0):
            ll.llama_memory_seq_cp(memory, 0, r, 0, -1)
        entries = [
            (token(i * 31 + r * 1009 + 5, self.vocab), shared + i, r, i == own - 1)
            for r in range(requests)
            for i in range(own)
        ]
        last = {}
        for at in range(0, len(entries), CHUNK):
            part = entries[at : at + CHUNK]
            self.decode(part)
            last.update({e[2]: self.best(i) for i, e in enumerate(part) if e[3]})
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for step in range(1, new):
            position = shared + own + step - 1
            self.decode([(last[r], position, r, True) for r in range(requests)])
            last = {r: self.best(r) for r in range(requests)}
        return prefill, time.perf_counter() - start


def ours(program, path, threads, keep, load):
    command = [program, path, str(threads), keep, *map(str, load), "1"]
    line = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return line["prefill_s"], line["decode_s"]


def main():
    path, program = sys.argv[1:3]
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    llama = Llama(path, threads)
    print("| requests | shared | own | new | side | prompt tokens/s | new tokens/s | beside llama.cpp |")
    print("|---|---|---|---|---|---|---|---|")
    for load in LOADS:
        requests, shared, own, new = load
        times = {"llama.cpp": [], "int8": []}
        for _ in range(rounds):
            times["llama.cpp"].append(llama.answer(*load))
            times["int8"].append(ours(program, path, threads, "int8", load))
        rates = {}
        for side, pairs in times.items():
            prefill, decode = (statistics.median(p[i] for p in pairs) for i in (0, 1))
            rates[side] = ((shared + requests * own) / prefill, requests * (new - 1) / decode)
        for side, rate in rates.items():
            ratio = " / ".join(f"{a / b:.2f}" for a, b in zip(rate, rates["llama.cpp"]))
            numbers = f"{requests} | {shared} | {own} | {new}"
            print(f"| {numbers} | {side} | {rate[0]:.0f} | {rate[1]:.0f} | {ratio} |", flush=True)


main()
