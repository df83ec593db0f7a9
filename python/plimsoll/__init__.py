"""The load line for LLM servers: what a launch does with GPU memory, and what to pass instead.

Each function runs a verb of the program in this process and gives its JSON document as a plain dict. A
keyword is a long flag: ``min_margin="2GiB"`` is ``--min-margin 2GiB``, ``True`` is a bare flag, ``None`` and
``False`` leave it out, a list repeats it, a dict repeats it as ``key=value``.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import NamedTuple

from . import _native

__all__ = [
    "Answer",
    "Error",
    "diagnose",
    "explain",
    "invoke",
    "plan",
    "run",
    "run_all",
    "schema",
    "sweep",
    "sweep_merge",
]
__version__: str = _native.__version__

_FAILED = 1
_INTERRUPTED = 130

# What decides how a result is printed is decided here.
_TAKEN = ("format", "output", "color")


class Answer(NamedTuple):
    """What the program would have answered."""

    code: int
    stdout: str
    stderr: str


class Error(Exception):
    """Bad input (``code`` 2), or a device or server that is missing or lost (``code`` 3).

    The message is the program's own: the place, the value, what is allowed. ``stdout`` is what it wrote
    before, for example the runs of the other files.
    """

    def __init__(self, message: str, code: int = 2, stdout: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.stdout = stdout

    def __reduce__(self):  # Exceptions of several arguments need it to cross processes.
        return (type(self), (str(self), self.code, self.stdout))


def invoke(args, stdin=None):
    """Runs any command line, without the word ``plimsoll``; raises for no exit code."""
    if isinstance(args, (str, bytes)):
        raise TypeError("args is a list of words; shlex.split() makes one of a line")
    if isinstance(stdin, str):
        stdin = stdin.encode()
    return Answer(*_native.invoke([os.fspath(word) for word in args], stdin))


def plan(command=None, *, model=None, device=None, **flags):
    """What a launch command (a text as typed, or a list of words) or a model does with a device's memory.

    ``verdict`` says how it stands (``ok``, ``low``, ``oom``, ``refused``), ``min_margin["holds"]`` whether the
    margin that was asked for is kept.
    """
    words = _flags(flags, model=model, device=device)
    return _document(["plan", *words, *_launch(command)])


def run(scenario, *, set=None, **flags):
    """Runs one scenario: a path, a dict, or a text of YAML (one with a line end).

    ``passed`` says whether every claim holds.
    """
    path, stdin = _scenario(scenario)
    words = ["run", *_flags(flags, set=_yaml_values(set)), "--", path]
    lines = _lines(words, stdin)
    if len(lines) != 1:
        raise Error(f"{path}: {len(lines)} scenarios; run_all runs the files of a folder")
    return lines[0]


def run_all(scenarios, *, set=None, **flags):
    """Runs scenario files, and those of folders; one document each, in the order of the paths."""
    if isinstance(scenarios, (str, os.PathLike)):
        scenarios = [scenarios]
    paths = [os.fspath(path) for path in scenarios]
    return _lines(["run", *_flags(flags, set=_yaml_values(set)), "--", *paths])


def sweep(scenario, *, over=None, seeds=None, shard=None, **flags):
    """Runs a scenario over values and seeds; a row for each point, ready for ``pandas.DataFrame``.

    ``over`` maps paths of the scenario to ranges as typed (``"0.80..0.95:0.01"``) or lists of values.
    ``seeds`` is a number, a list, a ``range`` or a text (``"1..1000"``). ``shard`` is ``(i, n)``, from 1.
    """
    words = ["sweep", *_flags(flags, over=_ranges(over), seeds=_seeds(seeds), shard=_shard(shard)), "--"]
    path, text = _scenario(scenario)
    if text is None:
        return _rows([*words, path])
    # A sweep reads its scenarios more than once.
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        path = os.path.join(folder, "scenario.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return _rows([*words, path])


def sweep_merge(shards, **flags):
    """Merges files that shards of one sweep wrote (``out=``); the rows of the whole sweep."""
    paths = [os.fspath(path) for path in shards]
    return _rows(["sweep", "merge", *_flags(flags), "--", *paths])


def diagnose(log, *, command=None, **flags):
    """What happened to a server, and what to set; ``level`` is ``error`` where it found a problem.

    ``log`` is a path; a text (``str`` or ``bytes`` with a line end); a list of paths
    (``os.PathLike``), as ranks or rotations of one server; or lines (any other iterable of texts).
    """
    paths, stdin = _log(log)
    if command is not None and not isinstance(command, str):
        command, launch = None, _launch(command)
    else:
        launch = []
    words = _flags(flags, command=command)
    # A path may begin with a dash; behind `--` stands a launch command.
    paths = [path if not path.startswith("-") else os.path.join(".", path) for path in paths]
    return _document(["diagnose", *words, *(paths or ["-"]), *launch], stdin)


def explain(*names):
    """Pages about findings of ``diagnose``, operating rules and usual answers; without a name, all."""
    return _document(["explain", "--", *names])


def schema(of="scenario"):
    """The JSON schema of scenario files, or of a result: ``"plan"``, ``"run"``, ``"diagnosis"``, …"""
    return json.loads(_checked(["schema", "--", of]).stdout)


def _document(words, stdin=None):
    return json.loads(_checked([words[0], "--format=json", *words[1:]], stdin).stdout)


def _lines(words, stdin=None):
    answer = _checked([words[0], "--format=jsonl", *words[1:]], stdin)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def _rows(words):
    # The first line says what was asked.
    return [line for line in _lines(words) if "schema" not in line]


def _checked(words, stdin=None):
    answer = invoke(words, stdin)
    if answer.code == _INTERRUPTED:
        raise KeyboardInterrupt(answer.stderr.strip())
    if answer.code > _FAILED:
        raise Error(answer.stderr.rstrip(), answer.code, answer.stdout)
    return answer


def _flags(flags, **own):
    for name in _TAKEN:
        if name in flags:
            raise TypeError(f"{name}: a result is a dict here; `invoke` takes every flag")
    words = []
    for name, value in {**own, **flags}.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if isinstance(value, dict):
            value = [f"{key}={item}" for key, item in value.items()]
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is True:
                words.append(flag)
            elif item is not None and item is not False:
                words.append(f"{flag}={os.fspath(item) if isinstance(item, os.PathLike) else item}")
    return words


def _launch(command):
    if command is None:
        return []
    # One text is read as it was typed, with its line ends and quotes.
    return ["--", *([command] if isinstance(command, str) else command)]


def _yaml_values(values):
    return None if values is None else {path: _yaml(value) for path, value in values.items()}


def _yaml(value):
    # Texts stand as typed: "4 GiB". JSON is YAML.
    return value if isinstance(value, str) else json.dumps(value)


def _scenario(scenario):
    if isinstance(scenario, dict):
        return "-", json.dumps(scenario)
    if isinstance(scenario, str) and "\n" in scenario:
        return "-", scenario
    path = os.fspath(scenario)
    return (os.path.join(".", path) if path == "-" else path), None


def _log(log):
    if isinstance(log, os.PathLike):
        return [os.fspath(log)], None
    if isinstance(log, bytes):
        return [], log
    if isinstance(log, str):
        return ([], log) if "\n" in log else ([log], None)
    items = list(log)
    if items and all(isinstance(item, os.PathLike) for item in items):
        return [os.fspath(item) for item in items], None
    lines = [item.encode() if isinstance(item, str) else item for item in items]
    return [], b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)


def _ranges(over):
    if over is None:
        return None
    text = {path: list(value) if isinstance(value, (range, tuple)) else value for path, value in over.items()}
    return _yaml_values(text)


def _seeds(seeds):
    if isinstance(seeds, range) and seeds.step == 1 and len(seeds) > 0:
        return f"{seeds.start}..{seeds.stop - 1}"
    if isinstance(seeds, (range, list, tuple)):
        return ",".join(str(seed) for seed in seeds)
    return seeds


def _shard(shard):
    return "/".join(str(part) for part in shard) if isinstance(shard, tuple) else shard
