# shellcheck shell=bash
title="MariaDB 10.11 or newer"
variable=SEMEL_TEST_MYSQL_URL
programs=(mariadbd:mariadb-server mariadb-install-db:mariadb-server mariadb:mariadb-client)

prepare() {
  local user
  # A server that starts deletes the temporary tables of all that share its folder for them.
  mkdir data tmp
  ((EUID != 0)) || chown mysql data tmp
  user=$(stat --format=%U data)
  TMPDIR="$dir/tmp" mariadb-install-db --no-defaults --datadir="$dir/data" --user="$user" \
    --auth-root-authentication-method=normal
  server=(mariadbd --no-defaults --datadir="$dir/data" --tmpdir="$dir/tmp" --user="$user"
    --bind-address=127.0.0.1 --port="$port"
    --socket=mariadb.sock --pid-file=mariadb.pid
    --max-connections=300 --character-set-server=utf8mb4
    --server-id=1 --log-bin=binlog --binlog-format=ROW --binlog-row-metadata=FULL)
  ! without_sync || server+=(--innodb-flush-log-at-trx-commit=2)
}

ready() {
  mariadb --no-defaults --protocol=tcp --host=127.0.0.1 --port="$port" --user=root \
    --connect-timeout=5 --execute='select 1' test
}
url() { say "mysql://root@127.0.0.1:$port/test"; }
