#!/usr/bin/env bash
exec "$(dirname "${BASH_SOURCE[0]}")/tool" org.apache.kafka.tools.AclCommand "$@"
