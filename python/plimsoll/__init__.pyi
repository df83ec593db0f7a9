import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union

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

__version__: str

_Path = Union[str, os.PathLike[str]]
_Word = Union[str, int, float, bool, os.PathLike[str], None]
_Flag = Union[_Word, Sequence[_Word], Mapping[str, _Word]]
_Command = Union[str, Sequence[str], None]
_Document = dict[str, Any]

class Answer(NamedTuple):
    code: int
    stdout: str
    stderr: str

class Error(Exception):
    code: int
    stdout: str
    def __init__(self, message: str, code: int = 2, stdout: str = "") -> None: ...
    def __reduce__(self) -> tuple[type[Error], tuple[str, int, str]]: ...

def invoke(args: Iterable[_Path], stdin: str | bytes | None = None) -> Answer: ...
def plan(
    command: _Command = None,
    *,
    model: str | None = None,
    device: str | None = None,
    **flags: _Flag,
) -> _Document: ...
def run(
    scenario: _Path | dict[str, Any],
    *,
    set: Mapping[str, Any] | None = None,
    **flags: _Flag,
) -> _Document: ...
def run_all(
    scenarios: _Path | Iterable[_Path],
    *,
    set: Mapping[str, Any] | None = None,
    **flags: _Flag,
) -> list[_Document]: ...
def sweep(
    scenario: _Path | dict[str, Any],
    *,
    over: Mapping[str, str | Sequence[Any]] | None = None,
    seeds: int | str | Sequence[int] | None = None,
    shard: tuple[int, int] | str | None = None,
    **flags: _Flag,
) -> list[_Document]: ...
def sweep_merge(shards: Iterable[_Path], **flags: _Flag) -> list[_Document]: ...
def diagnose(
    log: _Path | bytes | Iterable[os.PathLike[str]] | Iterable[str] | Iterable[bytes],
    *,
    command: _Command = None,
    **flags: _Flag,
) -> _Document: ...
def explain(*names: str) -> _Document: ...
def schema(of: str = "scenario") -> _Document: ...
