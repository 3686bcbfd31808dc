#!/usr/bin/env bash
# Fails when a tracked file names a path of one machine or the address of a package registry.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

paths='(^|[^A-Za-z0-9._/-])(/work/|/root/|/home/[a-z]+/|/Users/[a-z]+/|/tmp/bash_jobs)'
registries='(index-url|registry) *= *"?https?:|https?://[^ "]*(/simple([/" ]|$)|/packages/[0-9a-f]{2}/|pypi\.org|pythonhosted\.org|registry\.npmjs)'

status=0
# Inside a task's sandbox /root is the sandbox's own.
if git grep -nIE "$paths" -- . ':!tasks/*' ':!tests/*' ':!.ci/leaks.sh'; then
  echo 'error: the lines above name a path that exists on one machine only' >&2
  status=1
fi
if git grep -nIE "$registries" -- . ':!.ci/leaks.sh'; then
  echo 'error: the lines above hold the address of a package registry' >&2
  status=1
fi
exit $status
