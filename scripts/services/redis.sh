# shellcheck shell=bash
title="Redis 7 or newer"
variable=SEMEL_TEST_REDIS_URL
programs=(redis-server:redis-server redis-cli:redis-tools)

prepare() {
  mkdir data
  server=(redis-server --bind 127.0.0.1 --port "$port" --dir data --save "" --appendonly yes)
  ! without_sync || server+=(--appendfsync no) # a sync that takes long holds back all writes
}

ready() { [[ $(redis-cli -u "$(url)" ping) == PONG ]]; }
url() { say "redis://127.0.0.1:$port"; }
