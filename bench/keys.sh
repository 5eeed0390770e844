#!/usr/bin/env bash
# Idempotency keys: the layer in memory, the proxy beside nginx, Redis beside redis-benchmark.
# ./dev bench keys [layer|proxy|redis [ARGS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
source scripts/clients.sh
source scripts/phases.sh
source scripts/setup.sh

layer() { cargo bench -p semel-http --bench layer -- "$@"; }
redis() { cargo bench -p semel-backends --features redis --bench keys -- "$@"; }
proxy() {
  begin_phases
  missing_of nginx:nginx-light\|nginx | install_programs
  cargo bench -p semel-cli --bench proxy -- "$@"
}

case ${1:-all} in
  all) layer && proxy && redis ;;
  layer | proxy | redis) "$@" ;;
  *) die "./dev bench keys [layer|proxy|redis [ARGS]]" ;;
esac
