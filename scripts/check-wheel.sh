#!/usr/bin/env bash
# Installs dist/plimsoll-*.whl into a fresh environment, without an index, and runs its tests there.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
bin=$folder/venv/bin
"$bin/pip" install --quiet --disable-pip-version-check --no-index dist/plimsoll-*.whl

"$bin/plimsoll" --version
# Not from here: `python/` must not stand in for what is installed.
(cd "$folder" && "$bin/python" "$OLDPWD/python/tests/test_plimsoll.py")

# The stubs against the module. The checker is not part of the package.
if "$bin/pip" install --quiet --disable-pip-version-check mypy 2>/dev/null; then
  (cd "$folder" && "$bin/python" -m mypy.stubtest plimsoll --ignore-missing-stub --mypy-config-file /dev/null)
  "$bin/python" -m mypy --strict python/tests/typed.py
else
  echo "mypy cannot be installed here: the stubs are not checked"
  test -z "${CI:-}"
fi
