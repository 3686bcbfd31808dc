#!/usr/bin/env bash
# Makes .venv and installs the pinned packages and this package, editable. Safe to run again.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

pins=.requirements/all.txt
venv_python=.venv/bin/python

# Debian and Ubuntu ship venv apart from python3.
make_venv() {
  local python=$1 version
  "$python" -m venv --clear .venv >/dev/null 2>&1 && return 0
  version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
  can_apt || die "$python cannot make a virtual environment. Install it as root: apt-get install python$version-venv"
  log "installing python$version-venv"
  apt_install "python$version-venv" ca-certificates
  "$python" -m venv --clear .venv
}

if ! "$venv_python" -m pip --version >/dev/null 2>&1; then
  python=$("$here/python.sh")
  log "making .venv with $python"
  make_venv "$python"
fi
log 'installing uv'
"$venv_python" -m pip install -q --disable-pip-version-check "$(grep '^uv==' "$pins")"
log 'installing the pinned packages (a few GB the first time)'
# Every package is pinned, and some pins override what other packages declare: dependencies must not be resolved again.
if ! .venv/bin/uv pip install -q --python "$venv_python" --no-deps -r "$pins"; then
  log 'uv could not install them; trying pip, which may know another package index'
  "$venv_python" -m pip install -q --disable-pip-version-check --no-deps -r "$pins"
fi
"$venv_python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --editable .
"$venv_python" -m harbor_gym --version >&2
