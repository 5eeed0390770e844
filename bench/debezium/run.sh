#!/usr/bin/env bash
# semel and Debezium side by side: the same outbox table, the same Kafka, one after the other.
# ./dev bench debezium [EVENTS [SECONDS]]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${SEMEL_TEST_POSTGRES_URL:?eval \"\$(./dev services env)\" first}" "${SEMEL_TEST_KAFKA_BROKERS:?}"

jars="${XDG_CACHE_HOME:-$HOME/.cache}/semel/debezium-$(cksum <"$here/pom.xml" | cut -d ' ' -f 1)"
if [[ ! -d $jars ]]; then
  mvn --batch-mode --quiet -Dstyle.color=never --file "$here/pom.xml" \
    dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars.part.$$"
  mv --no-target-directory "$jars.part.$$" "$jars"
fi
cd "$root"
cargo build --release --package semel-cli --features kafka
export SEMEL_BENCH_JARS=$jars SEMEL_BENCH_PROGRAM=${CARGO_TARGET_DIR:-$root/target}/release/semel
exec "$SEMEL_TEST_PYTHON" "$here/run.py" "$@"
