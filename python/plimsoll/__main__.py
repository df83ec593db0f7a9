"""``python -m plimsoll``: the program of this package."""

import os
import subprocess
import sys
import sysconfig


def _program() -> str:
    name = "plimsoll" + (sysconfig.get_config_var("EXE") or "")
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    raise SystemExit(f"error: the program {name} of this package is not installed beside the interpreter")


def _main() -> int:
    try:
        return subprocess.call([_program(), *sys.argv[1:]])
    except KeyboardInterrupt:
        # The program has its own handler, and its own exit code; this is the second Ctrl-C.
        return 130


if __name__ == "__main__":
    sys.exit(_main())
