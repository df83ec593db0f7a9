#!/usr/bin/env bash
# Tries contrib/ray on a cluster of this machine, with the wheel of dist/ and Ray from the package index.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
pip=$folder/venv/bin/pip
"$pip" install --quiet --disable-pip-version-check --no-index dist/plimsoll-*.whl
"$pip" install --quiet --disable-pip-version-check ray
"$folder/venv/bin/python" contrib/ray/test_ray.py
