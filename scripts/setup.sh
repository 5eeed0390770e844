# shellcheck shell=bash
# Installs what is missing: with apt-get for root on Debian and its kin, elsewhere it tells what to
# install. A server that cannot be had fails nothing here: its tests are skipped, loudly.

cargo_deny_version=0.20.2
cargo_deny="$cache/cargo-deny-$cargo_deny_version/bin/cargo-deny"

# "program:Debian package", with | between packages of which the first that exists will do
build_programs=(cc:build-essential cmake:cmake make:make perl:perl pgrep:procps)
# Verifies signatures and reads brokers with code we did not write.
reading_programs=("python3:python3-venv")
# Lets a program believe in another time of day.
clock_programs=(faketime:faketime)
# The examples in other languages.
example_programs=(curl:curl node:nodejs npm:npm)
browser_programs=(
  "chromium:chromium|chromium-browser"
  "chromedriver:chromium-driver|chromium-chromedriver"
)

# To build OpenSSL takes minutes: where everything is built from nothing, that of the system will do.
! in_ci || build_programs+=(pkg-config:pkgconf openssl_headers:libssl-dev)
have_openssl_headers() { pkg-config --exists openssl 2>/dev/null; }
use_openssl_of_the_system() {
  ! in_ci || ! have_openssl_headers || export OPENSSL_NO_VENDOR=1
}

# OpenSSL's build needs more of Perl than every system has.
have_perl() { perl -MFile::Compare -MFindBin -MIPC::Cmd -e 1 2>/dev/null; }

set_up_for_check() {
  missing_of "${build_programs[@]}" shellcheck:shellcheck | install_programs
  install_cargo_tool cargo-deny "$cargo_deny_version" "$cargo_deny"
}

set_up_for_release() {
  missing_of "${build_programs[@]}" pkg-config:pkgconf openssl_headers:libssl-dev "$@" | install_programs
}

set_up_for_package() {
  set_up_for_release dpkg-shlibdeps:dpkg-dev
  install_cargo_tool cargo-deb "$cargo_deb_version" "$cargo_deb"
}

set_up_for_tests() {
  {
    missing_of "${build_programs[@]}" "${reading_programs[@]}" "${browser_programs[@]}" \
      "${clock_programs[@]}" "${example_programs[@]}"
    each_server lacks
  } | install_programs
  install_clients || warn "the Python clients cannot be had"
  each_server set_up
}

# What the proxy is measured against.
set_up_for_bench() {
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/semel-dev-XXXXXX")
  missing_of nginx:nginx | install_programs
  rm -rf "$scratch"
}

set_up_servers() {
  { missing_of "${reading_programs[@]}" && each_server lacks; } | install_programs
  install_clients || warn "the Python clients cannot be had"
  each_server set_up
}

install_programs() {
  local entry missing
  mapfile -t missing
  if ((!${#missing[@]})); then
    return
  elif ((EUID == 0)) && command -v apt-get >/dev/null; then
    apt_install "${missing[@]}" || warn "apt-get failed, see above"
  else
    for entry in "${missing[@]}"; do
      warn "please install ${entry%%:*} (Debian package: ${entry#*:})"
    done
  fi
}

apt_install() {
  local entry packages
  apt-get update --quiet=2 || return
  mapfile -t packages < <(for entry; do first_package "${entry#*:}"; done | sort --unique)
  say "installing ${packages[*]}"
  quietly without_starting_services env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --quiet --no-install-recommends -o DPkg::Lock::Timeout=120 "${packages[@]}"
}

# Shows the output only if the command fails.
quietly() {
  "$@" >"$scratch/output" 2>&1 || { tail -n 30 "$scratch/output" && return 1; }
}

first_package() {
  local package
  for package in ${1//|/ }; do
    if [[ $(apt-cache madison "$package") ]]; then
      say "$package"
      return
    fi
  done
}

# Debian starts a packaged service as soon as it is installed, unless this file forbids it.
without_starting_services() (
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
  fi
  "$@"
)

# Without optimisation and debug information: it is built once and runs for a second.
install_cargo_tool() {
  local name=$1 version=$2 folder=${3%/bin/*}
  [[ ! -x $3 ]] || return 0
  say "building $name $version, once, about a minute"
  CARGO_TARGET_DIR="$folder.build" CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 \
    cargo install --quiet --locked --debug --root "$folder" --version "$version" "$name"
  rm -rf "$folder.build"
}
