# shellcheck shell=bash
# Not AWS: moto, a server that speaks its protocol and keeps queues, topics and buses in memory.
title="Python 3 with venv"
variable=SEMEL_TEST_AWS_URL
programs=(python3:python3-venv)

# shellcheck source=../clients.sh
source "$root/scripts/clients.sh"

fetch() { install_clients; }

prepare() { server=("$clients/bin/python" -m moto.server -H 127.0.0.1 -p "$port"); }

ready() {
  "$clients/bin/python" -c "
import boto3
boto3.client('sqs', endpoint_url='$(url)', region_name='us-east-1', aws_access_key_id='test',
             aws_secret_access_key='test').list_queues()"
}
url() { say "http://127.0.0.1:$port"; }
