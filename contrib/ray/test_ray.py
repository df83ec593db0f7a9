"""The Ray driver on a cluster of this machine: a killed worker, a second start, and the same bytes as one run."""

import os
import signal
import sys
import tempfile
import unittest
from pathlib import Path

import plimsoll
import ray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import plimsoll_ray  # noqa: E402

SCENARIO = HERE.parents[1] / "scenarios/founding/margin-0.93.yaml"
WORDS = [str(SCENARIO), "--fraction", "0.86..0.93:0.01", "--seeds", "1..2"]
SHARDS = 4


class Killed:
    """Runs shards; the worker that first gets shard 2 is killed as a node that dies would be."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, words, shard, have):
        mark = Path(self.folder) / f"began-{shard.index}"
        with mark.open("a") as file:
            file.write(f"{len(have)}\n")
        if shard.index == 2 and len(mark.read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return plimsoll_ray.run_shard(words, shard, have)

    def began(self, index):
        """The bytes that each try of a shard had to go on from."""
        mark = Path(self.folder) / f"began-{index}"
        return [int(line) for line in mark.read_text().splitlines()] if mark.exists() else []


class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        env = {"env_vars": {"PYTHONPATH": str(HERE)}}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=env)
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        whole = cls.folder / "whole.jsonl"
        cls.rows = plimsoll.sweep(SCENARIO, fraction="0.86..0.93:0.01", seeds=range(1, 3), out=whole)
        cls.whole = whole.read_bytes()

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
        cls.temporary.cleanup()

    def place(self, name):
        folder = self.folder / name
        folder.mkdir()
        return folder

    def sweep(self, folder, runner, **options):
        def run(words, shard, have):
            return runner(words, shard, have)

        out = folder / "merged.jsonl"
        rows = plimsoll_ray.sweep(
            WORDS, folder=folder / "rows", shards=SHARDS, out=out, runner=run, **options
        )
        return rows, out.read_bytes()

    def test_a_killed_worker_is_replaced_and_the_bytes_are_those_of_one_run(self):
        folder, seen = self.place("killed"), []
        runner = Killed(str(folder))
        rows, merged = self.sweep(folder, runner, progress=seen.append)
        self.assertEqual([len(runner.began(index)) for index in range(1, SHARDS + 1)], [1, 2, 1, 1])
        self.assertEqual(merged, self.whole)
        self.assertEqual(rows, self.rows)
        self.assertEqual([now.shards_done for now in seen], [1, 2, 3, 4])
        last = seen[-1]
        self.assertEqual(last.rows, len(self.rows))
        worst = min(row["margin_bytes"] for row in self.rows if row["margin_bytes"] is not None)
        self.assertEqual(last.worst["margin_bytes"], worst)
        self.assertIn("4 of 4 shards, 16 points; worst margin", last.line())

    def test_a_second_start_runs_what_is_missing(self):
        folder = self.place("resumed")
        runner = Killed(str(folder))
        with self.assertRaises(ray.exceptions.WorkerCrashedError):
            self.sweep(folder, runner, retries=0)
        kept = {path.name: path.read_bytes() for path in (folder / "rows").glob("*.jsonl")}
        self.assertNotIn("shard-00002-of-00004.jsonl", kept)
        _, merged = self.sweep(folder, runner)
        self.assertEqual(merged, self.whole)
        for name, data in kept.items():
            index = int(name[6:11])
            # It was given its rows, and gave them back as they were.
            self.assertEqual(runner.began(index)[-1], len(data))
            self.assertEqual((folder / "rows" / name).read_bytes(), data)

    def test_rows_of_another_question_end_the_sweep(self):
        folder = self.place("other")
        plimsoll_ray.sweep(WORDS, folder=folder, shards=SHARDS)
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll_ray.sweep([*WORDS[:-1], "1..3"], folder=folder, shards=SHARDS)
        self.assertEqual(raised.exception.code, 2)

    def test_bad_input_is_told_as_the_program_tells_it(self):
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll_ray.sweep(["no-such.yaml", "--seeds", "2"], folder=self.place("bad"), shards=2)
        self.assertEqual(raised.exception.code, 2)
        self.assertIn("no-such.yaml", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
