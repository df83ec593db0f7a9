"""What cannot run in its own place is run here as it would be there: the GitHub action step by step, the hook on a
repository of its own, the Slurm scripts task by task, the Kubernetes commands pod by pod.

Needs `plimsoll` on PATH and the package in this interpreter, PyYAML, junitparser and pre-commit:
`scripts/check-contrib.sh` brings them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import junitparser
import plimsoll
import yaml

ROOT = Path(__file__).resolve().parents[1]
START = "tests/cli/start.yaml"
CRASH = ROOT / "scenarios/founding/margin-0.93.yaml"
LOG = "docs/samples/kimi-k2.5-0.93.log"
SWEEP = ["--fraction", "0.90..0.93:0.01", "--seeds", "1..2"]


def sh(*args, env=None, cwd=ROOT):
    env = {**os.environ, **(env or {})}
    return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, env=env, cwd=cwd)


class Temporary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Action(Temporary):
    """`action.yml`, read and run as a runner does: expressions replaced, `run` by bash, outputs from the file."""

    def setUp(self):
        super().setUp()
        self.action = yaml.safe_load((ROOT / "action.yml").read_text())

    def step(self, step, inputs, runner):
        """Runs a step's script; its exit code, what it showed, and its outputs."""
        known = {f"inputs.{name}": value for name, value in inputs.items()}
        known["github.action_path"] = str(ROOT)

        def value(text):
            return re.sub(r"\$\{\{ ([^}]+) \}\}", lambda found: known[found[1]], text)

        files = {name: runner / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.touch()
        env = {name: value(text) for name, text in step["env"].items()}
        env |= {"RUNNER_TEMP": str(runner), **{name: str(file) for name, file in files.items()}}
        # As the runner calls it for `shell: bash`.
        script = runner / "step.sh"
        script.write_text(step["run"])
        done = sh("bash", "--noprofile", "--norc", "-eo", "pipefail", script, env=env)
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        return done.returncode, done.stdout + done.stderr, dict(line.split("=", 1) for line in lines)

    def run_step(self, **given):
        inputs = {name: spec["default"] for name, spec in self.action["inputs"].items()} | given
        runner = Path(tempfile.mkdtemp(dir=self.folder))
        (step,) = [step for step in self.action["runs"]["steps"] if step.get("id") == "plimsoll"]
        code, shown, outputs = self.step(step, inputs, runner)
        summary = (runner / "GITHUB_STEP_SUMMARY").read_text()
        return code, shown, outputs, summary

    def test_its_form(self):
        self.assertEqual(self.action["runs"]["using"], "composite")
        for name, spec in self.action["inputs"].items():
            self.assertEqual(set(spec), {"description", "default"}, name)
            # A runner hands over texts.
            self.assertIsInstance(spec["default"], str, name)
        steps = self.action["runs"]["steps"]
        for step in steps:
            self.assertTrue(("uses" in step) != ("run" in step and step["shell"] == "bash"), step["name"])
            # No input may stand in a script: it would run.
            self.assertNotIn("${{", step.get("run", ""))
        text = (ROOT / "action.yml").read_text()
        used = set(re.findall(r"inputs\.(\w+)", text))
        self.assertEqual(used, set(self.action["inputs"]))
        outputs = set(re.findall(r"steps\.plimsoll\.outputs\.(\w+)", text))
        self.assertEqual(outputs, set(self.action["outputs"]))
        documented = (ROOT / "docs/ci.md").read_text()
        for name, spec in self.action["inputs"].items():
            default = f"`{spec['default']}`" if spec["default"] else ""
            self.assertIn(f"| `{name}` | {default} |".replace("|  |", "| |"), documented)

    def test_what_holds(self):
        report = self.folder / "report.xml"
        code, shown, outputs, summary = self.run_step(scenarios=START, junit=str(report))
        self.assertEqual((code, outputs), (0, {"junit": str(report), "code": "0"}), shown)
        self.assertIn("231,120 tokens", summary)
        self.assertIn('failures="0"', report.read_text())

    def test_what_fails(self):
        report = self.folder / "a report.xml"
        args = "--set engine.flags.mem-fraction-static=0.85 --set 'why=two words'"
        code, shown, outputs, _ = self.run_step(scenarios=START, args=args, junit=str(report))
        self.assertEqual((code, outputs), (1, {"junit": str(report), "code": "1"}), shown)
        suites = junitparser.JUnitXml.fromfile(str(report))
        ((case,),) = suites
        (failure,) = case.result
        self.assertIsInstance(failure, junitparser.Failure)
        self.assertIn("expected 231120, got 116171", failure.message)

    def test_broken_files_and_bad_flags(self):
        report = self.folder / "report.xml"
        code, _, outputs, _ = self.run_step(scenarios=f"{START}\nno-such.yaml", junit=str(report))
        self.assertEqual((code, outputs["junit"]), (2, str(report)))
        suites = junitparser.JUnitXml.fromfile(str(report))
        self.assertEqual((suites.tests, suites.errors, suites.failures), (2, 1, 0))
        # Nothing ran: an old report must not stand in for a new one.
        code, _, outputs, _ = self.run_step(scenarios=START, args="--no-such-flag", junit=str(report))
        self.assertEqual((code, outputs), (2, {"code": "2"}))

    def test_logs(self):
        sarif = self.folder / "found.sarif"
        code, shown, outputs, _ = self.run_step(scenarios="", logs=LOG, sarif=str(sarif))
        self.assertEqual((code, outputs), (1, {"sarif": str(sarif), "code": "1"}), shown)
        self.assertEqual(json.loads(sarif.read_text())["version"], "2.1.0")

    def test_inputs_are_never_run(self):
        mark = self.folder / "mark"
        for name in ("scenarios", "args", "logs"):
            self.run_step(**{"scenarios": "", name: f"$(touch {mark}) `touch {mark}`; touch {mark}"})
            self.assertFalse(mark.exists(), name)

    @unittest.skipUnless(list(ROOT.glob("dist/plimsoll-*.whl")), "there is no wheel in dist/")
    def test_it_installs_a_wheel(self):
        (wheel,) = ROOT.glob("dist/plimsoll-*.whl")
        step = self.action["runs"]["steps"][0]
        code, shown, _ = self.step(step, {"wheel": str(wheel)}, self.folder)
        self.assertEqual(code, 0, shown)
        path = (self.folder / "GITHUB_PATH").read_text().strip()
        version = sh(Path(path) / "plimsoll", "--version")
        self.assertEqual(version.stdout, f"plimsoll {plimsoll.__version__}\n")


class Hooks(Temporary):
    """`.pre-commit-hooks.yaml` on a repository of its own, with the hooks of this checkout."""

    def setUp(self):
        super().setUp()
        self.user = self.folder / "user"
        shutil.copytree(ROOT / "scenarios/devices", self.user / "scenarios/devices")
        shutil.copy(ROOT / START, self.user / "scenarios/start.yaml")
        (self.user / "other.yaml").write_text("a: 1\n")
        # pre-commit clones what is committed; the hooks of this checkout may not be yet.
        self.hooks = self.folder / "hooks"
        self.hooks.mkdir()
        shutil.copy(ROOT / ".pre-commit-hooks.yaml", self.hooks)
        for repository in (self.user, self.hooks):
            for args in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
                self.git(repository, *args)

    @staticmethod
    def git(repository, *args):
        who = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
        done = sh("git", *who, *args, cwd=repository)
        assert done.returncode == 0, done.stderr

    def try_hook(self, source, name):
        env = {"PRE_COMMIT_HOME": str(self.folder / "cache")}
        args = ["try-repo", source, name, "--all-files", "--verbose"]
        return sh(sys.executable, "-m", "pre_commit", *args, cwd=self.user, env=env)

    def check(self, source, name):
        held = self.try_hook(source, name)
        self.assertEqual(held.returncode, 0, held.stdout + held.stderr)
        # One scenario: neither the catalogs nor YAML elsewhere.
        self.assertIn("holds  start", held.stdout)
        self.assertNotIn("scenarios hold", held.stdout)
        text = (self.user / "scenarios/start.yaml").read_text()
        self.assertIn("231120", text)
        (self.user / "scenarios/start.yaml").write_text(text.replace("231120", "231121"))
        failed = self.try_hook(source, name)
        self.assertNotEqual(failed.returncode, 0)
        self.assertIn("expected 231121, got 231120", failed.stdout)

    def test_with_the_program_on_path(self):
        self.check(self.hooks, "plimsoll-run-system")

    @unittest.skipUnless(os.environ.get("PLIMSOLL_RUST_HOOK"), "builds a release: --rust-hook")
    def test_built_from_source(self):
        self.check(ROOT, "plimsoll-run")


class Fleets(Temporary):
    def setUp(self):
        super().setUp()
        self.whole = self.folder / "whole.jsonl"
        done = sh("plimsoll", "sweep", CRASH, *SWEEP, "--out", self.whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.rows = self.folder / "rows"

    def test_slurm(self):
        script, merge = ROOT / "contrib/slurm/sweep.sbatch", ROOT / "contrib/slurm/merge.sbatch"

        def task(index):
            env = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_CPUS_PER_TASK": "1"}
            return sh("bash", script, 3, self.rows, CRASH, *SWEEP, env=env)

        for index in (3, 1):
            done = task(index)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        out = self.folder / "merged.jsonl"
        early = sh("bash", merge, self.rows, out)
        self.assertEqual(early.returncode, 2, "a shard is missing")
        # One that is sent again changes nothing.
        for index in (2, 3):
            self.assertEqual(task(index).returncode, 0)
        done = sh("bash", merge, self.rows, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(out.read_bytes(), self.whole.read_bytes())
        self.assertEqual(sh("bash", script, 3, self.rows, CRASH).returncode, 2, "no array task")

    def test_kubernetes(self):
        folder = ROOT / "contrib/kubernetes"
        claim, job = yaml.safe_load_all((folder / "sweep-job.yaml").read_text())
        merge = yaml.safe_load((folder / "merge-job.yaml").read_text())
        spec = job["spec"]
        self.assertEqual((spec["completionMode"], job["apiVersion"]), ("Indexed", "batch/v1"))
        pod, last = spec["template"]["spec"], merge["spec"]["template"]["spec"]
        (container,), (merger,) = pod["containers"], last["containers"]
        self.assertEqual(container["image"], merger["image"])
        self.assertEqual(container["image"], f"plimsoll:{plimsoll.__version__}")
        for one in (pod, last):
            volumes = {volume["name"] for volume in one["volumes"]}
            self.assertEqual({mount["name"] for mount in one["containers"][0]["volumeMounts"]}, volumes)
            claims = {volume["persistentVolumeClaim"]["claimName"] for volume in one["volumes"] if "persistentVolumeClaim" in volume}
            self.assertEqual(claims, {claim["metadata"]["name"]})
        env = {item["name"]: item["value"] for item in container["env"]}
        self.assertEqual(env["SHARDS"], str(spec["completions"]))
        (rule,) = spec["podFailurePolicy"]["rules"]
        self.assertEqual(rule["onExitCodes"]["containerName"], container["name"])

        def command(one):
            """As in the pod, with the folders of this test, and a smaller question."""
            text = " ".join(one["args"])
            text = text.replace("/scenario/scenario.yaml", str(CRASH)).replace("/rows/", f"{self.rows}/")
            text = text.replace("--fraction 0.80..0.95:0.01 --seeds 1..1000", " ".join(SWEEP))
            return [*one["command"], text]

        self.rows.mkdir()
        for index in range(3):
            done = sh(*command(container), env={"JOB_COMPLETION_INDEX": str(index), "SHARDS": "3"})
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        done = sh(*command(merger))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.rows / "merged.rows").read_bytes(), self.whole.read_bytes())
        # Applied once more, the merged file is no shard.
        self.assertEqual(sh(*command(merger)).returncode, 0)


if __name__ == "__main__":
    unittest.main()
