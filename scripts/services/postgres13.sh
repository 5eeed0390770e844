# shellcheck shell=bash
# The oldest release that semel works with.
release=13.16.0
# shellcheck source=../postgres-release.sh
source "$root/scripts/postgres-release.sh"
