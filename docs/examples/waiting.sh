#!/usr/bin/env bash
# What a run takes in memory while it waits for its model: resident memory of a batch of so many such runs, once all are in
# their call, for 1,000 and for 10,000 of them; the difference is what each further run takes.
#   docs/examples/waiting.sh [SPRAG]        the program [default: target/release/sprag]
set -euo pipefail
cd "$(dirname "$0")/../.."
sprag=$(realpath "${1:-target/release/sprag}")
place=$(mktemp -d)
batch=
trap 'kill -KILL "$batch" 2>/dev/null; rm -rf "$place"' EXIT

# Resident kB of a batch of $1 runs that all wait.
resident() {
  rm -rf "$place/data"
  printf '{"turns":[{"text":"late","delay_ms":600000}]}' >"$place/late.json"
  seq 1 "$1" | sed 's/.*/{"custom_id":"job-&","prompt":"wait"}/' >"$place/jobs.jsonl"
  "$sprag" --data "$place/data" batch run "$place/jobs.jsonl" --model "rehearsal:$place/late.json" \
    --concurrency "$1" >"$place/out" 2>"$place/err" &
  batch=$!
  for _ in $(seq 1 240); do
    ! tail -n 1 "$place/err" | grep -q " $1 running" || break
    sleep 0.5
  done
  # What was needed to start them is given back meanwhile.
  sleep 8
  awk '/^VmRSS/ { print $2 }' "/proc/$batch/status"
  kill -KILL "$batch"
  wait "$batch" 2>/dev/null || true
}

few=$(resident 1000)
many=$(resident 10000)
echo "1,000 waiting runs: $few kB; 10,000: $many kB; each further run: $(((many - few) * 1024 / 9000)) bytes"
