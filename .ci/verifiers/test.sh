#!/usr/bin/env bash
# Checks and tests what needs verifiers in the environment that holds it, which is made if it is not there.
#   test.sh [PYTEST'S FLAGS]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

environment=$(.ci/environment.sh verifiers)
.venv/bin/pyright -p .ci/verifiers --venvpath "$(dirname "$environment")"
export HARBOR_GYM_REQUIRE="${HARBOR_GYM_REQUIRE:+$HARBOR_GYM_REQUIRE,}verifiers"
exec "$environment/bin/python" -m pytest -m 'verifiers and not slow' \
  tests/contract/test_same_episode.py tests/integration/adapters/verifiers tests/unit/house/test_plugin_module.py "$@"
