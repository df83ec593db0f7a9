"""The package as it is installed: the module, the program, and that both answer alike.

Run from the repository's root; `scripts/check-wheel.sh` does so in a fresh environment.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import plimsoll

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "tests/cli/start.yaml"
CRASH = ROOT / "scenarios/founding/margin-0.93.yaml"
LOG = ROOT / "docs/samples/kimi-k2.5-0.93.log"
COMMAND = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8"
FRACTION = "engine.flags.mem-fraction-static"


def program(*args, **options):
    """The binary of the package, beside this interpreter."""
    name = Path(sys.executable).parent / "plimsoll"
    return subprocess.run([str(name), *map(str, args)], capture_output=True, text=True, **options)


class Doors(unittest.TestCase):
    def test_the_program_is_there(self):
        self.assertEqual(program("--version").stdout, f"plimsoll {plimsoll.__version__}\n")
        module = subprocess.run(
            [sys.executable, "-m", "plimsoll", "--version"], capture_output=True, text=True
        )
        self.assertEqual(module.stdout, f"plimsoll {plimsoll.__version__}\n")

    def test_both_doors_answer_alike(self):
        for args in (
            ["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B"],
            ["run", str(START), "--set", f"{FRACTION}=0.85", "--format", "json"],
            ["diagnose", str(LOG)],
            ["run"],
            ["plan", "--device", "H1000", "--model", "Qwen/Qwen3-8B"],
            ["--help"],
        ):
            shown = program(*args, stdin=subprocess.DEVNULL)
            answer = plimsoll.invoke(args)
            self.assertEqual(answer, (shown.returncode, shown.stdout, shown.stderr), args)

    def test_a_line_is_no_list(self):
        with self.assertRaises(TypeError):
            plimsoll.invoke("plan --device list")


class Plan(unittest.TestCase):
    def test_a_command(self):
        plan = plimsoll.plan(
            command=COMMAND, device="RTX PRO 6000 Blackwell", mem_fraction_static=0.93
        )
        self.assertEqual(plan["schema"], "plimsoll.plan/1")
        self.assertEqual(plan["verdict"], "low")
        self.assertEqual(plan["pool"]["tokens"], 231_792)
        words = plimsoll.plan(COMMAND.split(), device="RTX PRO 6000 Blackwell", mem_fraction_static="0.93")
        self.assertEqual(words["pool"], plan["pool"])

    def test_flags(self):
        few = plimsoll.plan(model="Qwen/Qwen3-8B", device="H100", min_margin="60GiB", why=True, tp=None)
        # A margin that does not hold is an answer, not an error.
        self.assertFalse(few["min_margin"]["holds"])
        paged = plimsoll.plan(
            model="Qwen/Qwen3-8B", device="H100", engine="vllm", set=["max-model-len=8192", "enforce-eager"]
        )
        same = plimsoll.plan(
            model="Qwen/Qwen3-8B",
            device="H100",
            engine="vllm",
            set={"max-model-len": 8192, "enforce-eager": True, "dtype": None},
        )
        self.assertEqual(paged["pool"], same["pool"])

    def test_bad_input_raises_the_rendered_problem(self):
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll.plan(model="Qwen/Qwen3-8B", device="H1000")
        self.assertEqual(raised.exception.code, 2)
        self.assertIn("error: --device H1000:", str(raised.exception))
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll.plan(model="Qwen/Qwen3-8B", device="H100", min_margn="1GiB")
        self.assertIn("--min-margin", str(raised.exception))
        with self.assertRaises(TypeError):
            plimsoll.plan(model="Qwen/Qwen3-8B", device="H100", format="md")

    def test_errors_cross_processes(self):
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll.plan(device="H100")
        error = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((str(error), error.code), (str(raised.exception), 2))


class Run(unittest.TestCase):
    def test_a_file_a_text_and_a_dict_are_one_scenario(self):
        by_path = plimsoll.run(START)
        self.assertTrue(by_path["passed"])
        self.assertEqual(plimsoll.run(str(START)), by_path)
        self.assertEqual(plimsoll.run(START.read_text()), by_path)
        scenario = {
            "name": "python/dict",
            "why": "A scenario that a program writes.",
            "seed": 1,
            "machine": {"device": "H100 SXM"},
            "engine": {"version": "0.5.8", "command": "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"},
            "expect": {"outcome": "started"},
        }
        self.assertEqual(plimsoll.run(scenario)["scenario"], "python/dict")

    def test_values_are_set(self):
        low = plimsoll.run(START, set={FRACTION: 0.85})
        # A claim that fails is an answer, not an error.
        self.assertFalse(low["passed"])
        self.assertEqual(low["measures"]["max_total_num_tokens"], 116_171)

    def test_the_founding_crash(self):
        crash = plimsoll.run(CRASH)
        self.assertTrue(crash["passed"])
        self.assertEqual(crash["outcome"], "out_of_memory")
        self.assertEqual(crash["measures"]["max_total_num_tokens"], 231_120)

    def test_several(self):
        runs = plimsoll.run_all([START, CRASH], threads=2)
        self.assertEqual([run["passed"] for run in runs], [True, True])
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll.run_all([START, "none.yaml"])
        self.assertEqual(json.loads(raised.exception.stdout)["passed"], True)

    def test_a_broken_text_says_where(self):
        with self.assertRaises(plimsoll.Error) as raised:
            plimsoll.run("name: x\nseed: -1\n")
        self.assertIn("<stdin>:2:7", str(raised.exception))

    def test_junit(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.xml"
            plimsoll.run(START, junit=file)
            self.assertIn('tests="1" failures="0"', file.read_text())


class Diagnose(unittest.TestCase):
    def test_a_path_a_text_and_lines_are_one_log(self):
        by_path = plimsoll.diagnose(LOG)
        self.assertEqual((by_path["level"], by_path["code"]), ("error", "activations-outside-pool"))
        self.assertEqual(plimsoll.diagnose(str(LOG)), by_path)
        self.assertEqual(plimsoll.diagnose([LOG]), by_path)
        text = LOG.read_text()
        by_text = plimsoll.diagnose(text)
        self.assertEqual(by_text["findings"][0]["code"], by_path["findings"][0]["code"])
        self.assertEqual(plimsoll.diagnose(text.encode()), by_text)
        self.assertEqual(plimsoll.diagnose(iter(text.splitlines())), by_text)
        self.assertEqual(plimsoll.diagnose(text.splitlines(keepends=True)), by_text)

    def test_a_command_beside_it(self):
        found = plimsoll.diagnose(LOG, command=COMMAND, device="RTX PRO 6000 Blackwell")
        self.assertEqual(plimsoll.diagnose(LOG, command=COMMAND.split(), device="RTX PRO 6000 Blackwell")["code"], found["code"])

    def test_nothing_to_read(self):
        with self.assertRaises(plimsoll.Error):
            plimsoll.diagnose("no server wrote this\n")
        with self.assertRaises(plimsoll.Error):
            plimsoll.diagnose("no-such.log")


class Pages(unittest.TestCase):
    def test_explain_and_schema(self):
        page = plimsoll.explain("activations-outside-pool")
        self.assertEqual(page["pages"][0]["key"], "activations-outside-pool")
        self.assertGreater(len(plimsoll.explain()["pages"]), 10)
        self.assertEqual(plimsoll.schema("run")["properties"]["schema"]["const"], "plimsoll.run/1")
        self.assertIn("properties", plimsoll.schema())


class Host(unittest.TestCase):
    """What a program needs that has other things to do."""


    def test_threads_do_not_mix(self):
        alone = {path: plimsoll.run(path) for path in (START, CRASH)}
        found = []

        def work(path):
            found.append(plimsoll.run(path) == alone[path])

        threads = [threading.Thread(target=work, args=(path,)) for path in (START, CRASH) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [True] * 6)

    def test_the_interpreter_is_free(self):
        """Another thread counts while a run goes on."""
        counted, ended = [0], threading.Event()

        def count():
            while not ended.is_set():
                counted[0] += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        try:
            plimsoll.run(CRASH, step_by_step=True)
        finally:
            ended.set()
            thread.join()
        self.assertGreater(counted[0], before)

    def test_ctrl_c_ends_a_long_run(self):
        # More requests than anyone waits for.
        # Who starts the tests in the background has Ctrl-C ignored, and that is inherited.
        script = (
            "import plimsoll, signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "try:\n"
            "    print('begins', flush=True)\n"
            f"    plimsoll.run({str(CRASH)!r}, unlogged=True, step_by_step=True,\n"
            "        set={'engine.flags.mem-fraction-static': 0.80,\n"
            "             'workload': [{'name': 'long', 'requests': 1000000, 'concurrency': 32,\n"
            "                           'prompt_tokens': 100, 'output_tokens': 100}]})\n"
            "except KeyboardInterrupt:\n"
            "    sys.exit(7)\n"
        )
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(child.stdout.readline(), b"begins\n")
        time.sleep(1)
        self.assertIsNone(child.poll(), child.stderr.read() if child.poll() is not None else "")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 7, err)

    def test_nothing_is_left_of_a_call(self):
        before = signal.getsignal(signal.SIGINT)
        plimsoll.run(START)
        self.assertIs(signal.getsignal(signal.SIGINT), before)


if __name__ == "__main__":
    os.chdir(ROOT)
    unittest.main()
