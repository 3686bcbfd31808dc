#!/usr/bin/env bash
# Checks and tests what needs NeMo Gym in the environment that holds it, which is made if it is not there.
#   test.sh [PYTEST'S FLAGS]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

test_framework nemo_gym nemo_gym tests/contract/test_{require_audit,routed_experts,same_episode}.py tests/integration/nemo_gym "$@"
