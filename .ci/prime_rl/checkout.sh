#!/usr/bin/env bash
# Prints the path of a checkout of Prime-RL at the pinned commit, which is cloned into the directory $1 if it is not there.
# HARBOR_GYM_PRIME_RL names another repository to clone from, HARBOR_GYM_PRIME_RL_COMMIT another commit or branch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

# The newest that was available here. It is older than what training needs: the tests state where that matters.
pinned=559b44772e471d1538537b8805cc77f3824a5e64
repository=${HARBOR_GYM_PRIME_RL:-https://github.com/PrimeIntellect-ai/prime-rl}
[ ! -d "$repository" ] || repository=$(cd "$repository" && pwd)
commit=${HARBOR_GYM_PRIME_RL_COMMIT:-$pinned}
download_timeout_sec=60

checkout=$(mkdir -p "${1:?a directory for the checkout}" && cd "$1" && pwd)
[ -d "$checkout/.git" ] || git init -q "$checkout"
if [ "$(git -C "$checkout" rev-parse -q --verify HEAD)" != "$commit" ]; then
  log "getting Prime-RL $commit into $checkout"
  GIT_TERMINAL_PROMPT=0 timeout "$download_timeout_sec" git -C "$checkout" fetch -q --depth 1 "$repository" "$commit" >&2 ||
    die "Prime-RL could not be fetched. Name a repository that this machine can reach: HARBOR_GYM_PRIME_RL=/path/or/url"
  git -C "$checkout" -c advice.detachedHead=false checkout -q --force FETCH_HEAD
fi
echo "$checkout"
