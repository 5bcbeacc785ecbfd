#!/usr/bin/env bash
# The example batch, killed in the middle and continued: every job has its result once, every tool ran once.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build -q -p cli
data=$(mktemp -d)
results=$data/results.jsonl
batch=(target/debug/sprag --data "$data/store" batch run docs/examples/jobs.jsonl
  --model rehearsal:docs/examples/jobs.rehearsal.json --results "$results")

# Lines of the results so far.
lines() { if [ -e "$results" ]; then wc -l < "$results"; else echo 0; fi; }

echo "== starting 20 jobs"
"${batch[@]}" &
pid=$!
# Until a few results are there, for a minute at most.
for _ in $(seq 1200); do
  if [ "$(lines)" -ge 3 ]; then break; fi
  sleep 0.05
done
echo "== kill -9 $pid"
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
echo "== results so far: $(lines)"

echo "== the same command again"
"${batch[@]}"
echo "== results: $(lines), of different jobs: $(cut -d'"' -f4 "$results" | sort -u | wc -l)"
calls=$(grep -o '"tool_calls":[0-9]*' "$results" | cut -d: -f2 | paste -sd+)
echo "== tools started: $((calls)), by 20 jobs that have 4 calls each"
target/debug/sprag --data "$data/store" verify
echo "== everything is in $data"
