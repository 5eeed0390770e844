# shellcheck shell=bash
# A release whose slots follow to standbys.
release=17.6.0
# shellcheck source=../postgres-release.sh
source "$root/scripts/postgres-release.sh"
