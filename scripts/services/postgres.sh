# shellcheck shell=bash
title="PostgreSQL 15 or newer"
variable=SEMEL_TEST_POSTGRES_URL
programs=(postgres:postgresql initdb:postgresql psql:postgresql-client)
stop_signal=INT # TERM would wait for the clients to leave

have_postgres() { command -v postgres >/dev/null && (($(first_number "$(postgres --version)") >= 15)); }

prepare() {
  run_as postgres
  mkdir data
  ((EUID != 0)) || chown postgres data
  "${as[@]}" initdb --pgdata=data --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync
  # In the file, so that a test can say otherwise by ALTER SYSTEM.
  cat >>data/postgresql.conf <<'END'
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
wal_level = logical
max_replication_slots = 50
max_wal_senders = 50
max_prepared_transactions = 50
END
  if without_sync; then
    say "fsync = off"
  else # as the manual advises: a quarter of the memory
    say "shared_buffers = $(awk '/^MemTotal/ { print int($2 / 4) }' /proc/meminfo)kB"
  fi >>data/postgresql.conf
  server=("${as[@]}" postgres -D data -p "$port")
}

ready() { PGCONNECT_TIMEOUT=5 psql --no-psqlrc --quiet --command='select 1' "$(url)"; }
url() { say "postgres://postgres@127.0.0.1:$port/postgres"; }
