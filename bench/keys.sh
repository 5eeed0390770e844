#!/usr/bin/env bash
# Idempotency keys: the layer in memory, the proxy beside nginx, Redis beside redis-benchmark, and
# what deleting expired keys costs on PostgreSQL.
# ./dev bench keys [layer|proxy|redis|purge [ARGS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
source scripts/clients.sh
source scripts/setup.sh

arguments=("${@:2}")

layer() { cargo bench -p semel-http --bench layer --bench allocations -- "${arguments[@]}"; }
redis() { cargo bench -p semel-backends --features redis --bench keys -- "${arguments[@]}"; }
purge() { bench/purge.sh "${arguments[@]}"; }
proxy() {
  set_up_for_bench
  cargo bench -p semel-cli --bench proxy -- "${arguments[@]}"
}

case ${1:-all} in
  all) layer && proxy && redis && purge ;;
  layer | proxy | redis | purge) "$1" ;;
  *) die "./dev bench keys [layer|proxy|redis|purge [ARGS]]" ;;
esac
