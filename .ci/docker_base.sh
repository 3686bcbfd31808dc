#!/usr/bin/env bash
# Makes sure that Docker has the base image that the tests and shipped tasks build on:
# as it is, else pulled, else made of Debian packages (which the last line says).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

image=${1:-debian:bookworm-slim}
pull_timeout_sec=120

if docker image inspect "$image" >/dev/null 2>&1; then exit 0; fi
log "pulling $image"
if timeout "$pull_timeout_sec" docker pull -q "$image" >&2; then exit 0; fi
log "no registry gives $image: making a base of Debian packages"
"$here/../.venv/bin/python" "$here/bases.py" --docker "$image" >&2
