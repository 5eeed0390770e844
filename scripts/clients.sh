# shellcheck shell=bash
# Clients that we did not write, in Python: tests read back with them what semel sent, or let them call it.

requirements="$root/scripts/clients/requirements.txt"
# A change of the versions means another folder.
clients="$cache/clients-$(cksum <"$requirements" | cut -d ' ' -f 1)"

have_python3() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

install_clients() {
  local part="$clients.part.$$"
  [[ ! -d $clients ]] || return 0
  if ! have_python3; then
    warn "no Python 3 with venv here: tests that read back with Python clients will be SKIPPED"
    return 0
  fi
  python3 -m venv "$part" &&
    "$part/bin/python" -m pip install --quiet --disable-pip-version-check \
      --requirement "$requirements" &&
    # Its programs name the folder that they were installed in.
    sed -i "1s|^#!$part/|#!$clients/|" "$part"/bin/aws* &&
    mv --no-target-directory "$part" "$clients"
}

# Says where they are, unless SEMEL_TEST_PYTHON names a Python that has them already.
client_address() {
  if [[ ! ${SEMEL_TEST_PYTHON:-} && -d $clients ]]; then
    say "SEMEL_TEST_PYTHON=$clients/bin/python"
  fi
}
