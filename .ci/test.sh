#!/usr/bin/env bash
# Runs the tests. Docker's run where Docker is there or can be installed; otherwise they are skipped with a message.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

if ! { .ci/engines.sh docker && .ci/docker_base.sh; }; then
  ! is_required docker || die 'HARBOR_GYM_REQUIRE names docker, and Docker is not available here'
  log 'going on without Docker: its tests are skipped'
fi
# Most tests wait for sandboxes: with three processes two cores idle for a seventh of the time, with four for a twentieth.
# One that is killed ends the run: xdist would wait for what it had not yet run, for ever.
exec .venv/bin/python -m pytest -n 4 --max-worker-restart 0 --no-loadscope-reorder "$@"
