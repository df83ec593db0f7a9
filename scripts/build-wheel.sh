#!/usr/bin/env bash
# Builds the Python wheel, with the program inside: dist/plimsoll-*.whl. `scripts/check-wheel.sh` tries it.
#
# Both are built in the profile and with the features of `cargo build --release`: what that has built already is
# not built again. `--debug` takes the debug build, to try something. The tag of the wheel says which glibc it
# needs: that of the machine which builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
profile=release folder=release
if [ "${1:-}" = --debug ]; then profile=dev folder=debug; fi
venv=$target/wheel-tools

if ! [ -x "$venv/bin/maturin" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
fi

cargo build --profile "$profile" --locked -p plimsoll --bin plimsoll
data=python/plimsoll.data
rm -rf "$data" dist
mkdir -p "$data/scripts"
trap 'rm -rf "$data"' EXIT
cp "$target/$folder/plimsoll" "$data/scripts/plimsoll"
"$venv/bin/maturin" build --profile "$profile" --locked --manifest-path python/Cargo.toml --out dist
ls -l dist
