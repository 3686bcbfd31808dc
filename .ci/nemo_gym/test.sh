#!/usr/bin/env bash
# Runs the tests that need NeMo Gym, in its own environment, which is made first where it is not there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here/.."

environment=$(.ci/environment.sh nemo_gym)
exec env HARBOR_GYM_REQUIRE=nemo_gym,local "$environment/bin/python" -m pytest tests/integration/nemo_gym "$@"
