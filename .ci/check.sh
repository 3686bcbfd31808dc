#!/usr/bin/env bash
# Everything that can be judged without running the package. Runs all gates, fails if any failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.." || exit 1

failed=()
gate() {
  log "$*"
  "$@" || failed+=("$(basename "$1") ${2:-}")
}

untracked() {
  local files
  files=$(git ls-files --others --exclude-standard -- .ci harbor_gym recipes tests)
  [ -z "$files" ] || { printf 'error: a commit would lack these files; add or ignore them:\n%s\n' "$files" >&2; return 1; }
}

mapfile -t scripts < <(git ls-files '*.sh' '.ci/run' | grep -v '^tasks/.*/environment/')
mapfile -t fragments < <(git ls-files '*.bash')
gate .venv/bin/ruff check .
gate .venv/bin/ruff format --check .
gate .venv/bin/lint-imports --no-logo
gate .venv/bin/python -m tests.helpers.doc_blocks
gate pyright
gate .venv/bin/shellcheck -x "${scripts[@]}"
gate .venv/bin/shellcheck -s bash "${fragments[@]}"
gate .ci/leaks.sh
gate untracked
[ ${#failed[@]} -eq 0 ] || die "failed: $(printf '%s; ' "${failed[@]}")"
