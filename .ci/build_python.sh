#!/usr/bin/env bash
# For a distribution whose own Python is too old (Debian 12, Ubuntu 22.04): gets one into the directory $1.
# First uv's ready-made build, which needs a network beyond package registries; else the newer suite's source, built here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

prefix=$1
download_timeout_sec=180
headers=(gcc make libc6-dev libssl-dev zlib1g-dev libffi-dev libsqlite3-dev libbz2-dev liblzma-dev libncurses-dev libreadline-dev)

can_apt || die 'building Python takes root and apt'
apt_update
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ready_made() {
  apt_install python3 python3-venv ca-certificates || return 1
  python3 -m venv "$work/venv" || return 1
  "$work/venv/bin/pip" install -q --disable-pip-version-check uv || return 1
  timeout "$download_timeout_sec" "$work/venv/bin/uv" python install --install-dir "$prefix/uv" 3.12 || return 1
  mkdir -p "$prefix/bin"
  ln -sf "$prefix"/uv/cpython-3.12*/bin/python3.12 "$prefix/bin/python3"
}

from_source() {
  local source
  log 'building Python from source: a few minutes'
  apt_install "${headers[@]}" dpkg-dev xz-utils
  apt_newer_suite "$work" deb-src || die 'this machine names no mirror with a newer Python'
  source=$(apt-cache "${newer_suite[@]}" showsrc python3-defaults | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/python\1/p')
  (cd "$work" && apt "${newer_suite[@]}" source --download-only "${source%%$'\n'*}")
  mkdir "$work/source"
  tar -xf "$work"/python3*.orig.tar.?z -C "$work/source" --strip-components=1
  (
    cd "$work/source"
    ./configure --quiet --prefix="$prefix" --with-ensurepip=install
    make --silent -j "$(nproc)"
    make --silent install
  ) >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; die 'Python did not build'; }
}

log "getting a Python into $prefix"
if ! ready_made 2>"$work/why"; then
  log "no ready-made Python is available: $(tail -n 1 "$work/why")"
  from_source
fi
