#!/usr/bin/env bash
# Tries the GitHub action, the pre-commit hook, the Slurm scripts and the Kubernetes jobs, with the wheel of dist/.
# With `--rust-hook` the hook that builds from source too: a release build of what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-}" != --rust-hook ] || export PLIMSOLL_RUST_HOOK=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
PATH=$folder/venv/bin:$PATH
pip install --quiet --disable-pip-version-check --no-index dist/plimsoll-*.whl
pip install --quiet --disable-pip-version-check pyyaml junitparser pre-commit
for script in contrib/slurm/*.sbatch scripts/*.sh; do bash -n "$script"; done
if command -v shellcheck >/dev/null; then shellcheck contrib/slurm/*.sbatch; fi
python contrib/test_contrib.py
