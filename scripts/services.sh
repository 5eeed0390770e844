# shellcheck shell=bash
# All private servers together. A state folder holds one set of them; `./dev services up` has the
# folder of this checkout, and each `./dev test` one of its own for what is not up already.

shared_state="$(realpath "${TMPDIR:-/tmp}")/semel-services-$(cksum <<<"$root" | cut -d ' ' -f 1)"

services() { basename --multiple --suffix=.sh "$root"/scripts/services/*.sh; }
server() { "$root/scripts/server" "$@"; }

each_server() {
  local name
  for name in $(services); do server "$name" "$@"; done
}

start_services() {
  local state=$1 name job jobs=() failed=0
  mkdir -p "$state"
  [[ -O $state ]] || die "$state belongs to somebody else"
  for name in $(services); do
    server "$name" start "$state" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  return "$failed"
}

stop_services() {
  local state=$1 name
  [[ -d $state ]] || return 0
  for name in $(services); do server "$name" stop "$state" & done
  wait
  rm -rf "$state"
}

print_addresses() {
  local lines
  lines=$(each_server address "$1" && client_address)
  [[ $lines ]] || die "no server is up, ./dev services up starts them"
  say "export ${lines//$'\n'/$'\n'export }"
}

# Exports the addresses, except where a variable is set already.
adopt_services() {
  local variable address
  while IFS='=' read -r variable address; do
    [[ ${!variable:-} ]] || export "$variable=$address"
  done < <(each_server address "$1" && client_address)
}

# The folder of a test run ends in the run's process id; one that was killed could not clean up.
stop_abandoned_services() {
  local state
  for state in "$shared_state"-*; do
    kill -0 "${state##*-}" 2>/dev/null || stop_services "$state"
  done
}
