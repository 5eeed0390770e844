# shellcheck shell=bash
# Small helpers for dev and scripts/*.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/semel"

# Debian keeps PostgreSQL's programs out of the PATH, and its RabbitMQ in the PATH switches user.
postgres_bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
PATH="$postgres_bin:/usr/lib/rabbitmq/bin:$PATH:/usr/sbin"

say() { printf '%s\n' "$*"; }
warn() { printf 'WARNING: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

in_ci() { [[ ${CI:-} == true ]]; }

# A file may define have_PROGRAM where being there is not enough (a version, say).
have() {
  if declare -F "have_$1" >/dev/null; then "have_$1"; else command -v "$1" >/dev/null; fi
}

# Of "program:package" entries, those whose program is missing.
missing_of() {
  local entry
  for entry; do have "${entry%%:*}" || say "$entry"; done
}

first_number() { [[ $1 =~ [0-9]+ ]] && say "${BASH_REMATCH[0]}"; }
