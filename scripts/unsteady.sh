# shellcheck shell=bash
# Tests that failed in company, once more alone. The run has failed all the same; but whoever mends it
# knows then whether to look at the test, and the time that it gets, or at what it tests.

few=3 # more than these are no accident

# Runs what failed in a log by a command that takes a target, as cargo calls it, and a test of it.
alone() {
  local log=$1 run=$2 answer entry target name failed
  mapfile -t failed < <(failed_tests <"$log")
  ((${#failed[@]} && ${#failed[@]} <= few)) || return 1
  for entry in "${failed[@]}"; do
    target=${entry%%$'\t'*}
    name=${entry#*$'\t'}
    [[ $name ]] || return 1 # it ended without saying what failed
    say "alone: $name"
    answer=$(RUST_TEST_THREADS=1 "$run" "$target" "$name" 2>&1) || { say "$answer" && return 1; }
    grep --quiet --line-regexp --fixed-strings "test $name ... ok" <<<"$answer" || return 1
    say "$name" >>"$scratch/unsteady"
  done
}

# A target and a test in each line. Cargo tells of a target after its tests.
failed_tests() {
  awk '
    /^test .* \.\.\. FAILED$/ { sub(/^test /, ""); sub(/ \.\.\. FAILED$/, ""); names[++count] = $0 }
    /to rerun pass `/ {
      split($0, parts, "`")
      sub(/-p [^ ]+ */, "", parts[2])
      if (!count) print parts[2] "\t"
      for (n = 1; n <= count; n++) print parts[2] "\t" names[n]
      count = 0
    }
    END { for (n = 1; n <= count; n++) print "\t" names[n] }'
}

print_unsteady() {
  [[ ! -e $scratch/unsteady ]] || sed 's/^/UNSTEADY (failed in company, passed alone): /' "$scratch/unsteady"
}
