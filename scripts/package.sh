# shellcheck shell=bash
# The Debian package: the program, what it prints about itself, its unit and its user; and the image.

cargo_deb_version=3.8.0
cargo_deb="$cache/cargo-deb-$cargo_deb_version/bin/cargo-deb"
release="${CARGO_TARGET_DIR:-target}/dist"
image=semel

# OpenSSL is that of the system, which is kept safe without us, and makes the program smaller.
build_release() {
  OPENSSL_NO_VENDOR=1 cargo build --profile dist --locked --package semel-cli --features full
}

print_pages() {
  local pages="$release/package"
  mkdir -p "$pages"
  "$release/semel" man >"$pages/semel.1"
  "$release/semel" completions bash >"$pages/semel.bash"
  "$release/semel" completions fish >"$pages/semel.fish"
  "$release/semel" completions zsh >"$pages/_semel"
}

make_package() {
  print_pages
  "$cargo_deb" --package semel-cli --profile dist --no-build --locked
}

# The first that is there and has its service.
container_engine() {
  local engine
  for engine in docker podman; do
    if "$engine" info >/dev/null 2>&1; then
      say "$engine"
      return
    fi
  done
  return 1
}
