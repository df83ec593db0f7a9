"""Uses of the package that a type checker must accept, and one that it must not; `mypy --strict` reads it."""

from pathlib import Path

import plimsoll

plan = plimsoll.plan("vllm serve Qwen/Qwen3-8B", device="H100", min_margin="2GiB", why=True, tp=2)
tokens: int = plan["pool"]["tokens"]
run = plimsoll.run(Path("scenario.yaml"), set={"engine.flags.mem-fraction-static": 0.88})
runs = plimsoll.run_all(["a.yaml", Path("b")], threads=2)
rows = plimsoll.sweep(
    {"name": "x"},
    over={"engine.flags.mem-fraction-static": "0.80..0.95:0.01", "engine.flags.tp": [1, 2]},
    seeds=range(1, 21),
    shard=(1, 4),
    out="rows.jsonl",
)
first: dict[str, object] = rows[0]
found = plimsoll.diagnose(["a line", "another"], command=["vllm", "serve", "m"], device=None)
answer = plimsoll.invoke(["--version"])
code: int = answer.code
plimsoll.plan(device=1)  # type: ignore[arg-type]
