#!/usr/bin/env bash
# The tests tested: breaks the store and the engine in one place at a time, in a copy of the tree, and says which test
# notices. Ends with 1 if none does, or if what is to be broken is no longer there.
#   tests/mutations.sh [NAME...]
# The copy and its build stay in target/mutations, so that only what a mutation touches is built again.
set -euo pipefail
cd "$(dirname "$0")/.."

copy=$PWD/target/mutations/tree
export CARGO_TARGET_DIR=$PWD/target/mutations/target CARGO_TERM_COLOR=never RUST_BACKTRACE=0
# Counts that differ from the documented ones show that something changed, not that it is wrong: the copy's pages may drift.
export BLESS=1
wanted=" $* "
survivors=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# A suite is what follows `cargo test`. Faults at every operation find what the tests beside them find, and take longest.
store='-p store --lib -- --skip whatever_fails --skip an_open_that_fails'
crash='-p tests --test crash -- images syncs'
engine='-p tests --test crash -- blind instants'

# Makes the copy equal to the tree; the times of what stays equal stay too.
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [[ -f $file ]] && ! cmp -s "$file" "$copy/$file"; then
    mkdir -p "$copy/$(dirname "$file")"
    cp "$file" "$copy/$file"
  fi
done
cd "$copy"

# mutation NAME FILE SUITES OLD NEW [OLD NEW...]: each OLD must stand in FILE exactly once. SUITES are tried in turn, parted
# by semicolons, until one fails.
mutation() {
  local name=$1 file=$2 suites=$3 text original rest
  [[ $wanted == "  " || $wanted == *" $name "* ]] || return 0
  shift 3
  original=$(cat "$file"; printf x)
  original=${original%x}
  text=$original
  while [[ $# -gt 0 ]]; do
    rest=${text#*"$1"}
    if [[ $rest == "$text" || $rest == *"$1"* ]]; then
      echo "tests/mutations.sh: in $file, what $name breaks does not stand exactly once:" >&2
      echo "$1" >&2
      exit 1
    fi
    text=${text%%"$1"*}$2$rest
    shift 2
  done
  printf '%s' "$text" >"$file"
  local found='' suite
  IFS=';' read -ra suites <<<"$suites"
  for suite in "${suites[@]}"; do
    found=$(noticed "$suite")
    [[ -z $found ]] || break
  done
  printf '%s' "$original" >"$file"
  [[ $found != 'does not build' ]] || { cat "$log" >&2; exit 1; }
  [[ -n $found ]] || survivors+=("$name")
  printf '| %s | %s |\n' "$name" "${found:-**nothing**}"
}

# The first tests of a suite that fail, or how else it ends badly; nothing if it passes.
noticed() {
  local status=0
  # shellcheck disable=SC2086
  cargo test -q --no-run ${1%% -- *} >"$log" 2>&1 || { echo 'does not build'; return; }
  # shellcheck disable=SC2086
  timeout 600 cargo test $1 >"$log" 2>&1 || status=$?
  [[ $status -ne 124 ]] || { echo 'a suite that does not end'; return; }
  [[ $status -ne 0 ]] || return 0
  local failed
  failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/`\1`/p' "$log")
  local count
  count=$(wc -l <<<"$failed")
  head -n 2 <<<"${failed:-a suite that ends with $status}" | paste -sd, | sed 's/,/, /' | tr -d '\n'
  [[ $count -le 2 ]] || printf ' and %d more' $((count - 2))
}

# What fails without being broken notices nothing.
for suite in "$store" "$crash" "$engine"; do
  found=$(noticed "$suite")
  [[ -z $found ]] || { echo "tests/mutations.sh: the tree itself fails: $found" >&2; exit 1; }
done

echo '| broken | noticed by |'
echo '|---|---|'

mutation 'no barrier' store/src/tail.rs "$store" \
  '        self.disk
            .sync(&open.file, Depth::Data)
            .map_err(|failure| error("sync", &open.file.path, &failure))?;
' ''
mutation 'a barrier after its answers' store/src/writer.rs "$store" \
  '        if barrier && let Err(error) = self.tail.sync() {
            return Err((error, waiting(durable, refused)));
        }
        answer(durable);' \
  '        answer(durable);
        if barrier && let Err(error) = self.tail.sync() {
            return Err((error, waiting(Vec::new(), refused)));
        }'
mutation 'a failed barrier tried again' store/src/tail.rs "$store" \
  '            .sync(&open.file, Depth::Data)
' \
  '            .sync(&open.file, Depth::Data)
            .or_else(|_| self.disk.sync(&open.file, Depth::Data))
'
mutation 'a segment without a durable name' store/src/segment.rs "$store;$crash" \
  '        .and_then(|()| sync_dir(disk, dir));
    if let Err' \
  ';
    if let Err'
mutation 'an accepted tail that is not synced' store/src/recover.rs "$store;$crash" \
  '|file| disk.sync(file, Depth::All))?;' '|_| Ok(()))?;'
mutation 'no sync above a new store' store/src/journal.rs "$store;$crash" \
  '            sync_ancestors(&*disk, dir)?;
' ''
mutation 'an ignored checksum' store/src/frame.rs "$store" \
  'if checksum(segment, offset, content) != crc {' 'if checksum(segment, offset, content) != crc && false {'
mutation 'damage taken for a torn tail' store/src/recover.rs "$store" \
  'if self.named <= (number, from) {' 'if self.named <= (number, from) || true {'
mutation 'appending to a foreign segment' store/src/tail.rs "$store" \
  '        Self {
            disk,
            catalog,' \
  '        let foreign = disk.open(&segment::path(preparer.dir(), end.segment), crate::fs::Mode::Write).ok();
        let foreign = foreign.map(|file| Open { file, number: end.segment, size: u64::MAX });
        Self {
            disk,
            catalog,' \
  'open: None,' 'open: foreign,'
mutation 'no epoch check' store/src/link.rs "$store" \
  'if commit.epoch.0 < self.epoch {' 'if commit.epoch.0 < self.epoch && false {'
mutation 'sled before the barrier' store/src/writer.rs "$store;$crash" \
  'let durable = self.tail.acked().position;
        if' \
  'let durable = self.tail.written().position;
        if'
mutation 'sled trusted after another boot' store/src/state.rs "$store" \
  'Some(Mark::Open(boot)) if boot == boot_id => None,' 'Some(Mark::Open(_)) => None,'
mutation 'a mark that stays closed' store/src/state.rs "$store;$crash" \
  '                place.write_mark(Mark::Open(boot_id))?;
                open_sled(&place, options.cache_bytes, read_applied)' \
  '                open_sled(&place, options.cache_bytes, read_applied)'
mutation 'an effect before its commit' engine/src/driver/commit.rs "$engine" \
  'let is_durable = health.is_some() || needs_barrier(&self.effects, after);' \
  'let is_durable = health.is_some() || needs_barrier(&self.effects, after) && false;'
mutation 'a run without its settings' engine/src/accept.rs "$engine" \
  'let mut requires = vec![shared.configs.keep(shared, settings).await?];' 'let mut requires = Vec::new();'
mutation 'a run by the settings in force' engine/src/configs.rs '-p engine --lib configs' \
  'hash.filter(|hash| *hash != in_force.hash)' 'hash.filter(|_| false)'
mutation 'a tool without a barrier before it' model/src/effect.rs "$engine" \
  'Self::CallModel { .. }
            | Self::RunTool { .. }' \
  'Self::CallModel { .. }' \
  'Self::AwaitLane
            | Self::Poll' \
  'Self::AwaitLane
            | Self::RunTool { .. }
            | Self::Poll'

if [[ ${#survivors[@]} -gt 0 ]]; then
  echo "nothing notices: ${survivors[*]}" >&2
  exit 1
fi
