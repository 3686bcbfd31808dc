#!/usr/bin/env bash
# Builds the site in an environment of its own. A broken link or reference fails.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
environment=$(.ci/environment.sh docs)
NO_MKDOCS_2_WARNING=1 "$environment/bin/mkdocs" build --strict --quiet
echo "build/site/index.html"
