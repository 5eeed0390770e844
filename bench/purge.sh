#!/usr/bin/env bash
# What deleting expired keys costs those that are in use, on PostgreSQL: the 99th percentile of a first
# request (claim and completion, the statements of the store), while very many expired results lie there
# and while they are deleted as `semel proxy` does it, 1,000 every 100 ms. Both in the same run.
# ./dev bench keys purge [RESULTS] [CALLERS] [SECONDS]; the server is that of SEMEL_TEST_POSTGRES_URL.
set -euo pipefail
results=${1:-1000000} callers=${2:-8} seconds=${3:-10}
server=${SEMEL_TEST_POSTGRES_URL:?set it: ./dev services env}
name=bench_purge_$$
folder=$(mktemp -d)
database=${server%/*}/$name

finish() {
  rm -rf "$folder"
  psql --quiet "$server" --command="drop database if exists $name"
}
trap finish EXIT

psql --quiet "$server" --command="create database $name"
{
  echo 'create schema semel;'
  cat crates/backends/src/postgres/migrations/0001_tables.sql crates/backends/src/postgres/migrations/0003_claimants.sql
} | PGOPTIONS='-c client_min_messages=warning' psql --quiet --output=/dev/null "$database"
psql --quiet "$database" <<END
insert into semel.keys (key, fingerprint, token, attempt, version, body, until)
select sha256(n::text::bytea), sha256(n::text::bytea), n, 1, 1, repeat('x', 300)::bytea, now() - interval '1 hour'
from generate_series(1, $results) n;
vacuum analyze semel.keys;
checkpoint;
END

statement() { # NAME: the text of a constant of the store, with pgbench's variables for its parameters
  sed -n "/^const $1: &str = \"/,/\";\$/p" crates/backends/src/postgres/keys.rs | sed '1d; s/";$//'
}
{
  echo '\set n random(1, 9000000000000000000)'
  statement CLAIM | sed "s/\$1/sha256(:n::text::bytea)/g; s/\$2/sha256('request'::bytea)/g; s/\$3/30000000/g; s/\$4/gen_random_uuid()/g"
  echo ';'
  echo "update semel.keys set version = 1, body = repeat('x', 300)::bytea, until = clock_timestamp() + interval '1 day'"
  echo "where key = sha256(:n::text::bytea) and body is null and not released and until > clock_timestamp();"
} >"$folder/request.sql"
# shellcheck disable=SC2016
forget=$(statement FORGET | sed 's/\$1/1000/')

percentile() { # LABEL: microseconds that 99 of 100 requests took at most
  pgbench --no-vacuum --client="$callers" --jobs=2 --time="$seconds" --file="$folder/request.sql" \
    --log --log-prefix="$folder/$1" "$database" >"$folder/$1.out" 2>&1 || cat "$folder/$1.out" >&2
  cat "$folder/$1".[0-9]* | awk '{print $3}' | sort --numeric-sort |
    awk '{all[NR] = $1} END {print all[int(NR * 0.99)]}'
}

quiet=$(percentile quiet)
while psql --quiet "$database" --command="$forget" >/dev/null 2>&1; do sleep 0.1; done &
purging=$!
busy=$(percentile busy)
kill "$purging"
wait "$purging" 2>/dev/null || true
left=$(psql --quiet --tuples-only --no-align "$database" --command="select count(*) from semel.keys where until < now()")
echo "p99 of $callers callers: $quiet µs with $results expired results lying there,"
echo "$busy µs while $((results - left)) of them were deleted in $seconds s: $(awk "BEGIN {printf \"%.2f\", $busy / $quiet}") times as long"
