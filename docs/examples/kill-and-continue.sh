#!/usr/bin/env bash
# The example batch, killed in the middle and continued: every job has its result once, every tool ran once.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build -q -p cli
data=$(mktemp -d)
batch=(target/debug/sprag --data "$data/store" batch run docs/examples/jobs.jsonl
  --model rehearsal:docs/examples/jobs.rehearsal.json --results "$data/results.jsonl")

echo "== starting 20 jobs"
"${batch[@]}" &
pid=$!
sleep 2
echo "== kill -9 $pid"
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
echo "== results so far: $(wc -l < "$data/results.jsonl")"

echo "== the same command again"
"${batch[@]}"
echo "== results: $(wc -l < "$data/results.jsonl"), of different jobs: $(cut -d'"' -f4 "$data/results.jsonl" | sort -u | wc -l)"
target/debug/sprag --data "$data/store" verify
echo "== everything is in $data"
