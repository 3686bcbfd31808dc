#!/usr/bin/env bash
# Writes the exact pins. No index address gets into the file, whatever index this machine uses.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

new=$(mktemp)
trap 'rm -f "$new"' EXIT
upgrade=("$@")

# Pin into file $1, whose first line describes what $2 does; the others are uv's arguments. Pins that still fit are kept.
pin() {
  local file=$1 title=$2
  shift 2
  : >"$new"
  [ ! -f "$file" ] || cp "$file" "$new"
  .venv/bin/uv pip compile "$@" --universal --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet \
    --output-file "$new" "${upgrade[@]}" >/dev/null
  {
    echo "# $title"
    grep -v '^#' "$new"
  } >"$file"
}

count() { log "wrote $(grep -c == "$1") pins to $1"; }

pins=.requirements/all.txt overrides=.requirements/overrides.txt
# Every extra but those that need an environment of their own.
extras=(tinker server trl openenv skyrl ray plot render)
pin "$pins" 'Everything that make installs, pinned. Made by: make lock. Install with --no-deps: overrides.txt overrides what packages declare.' \
  pyproject.toml "${extras[@]/#/--extra=}" --group dev --group engine --python-version 3.12 --overrides "$overrides"
count "$pins"

# What the mutation tool needs beyond those, for the venv that lies over them.
tool=.requirements/mutants.txt
pin "$tool" 'The mutation tool, beside all.txt. Made by: make lock. Install with --no-deps.' \
  --group mutants --constraint "$pins" --python-version 3.12
beyond=$(grep -vxFf "$pins" "$tool")
printf '%s\n' "$beyond" >"$tool"
count "$tool"

# verifiers needs an mcp that openenv's fastmcp refuses: an environment of its own, see environment.sh.
pin .requirements/verifiers.txt 'verifiers and what it needs, pinned. Made by: make lock. Installed by: .ci/environment.sh verifiers' \
  pyproject.toml --extra verifiers --group test --python-version 3.12
count .requirements/verifiers.txt

# The newest Harbor that pyproject.toml allows: openenv's fastmcp keeps it out of all.txt.
pin .requirements/harbor_newest.txt 'The newest Harbor and what the core needs beside it, pinned. Made by: make lock. Installed by: .ci/environment.sh harbor_newest' \
  pyproject.toml --extra render --group test --group contract --python-version 3.12
count .requirements/harbor_newest.txt

# Prime-RL itself is a git checkout: these are verifiers' pins and torch's, with what else it imports, see environment.sh.
pin .requirements/prime_rl.txt 'What Prime-RL needs beside its checkout where no GPU is, pinned. Made by: make lock. Installed by: .ci/environment.sh prime_rl' \
  pyproject.toml --extra verifiers --group test --group prime-rl --constraint .requirements/verifiers.txt \
  --constraint <(grep -E '^(torch|cuda|nvidia)' "$pins") --overrides <(grep '^triton;' "$overrides") --python-version 3.12
count .requirements/prime_rl.txt

# verl holds back transformers: an environment of its own, see environment.sh.
pin .requirements/verl.txt 'verl and what it needs where no GPU is, pinned. Made by: make lock. Installed by: .ci/environment.sh verl' \
  pyproject.toml --extra verl --group test --constraint <(grep -E '^(torch|cuda|nvidia)' "$pins") \
  --overrides <(grep '^triton;' "$overrides") --python-version 3.12
count .requirements/verl.txt

# NeMo Gym pins its own openai and a Python of its own: an environment made by environment.sh, on nemo_gym/python.sh's Python.
pin .requirements/nemo_gym.txt 'NeMo Gym and what it needs, pinned. Made by: make lock. Installed by: .ci/environment.sh nemo_gym' \
  pyproject.toml --extra nemo-gym --group test --group contract --python-version 3.13.14
count .requirements/nemo_gym.txt

# The embedded training server alone, for `harbor-gym server install`: it ships with the package.
server=harbor_gym/embedded/server_requirements.txt
pin "$server" 'The embedded training server, pinned. Made by: make lock. Installed by: harbor-gym server install, with --no-deps.' \
  --group engine --constraint "$pins" --overrides "$overrides" --python-version 3.12
count "$server"

# The site's builder, in an environment of its own, see environment.sh.
pin .requirements/docs.txt 'What builds the site, pinned. Made by: make lock. Installed by: .ci/environment.sh docs' \
  --group docs --python-version 3.12
count .requirements/docs.txt

# Agents' programs for tests, see engines.sh agents.
pin .requirements/agents.txt 'Agents from PyPI that tests run, pinned. Made by: make lock. Installed by: .ci/engines.sh agents' \
  --group agents --python-version 3.12
count .requirements/agents.txt
