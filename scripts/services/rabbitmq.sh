# shellcheck shell=bash
title="RabbitMQ 3.10 or newer"
variable=SEMEL_TEST_RABBITMQ_URL
programs=(rabbitmq-server:rabbitmq-server epmd:erlang-base)

# Erlang's port mapper would detach itself and stay for good: one of our own, in the server's
# session, ends with it.
#
# SEMEL_RABBITMQ_JOINS is the folder of a server whose cluster it joins. They have one port mapper, the
# first one's, and one secret.
prepare() {
  local mapper distribution node=semel-$port@localhost
  mapper=$(free_port)
  distribution=$(free_port)
  printf '%s\n' "listeners.tcp.1 = 127.0.0.1:$port" "log.file = false" "log.console = true" \
    "log.console.level = warning" >rabbitmq.conf
  if [[ ${SEMEL_RABBITMQ_JOINS:-} ]]; then
    mapper=$(<"$SEMEL_RABBITMQ_JOINS/mapper_port")
    cp "$SEMEL_RABBITMQ_JOINS/.erlang.cookie" .
    printf 'cluster_formation.classic_config.nodes.%s = %s\n' \
      1 "$(<"$SEMEL_RABBITMQ_JOINS/node_name")" 2 "$node" >>rabbitmq.conf
  fi
  say "$mapper" >mapper_port
  say "$node" >node_name
  : >plugins
  server=(env
    HOME="$dir"
    ERL_EPMD_ADDRESS=127.0.0.1
    ERL_EPMD_PORT="$mapper"
    RABBITMQ_NODENAME="$node"
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
