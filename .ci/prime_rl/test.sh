#!/usr/bin/env bash
# Tests what needs Prime-RL in an environment that holds it, which is made if it is not there. Where its
# repository can't be reached and HARBOR_GYM_REQUIRE does not name prime_rl, nothing runs.
#   test.sh [PYTEST'S FLAGS]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

if ! .ci/prime_rl/checkout.sh "${HARBOR_GYM_ENVIRONMENTS:-build/environments}/prime_rl_checkout" >/dev/null; then
  ! is_required prime_rl || die 'HARBOR_GYM_REQUIRE names prime_rl, and Prime-RL is not available here'
  log "Prime-RL's tests are skipped. To run them: HARBOR_GYM_PRIME_RL=/path/or/url .ci/prime_rl/test.sh"
  exit 0
fi
environment=$(.ci/environment.sh prime_rl)
export HARBOR_GYM_REQUIRE="${HARBOR_GYM_REQUIRE:+$HARBOR_GYM_REQUIRE,}verifiers,prime_rl"
exec "$environment/bin/python" -m pytest -m prime_rl tests/integration/adapters/verifiers "$@"
