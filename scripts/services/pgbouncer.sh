# shellcheck shell=bash
# A pooler in front of the PostgreSQL server: nothing survives a transaction, on purpose.
title="PgBouncer, and PostgreSQL behind it"
variable=SEMEL_TEST_PGBOUNCER_URL
programs=(pgbouncer:pgbouncer psql:postgresql-client)
[[ ${SEMEL_TEST_POSTGRES_URL:-} ]] || programs+=(postgres:postgresql)

# In a set of servers PostgreSQL starts at the same time.
server_behind() {
  local deadline=$((SECONDS + patience)) address=$state/postgres/address
  if [[ ${SEMEL_TEST_POSTGRES_URL:-} ]]; then
    say "$SEMEL_TEST_POSTGRES_URL"
  else
    until [[ -s $address ]]; do
      ((SECONDS < deadline)) || return 1
      sleep 0.2
    done
    cat "$address"
  fi
}

prepare() {
  local behind user password host upstream_port
  run_as postgres
  behind=$(server_behind)
  [[ $behind =~ ^postgres(ql)?://([^:@/]+)(:([^@]*))?@([^:/?]+)(:([0-9]+))? ]]
  user=${BASH_REMATCH[2]} password=${BASH_REMATCH[4]} host=${BASH_REMATCH[5]}
  upstream_port=${BASH_REMATCH[7]:-5432}
  cat >pgbouncer.ini <<INI
[databases]
* = host=$host port=$upstream_port user=$user${password:+ password=$password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
default_pool_size = 8
server_round_robin = 1
server_idle_timeout = 5
server_lifetime = 60
log_connections = 0
log_disconnections = 0
INI
  chmod 644 pgbouncer.ini
  server=("${as[@]}" pgbouncer pgbouncer.ini)
}

ready() { PGCONNECT_TIMEOUT=5 psql --no-psqlrc --quiet --command='select 1' "$(url)"; }
url() { say "postgres://postgres@127.0.0.1:$port/postgres"; }
