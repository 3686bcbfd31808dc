#!/usr/bin/env bash
# Fails when a tracked file names a path of one machine or the address of a package registry.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

paths='(^|[^A-Za-z0-9._/-])(/wor[k]/|/roo[t]/|/hom[e]/[a-z]+/|/User[s]/[a-z]+/|/tmp/bash_job[s])'
registries='(index-url|registry) *= *"?https?:|https?://[^ "]*(/simple([/" ]|$)|/packages/[0-9a-f]{2}/|pypi\.org|pythonhosted\.org|registry\.npmjs)'

status=0
# Inside a task's sandbox /root is the sandbox's own.
if git grep -nIE "$paths" -- . ':!tasks/*' ':!tests/*'; then
  echo 'error: the lines above name a path that exists on one machine only' >&2
  status=1
fi
if git grep -nIE "$registries" -- .; then
  echo 'error: the lines above hold the address of a package registry' >&2
  status=1
fi
exit $status
