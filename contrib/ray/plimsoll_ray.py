"""One sweep over the machines of a Ray cluster: `plimsoll sweep` in shards, a task each.

    python plimsoll_ray.py --shards 64 --folder rows --out rows.jsonl -- \
        scenario.yaml --fraction 0.80..0.95:0.01 --seeds 1..1000

What stands behind `--` are the words of `plimsoll sweep`. Every node needs the packages `ray` and `plimsoll`.
Rows come back to this process, which keeps a file for each shard in the folder: started again with the same
folder, it runs only what is missing. A shard whose worker or node dies is run again by Ray. At the end the
shards are merged, to the bytes that one machine would have written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

import plimsoll
import ray


class Shard(NamedTuple):
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    def file(self, folder: Path) -> Path:
        return folder / f"shard-{self.index:05}-of-{self.count:05}.jsonl"


class Progress(NamedTuple):
    """Where the sweep stands."""

    shards_done: int
    shards: int
    rows: int
    worst: dict[str, Any] | None

    def line(self) -> str:
        text = f"{self.shards_done} of {self.shards} shards, {self.rows} points"
        if self.worst is not None:
            gib = self.worst["margin_bytes"] / 2**30
            point = f"point {self.worst['index']} of {self.worst['scenario']}, seed {self.worst['seed']}"
            text += f"; worst margin {gib:.2f} GiB at {point}"
        return text


def run_shard(words: Sequence[str], shard: Shard, have: bytes) -> bytes:
    """Runs one shard here, behind the rows that there are already; its file of rows."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        out = Path(folder) / "rows.jsonl"
        if have:
            # Plimsoll itself says whether they answer the same question.
            out.write_bytes(have)
        part = [f"--shard={shard.index}/{shard.count}", f"--out={out}", "--format=jsonl"]
        answer = plimsoll.invoke(["sweep", *part, *words])
        if answer.code > 1:
            raise plimsoll.Error(answer.stderr.rstrip(), answer.code)
        return out.read_bytes()


def sweep(
    words: Sequence[str],
    *,
    folder: str | os.PathLike[str],
    shards: int,
    out: str | os.PathLike[str] | None = None,
    retries: int = 3,
    cpus: int = 1,
    progress: Callable[[Progress], None] | None = None,
    runner: Callable[[Sequence[str], Shard, bytes], bytes] = run_shard,
) -> list[dict[str, Any]]:
    """Runs `plimsoll sweep` with these words over the cluster that Ray is connected to; all rows.

    `out` is the file of the merged rows. A worker that dies is replaced up to `retries` times a shard; bad
    input (`plimsoll.Error`) ends the sweep at once. Each shard takes `cpus` cores of its node.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    all_shards = [Shard(index, shards) for index in range(1, shards + 1)]
    words = [f"--threads={cpus}", *words]
    task = ray.remote(num_cpus=cpus, max_retries=retries)(runner)
    waiting = {
        task.remote(words, shard, _read(shard.file(folder))): shard for shard in all_shards
    }
    done, rows, worst = 0, 0, None
    try:
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            shard = waiting.pop(ready)
            data = _result(ready)
            _write(shard.file(folder), data)
            done, fresh = done + 1, _rows(data)
            rows += len(fresh)
            worst = _worse(worst, fresh)
            if progress is not None:
                progress(Progress(done, shards, rows, worst))
    finally:
        for ref in waiting:
            ray.cancel(ref, force=True)
    files = [shard.file(folder) for shard in all_shards]
    return plimsoll.sweep_merge(files, out=out)


def _result(ref: ray.ObjectRef) -> bytes:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        # The task's own error, as it would have been raised here.
        raise (error.cause or error) from None


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: a file of rows is there once its shard is done."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)


def _rows(data: bytes) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in data.splitlines()]
    return [line for line in lines if "schema" not in line]


def _worse(worst: dict[str, Any] | None, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    known = [row for row in [worst, *rows] if row is not None and row["margin_bytes"] is not None]
    # By index where margins are equal: the answer does not depend on which shard came first.
    return min(known, key=lambda row: (row["margin_bytes"], row["index"]), default=None)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, required=True, help="parts, some for each core of the cluster")
    parser.add_argument("--folder", required=True, help="where files of rows are kept, to go on from")
    parser.add_argument("--out", help="the merged file of rows")
    parser.add_argument("--address", default=None, help="the cluster, as ray.init() takes it; none: this machine")
    parser.add_argument("--working-dir", help="a folder that Ray copies to every node: paths start there")
    parser.add_argument("--retries", type=int, default=3, help="times that a lost shard is run again")
    parser.add_argument("--cpus", type=int, default=1, help="cores of a shard")
    parser.add_argument("words", nargs="+", help="words of `plimsoll sweep`, behind `--`")
    args = parser.parse_args()
    env = {"working_dir": args.working_dir} if args.working_dir else None
    ray.init(address=args.address, runtime_env=env, log_to_driver=False)
    try:
        rows = sweep(
            args.words,
            folder=args.folder,
            shards=args.shards,
            out=args.out,
            retries=args.retries,
            cpus=args.cpus,
            progress=lambda now: print(now.line(), file=sys.stderr, flush=True),
        )
    except plimsoll.Error as error:
        print(error, file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("interrupted: run the same again to go on", file=sys.stderr)
        return 130
    finally:
        ray.shutdown()
    if args.out is None:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
