# shellcheck shell=bash
# PostgreSQL of another release than the installed one, as it is in Maven Central: $release.
# shellcheck source=services/postgres.sh
source "$root/scripts/services/postgres.sh"
major=${release%%.*}
title="PostgreSQL $major, which Maven downloads"
variable=SEMEL_TEST_POSTGRES${major}_URL
programs=(psql:postgresql-client mvn:maven xz:xz-utils)
unset -f have_postgres

fetched="$cache/postgres-$release"

fetch() {
  local part="$fetched.part.$$" kind=amd64
  [[ ! -d $fetched ]] || return 0
  [[ $(uname -m) != aarch64 ]] || kind=arm64v8
  # Maven notes in the folder where it is run what it has unpacked.
  mkdir -p "$part.maven" &&
    (cd "$part.maven" && mvn --batch-mode --quiet -Dstyle.color=never \
      org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack -DoutputDirectory="$part" \
      -Dartifact="io.zonky.test.postgres:embedded-postgres-binaries-linux-$kind:$release") &&
    rm -r "$part.maven" &&
    tar --extract --xz --directory="$part" --file="$(printf '%s' "$part"/*.txz)" &&
    rm -r "$part"/*.txz "$part/META-INF" &&
    mv --no-target-directory "$part" "$fetched"
}

# Its user may not look into the cache.
eval "prepare_installed() $(declare -f prepare | tail -n +2)"
prepare() {
  cp --recursive "$fetched" programs
  PATH="$dir/programs/bin:$PATH"
  prepare_installed
}
