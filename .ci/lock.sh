#!/usr/bin/env bash
# Writes the exact pins. No index address gets into the file, whatever index this machine uses.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
cd "$here/.."

pins=.requirements/all.txt
new=$(mktemp)
trap 'rm -f "$new"' EXIT
[ ! -f "$pins" ] || cp "$pins" "$new"
# Every extra but those that need an environment of their own.
extras=(tinker server trl openenv skyrl ray plot render)
.venv/bin/uv pip compile pyproject.toml "${extras[@]/#/--extra=}" --group dev --group engine \
  --universal --python-version 3.12 --overrides .requirements/overrides.txt \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# Everything that make installs, pinned. Made by: make lock. Install with --no-deps: overrides.txt overrides what packages declare.'
  grep -v '^#' "$new"
} >"$pins"
say "wrote $(grep -c == "$pins") pins to $pins"

# What the mutation tool needs beyond those, for the venv that lies over them.
tool=.requirements/mutants.txt
[ ! -f "$tool" ] || cp "$tool" "$new"
.venv/bin/uv pip compile --group mutants --constraint "$pins" --universal --python-version 3.12 \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# The mutation tool, beside all.txt. Made by: make lock. Install with --no-deps.'
  grep -v '^#' "$new" | grep -vxFf "$pins"
} >"$tool"
say "wrote $(grep -c == "$tool") pins to $tool"

# verifiers needs an mcp that openenv's fastmcp refuses: an environment of its own, see environment.sh.
alone=.requirements/verifiers.txt
[ ! -f "$alone" ] || cp "$alone" "$new"
.venv/bin/uv pip compile pyproject.toml --extra verifiers --group test --universal --python-version 3.12 \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# verifiers and what it needs, pinned. Made by: make lock. Installed by: .ci/environment.sh verifiers'
  grep -v '^#' "$new"
} >"$alone"
say "wrote $(grep -c == "$alone") pins to $alone"

# NeMo Gym pins its own openai and a Python of its own: an environment made by environment.sh, on nemo_gym/python.sh's Python.
alone=.requirements/nemo_gym.txt
[ ! -f "$alone" ] || cp "$alone" "$new"
.venv/bin/uv pip compile pyproject.toml --extra nemo-gym --group test --group contract --universal --python-version 3.13.14 \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# NeMo Gym and what it needs, pinned. Made by: make lock. Installed by: .ci/environment.sh nemo_gym'
  grep -v '^#' "$new"
} >"$alone"
say "wrote $(grep -c == "$alone") pins to $alone"
# The embedded training server alone, for `harbor-gym server install`: it ships with the package.
server=harbor_gym/embedded/server_requirements.txt
cp "$server" "$new"
.venv/bin/uv pip compile --group engine --constraint "$pins" --overrides .requirements/overrides.txt \
  --universal --python-version 3.12 \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# The embedded training server, pinned. Made by: make lock. Installed by: harbor-gym server install, with --no-deps.'
  grep -v '^#' "$new"
} >"$server"
say "wrote $(grep -c == "$server") pins to $server"

# The site's builder, in an environment of its own, see environment.sh.
docs=.requirements/docs.txt
[ ! -f "$docs" ] || cp "$docs" "$new"
.venv/bin/uv pip compile --group docs --universal --python-version 3.12 \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# What builds the site, pinned. Made by: make lock. Installed by: .ci/environment.sh docs'
  grep -v '^#' "$new"
} >"$docs"
say "wrote $(grep -c == "$docs") pins to $docs"

# Agents' programs for tests, see engines.sh agents.
agents=.requirements/agents.txt
[ ! -f "$agents" ] || cp "$agents" "$new"
.venv/bin/uv pip compile --group agents --universal --python-version 3.12 \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet --output-file "$new" "$@" >/dev/null
{
  echo '# Agents from PyPI that tests run, pinned. Made by: make lock. Installed by: .ci/engines.sh agents'
  grep -v '^#' "$new"
} >"$agents"
say "wrote $(grep -c == "$agents") pins to $agents"
