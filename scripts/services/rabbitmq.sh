# shellcheck shell=bash
title="RabbitMQ 3.10 or newer"
variable=SEMEL_TEST_RABBITMQ_URL
programs=(rabbitmq-server:rabbitmq-server epmd:erlang-base)

# Erlang's port mapper would detach itself and stay for good: one of our own, in the server's
# session, ends with it.
prepare() {
  local mapper distribution
  mapper=$(free_port)
  distribution=$(free_port)
  printf '%s\n' "listeners.tcp.1 = 127.0.0.1:$port" "log.file = false" "log.console = true" \
    "log.console.level = warning" >rabbitmq.conf
  : >plugins
  server=(env
    HOME="$dir"
    ERL_EPMD_ADDRESS=127.0.0.1
    ERL_EPMD_PORT="$mapper"
    RABBITMQ_NODENAME="semel-$port@localhost"
    RABBITMQ_DIST_PORT="$distribution"
    RABBITMQ_CONF_ENV_FILE=/dev/null
    RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf"
    RABBITMQ_ENABLED_PLUGINS_FILE="$dir/plugins"
    RABBITMQ_MNESIA_BASE="$dir/data"
    RABBITMQ_LOG_BASE="$dir/logs"
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
    sh -c 'epmd & exec rabbitmq-server "$@"' server)
}

# AMQP's greeting, answered by the frame Connection.Start (type 1, channel 0, class 10, method 10).
ready() {
  local connection answer
  exec {connection}<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf 'AMQP\0\0\11\1' >&"$connection"
  answer=$(timeout 5 head -c 11 <&"$connection" | od -An -v -tx1 | tr -d ' \n')
  exec {connection}>&-
  [[ $answer == 010000????????000a000a ]]
}
url() { say "amqp://guest:guest@127.0.0.1:$port/%2f"; }
