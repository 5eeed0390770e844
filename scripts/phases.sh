# shellcheck shell=bash
# Phases: named steps that are timed, and that a signal ends at once with all their children.

: "${SEMEL_PHASES:=}" # a file that outlives this run, where several runs share one table
running_phase=

begin_phases() {
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/semel-dev-XXXXXX")
  SEMEL_PHASES=${SEMEL_PHASES:-$scratch/phases}
  trap end_phases EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

end_phases() {
  local code=$?
  trap '' INT TERM HUP
  stop_running_phase
  clean_up "$code"
  print_phases
  if ((code > 128)); then say "interrupted"; else closing_words; fi
  rm -rf "$scratch"
}

# For commands to redefine.
clean_up() { :; }
closing_words() { :; }

# A process group of its own: bash would otherwise sit out the phase before it answers a signal,
# and cargo's children would outlive cargo.
phase() {
  local name=$1 began=$SECONDS code=0
  shift
  say "==> $name"
  set -m
  "$@" </dev/null &
  running_phase=$!
  set +m
  wait "$running_phase" || code=$?
  running_phase=
  printf '%s\t%d\n' "$name" $((SECONDS - began)) >>"$SEMEL_PHASES"
  return "$code"
}

stop_running_phase() {
  local signal
  [[ $running_phase ]] || return 0
  for signal in TERM KILL; do
    kill -s "$signal" -- "-$running_phase" 2>/dev/null || break
    wait "$running_phase" 2>/dev/null || true
    await_end_of_group "$running_phase"
  done
}

await_end_of_group() {
  local deadline=$((SECONDS + 5))
  while kill -0 -- "-$1" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
}

print_phases() {
  awk -F '\t' '
    { printf "%7d s  %s\n", $2, $1; total += $2 }
    END { printf "%7d s  in all\n", total }' "$SEMEL_PHASES"
}
