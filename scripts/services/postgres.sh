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
  server=("${as[@]}" postgres -D data -p "$port"
    -c listen_addresses=127.0.0.1
    -c unix_socket_directories=
    -c max_connections=300
    -c wal_level=logical
    -c max_replication_slots=50
    -c max_wal_senders=50
    -c max_prepared_transactions=50)
}

ready() { PGCONNECT_TIMEOUT=5 psql --no-psqlrc --quiet --command='select 1' "$(url)"; }
url() { say "postgres://postgres@127.0.0.1:$port/postgres"; }
