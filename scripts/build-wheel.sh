#!/usr/bin/env bash
# Builds the Python wheel, with the program inside: dist/plimsoll-*.whl. `scripts/check-wheel.sh` tries it.
#
# Both are built in the profile and with the features of `cargo build --release`: what that has built already is
# not built again. The tag of the wheel says which glibc it needs: that of the machine which builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
venv=$target/wheel-tools

if ! [ -x "$venv/bin/maturin" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
fi

cargo build --release --locked -p plimsoll --bin plimsoll
data=python/plimsoll.data
rm -rf "$data" dist
mkdir -p "$data/scripts"
trap 'rm -rf "$data"' EXIT
cp "$target/release/plimsoll" "$data/scripts/plimsoll"
"$venv/bin/maturin" build --release --locked --manifest-path python/Cargo.toml --out dist
ls -l dist
