# shellcheck shell=bash
title="Mosquitto 2 or newer"
variable=SEMEL_TEST_MQTT_URL
programs=(mosquitto:mosquitto mosquitto_pub:mosquitto-clients mosquitto_sub:mosquitto-clients)

prepare() {
  printf '%s\n' "listener $port 127.0.0.1" "allow_anonymous true" "max_queued_messages 0" >mosquitto.conf
  server=(mosquitto -c mosquitto.conf)
}

# A retained message there and back.
ready() {
  local client=(-h 127.0.0.1 -p "$port" -q 1 -t semel/ready)
  mosquitto_pub "${client[@]}" --retain --message yes &&
    [[ $(mosquitto_sub "${client[@]}" -C 1 -W 5) == yes ]] &&
    mosquitto_pub "${client[@]}" --retain --null-message
}
url() { say "mqtt://127.0.0.1:$port"; }
