#!/usr/bin/env bash
# Makes an environment of its own for a framework that can't share .venv, from .requirements/NAME.txt, and prints its path.
# Nothing is done where the pins have not changed: the folder lives beside the checkout's other builds, or where
# HARBOR_GYM_ENVIRONMENTS points, so that a build keeps it between runs. HARBOR_GYM_PINS is another folder of pins.
#   environment.sh NAME [PYTHON]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

name=${1:?a name: the pins are in .requirements/NAME.txt}
pins=${HARBOR_GYM_PINS:-.requirements}/$name.txt
[ -f "$pins" ] || die "no pins for $name: $pins"
environments=${HARBOR_GYM_ENVIRONMENTS:-build/environments}
environment=$environments/$name
beside=()
case $name in
  prime_rl)
    python=${2:-.venv/bin/python}
    checkout=$(.ci/prime_rl/checkout.sh "$environments/prime_rl_checkout")
    beside=(--editable "$checkout" --editable "$checkout/packages/prime-rl-configs")
    ;;
  nemo_gym) python=${2:-$(.ci/nemo_gym/python.sh "$environments/python3.13")} ;;
  *) python=${2:-.venv/bin/python} ;;
esac
# The installed package is this checkout: another one with the same environment installs itself anew.
wanted="$(cat "$pins" pyproject.toml | sha256sum) $("$python" --version) $PWD${checkout:+ $checkout $(git -C "$checkout" rev-parse HEAD)}"
if [ "$(cat "$environment/.installed" 2>/dev/null)" != "$wanted" ]; then
  log "making $environment (a few minutes the first time)"
  .venv/bin/uv venv -q --clear --seed --python "$python" "$environment"
  .venv/bin/uv pip install -q --python "$environment/bin/python" --no-deps -r "$pins"
  .venv/bin/uv pip install -q --python "$environment/bin/python" --no-deps --no-build-isolation --editable . "${beside[@]}"
  echo "$wanted" >"$environment/.installed"
fi
echo "$environment"
