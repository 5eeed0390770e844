# shellcheck shell=bash
# Not AWS: moto, a server that speaks its protocol and keeps queues, topics and buses in memory.
title="Python 3 with venv"
variable=SEMEL_TEST_AWS_URL
programs=(python3:python3-venv)

# A change of the versions means another folder.
venv="$cache/aws-$(cksum <"$root/scripts/aws/requirements.txt" | cut -d ' ' -f 1)"

have_python3() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

fetch() {
  local part="$venv.part.$$"
  [[ ! -d $venv ]] || return 0
  python3 -m venv "$part" &&
    "$part/bin/python" -m pip install --quiet --disable-pip-version-check \
      --requirement "$root/scripts/aws/requirements.txt" &&
    mv --no-target-directory "$part" "$venv"
}

prepare() { server=("$venv/bin/python" -m moto.server -H 127.0.0.1 -p "$port"); }

ready() {
  "$venv/bin/python" -c "
import boto3
boto3.client('sqs', endpoint_url='$(url)', region_name='us-east-1', aws_access_key_id='test',
             aws_secret_access_key='test').list_queues()"
}
url() { say "http://127.0.0.1:$port"; }
