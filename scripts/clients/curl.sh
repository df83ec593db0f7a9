#!/usr/bin/env bash
# curl against a running server: arguments are its base URL and the model's name.
set -euo pipefail
base=$1 model=$2

status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }
expect() {
  if [ "$2" != "$3" ]; then echo "FAIL $1: $2, not $3"; exit 1; fi
  echo "ok   $1"
}

expect "alive" "$(status "$base/health")" 200
expect "ready" "$(status "$base/ready")" 200
expect "a token" "$(status "$base/health_generate")" 200
expect "no such path" "$(status "$base/v1/nothing")" 404
expect "no such method" "$(status -X DELETE "$base/v1/completions")" 405
expect "no JSON" "$(status "$base/v1/completions" -d '{')" 400
body="{\"model\":\"$model\",\"prompt\":\"Once\",\"max_tokens\":3,\"stream\":true}"
stream=$(curl -sN "$base/v1/completions" -H 'Content-Type: application/json' -d "$body")
expect "a stream ends" "$(tail -n 1 <<<"$stream")" "data: [DONE]"
count=$(curl -s "$base/tokenize" -d '{"prompt":"Once upon a time"}' | python3 -c 'import json,sys; print(json.load(sys.stdin)["count"] > 0)')
expect "tokens are counted" "$count" True
large=$(mktemp)
trap 'rm -f "$large"' EXIT
python3 -c 'print("{\"prompt\":\"" + "a" * 10_000_000 + "\"}")' >"$large"
expect "10 MB" "$(status "$base/v1/completions" --data-binary "@$large")" 413
metrics=$(curl -s "$base/metrics")
grep -q '^sglang:num_running_reqs{' <<<"$metrics"
grep -q '^sglang:time_to_first_token_seconds_count{' <<<"$metrics"
echo "ok   metrics"
