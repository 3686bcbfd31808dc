#!/usr/bin/env bash
# Mutation testing, for people: hours for all modules, minutes for one. The tool lives in a venv of its own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/../lib.sh"
cd "$here/../.."

venv=build/mutants/venv
pins=.requirements/mutants.txt
if [ ! -x "$venv/bin/mutmut" ] || [ "$pins" -nt "$venv/bin/mutmut" ]; then
  log "making $venv"
  .venv/bin/uv venv -q --clear --python .venv/bin/python "$venv"
  .venv/bin/uv pip install -q --python "$venv/bin/python" --no-deps -r "$pins"
  # Everything else is what .venv has; the editable install is left out, for a copy of the code is what is tested.
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tested.pth"
  touch "$venv/bin/mutmut"
fi
exec nice -n 10 "$venv/bin/python" "$here/mutants.py" "$@"
