#!/usr/bin/env bash
# Idempotency keys: the layer in memory, the proxy beside nginx, Redis beside redis-benchmark.
# ./dev bench keys [layer|proxy|redis [ARGS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
source scripts/clients.sh
source scripts/setup.sh

arguments=("${@:2}")

layer() { cargo bench -p semel-http --bench layer; }
redis() { cargo bench -p semel-backends --features redis --bench keys -- "${arguments[@]}"; }
proxy() {
  set_up_for_bench
  cargo bench -p semel-cli --bench proxy -- "${arguments[@]}"
}

case ${1:-all} in
  all) layer && proxy && redis ;;
  layer | proxy | redis) "$1" ;;
  *) die "./dev bench keys [layer|proxy|redis [ARGS]]" ;;
esac
