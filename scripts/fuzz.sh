#!/usr/bin/env bash
# Fuzzes one target, or each in turn, on stable Rust: coverage flags and libFuzzer, no other tool.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]        30 seconds each by default
#
# With cargo-fuzz and a nightly compiler, `cargo +nightly fuzz run TARGET` does the same with the
# address sanitizer. Inputs that break a property are left in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-30}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi

cargo run --quiet --package plimsoll-fuzz-entries --example write_seeds -- fuzz/corpus

host=$(rustc -vV | sed -n 's/^host: //p')
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
# A target triple keeps the flags off build scripts.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks" \
  cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" "${bins[@]}"

folder=${CARGO_TARGET_DIR:-fuzz/target}/$host/release
failed=0
for target in "${targets[@]}"; do
  printf '\n== %s ==\n' "$target"
  mkdir -p "fuzz/artifacts/$target"
  "$folder/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -dict="fuzz/corpus/$target.dict" -artifact_prefix="fuzz/artifacts/$target/" \
    -verbosity=0 -print_final_stats=1 "fuzz/corpus/$target" || failed=1
done
exit "$failed"
