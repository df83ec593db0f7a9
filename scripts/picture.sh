#!/usr/bin/env bash
# Draws the README's picture anew: the charts of the founding crash, as a browser shows them.
#
#   scripts/picture.sh [FILE.png]
#
# PLIMSOLL names the binary, CHROMIUM the browser. Fonts are those of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${PLIMSOLL:-${CARGO_TARGET_DIR:-target}/release/plimsoll}
if [ ! -x "$binary" ]; then echo "$binary is not there: build it first" >&2; exit 2; fi
browser=${CHROMIUM:-$(command -v chromium || command -v google-chrome || true)}
if [ -z "$browser" ]; then echo "no Chromium: install it, or name it in CHROMIUM" >&2; exit 2; fi
out=$(realpath "${1:-docs/images/founding-crash.png}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The charts alone: the verdict stands as text beside the picture. The page's head is so tall with common fonts.
head=${HEAD:-464}
"$binary" run scenarios/founding/margin-0.93.yaml --report "$work/run.html" >/dev/null
cat >"$work/frame.html" <<HTML
<!doctype html><body style="margin:0;overflow:hidden"><iframe src="run.html" scrolling="no"
style="border:0;width:920px;height:1600px;margin-top:-${head}px"></iframe>
HTML
"$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
  --disable-component-update --disable-sync --disable-dev-shm-usage --user-data-dir="$work/profile" \
  --blink-settings=preferredColorScheme=1 --hide-scrollbars --force-device-scale-factor=1.5 --window-size=920,624 \
  --screenshot="$out" "file://$work/frame.html" >/dev/null 2>&1
echo "$out: $(stat -c %s "$out") bytes"
