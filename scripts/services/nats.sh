# shellcheck shell=bash
title="NATS server 2.9 or newer"
variable=SEMEL_TEST_NATS_URL
programs=(nats-server:nats-server)

prepare() {
  mkdir data
  server=(nats-server --addr 127.0.0.1 --port "$port" --jetstream --store_dir data)
}

# There is no packaged client; the protocol is text. Asks JetStream for its state.
ready() {
  local connection line
  exec {connection}<>"/dev/tcp/127.0.0.1/$port" || return 1
  # shellcheck disable=SC2016
  printf '%s\r\n' 'CONNECT {"verbose":false}' 'SUB reply 1' 'PUB $JS.API.INFO reply 0' '' >&"$connection"
  while read -r -t 5 -u "$connection" line && [[ $line != *account_info_response* ]]; do :; done
  exec {connection}>&-
  [[ $line == *account_info_response* && $line != *'"error"'* ]]
}
url() { say "nats://127.0.0.1:$port"; }
