#!/usr/bin/env bash
# Runs the tests. Docker's run where Docker is there or can be had; otherwise they are skipped, saying so.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

if ! { .ci/engines.sh docker && .ci/docker_base.sh; }; then
  ! is_required docker || die 'HARBOR_GYM_REQUIRE names docker, and Docker cannot be had here'
  say 'going on without Docker: its tests are skipped'
fi
# Most tests wait for sandboxes: three processes keep two cores busy. One that dies ends the run: xdist would wait for
# what it had not yet run, for ever.
exec .venv/bin/python -m pytest -n 3 --max-worker-restart 0 --no-loadscope-reorder "$@"
