#!/usr/bin/env bash
# Prints the path of a Python that the pins were made for (3.12 first, up to 3.14), installing one where apt can.
# PYTHON=/some/python chooses one by hand.
set -euo pipefail
own=${XDG_DATA_HOME:-$HOME/.local/share}/harbor-gym/python
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

# Print the real path of a candidate that runs and has the right version. A pyenv shim may exist and yet refuse.
usable() {
  "$1" -c 'import sys; print(sys.executable); sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
  local candidate found
  for candidate in "${PYTHON:-}" python3.12 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3 /opt/pyenv/versions/3.12*/bin/python3 \
    python3 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[34]*/bin/python3 "$own/bin/python3"; do
    [ -n "$candidate" ] || continue
    if found=$(usable "$candidate"); then printf '%s\n' "$found"; return 0; fi
  done
  if has uv && candidate=$(uv python find --no-project '>=3.12,<3.15' 2>/dev/null) && found=$(usable "$candidate"); then
    printf '%s\n' "$found"
    return 0
  fi
  return 1
}

# Ubuntu 24.04 and Debian 13 have a fitting python3; older ones do not.
apt_python() {
  can_apt || return 1
  apt_update
  local version
  version=$(apt_candidate python3)
  case $version in
    3.12.* | 3.13.* | 3.14.*) log "installing Python $version"; apt_install python3 python3-venv ca-certificates ;;
    *) return 1 ;;
  esac
}

find_python && exit 0
if apt_python && find_python; then exit 0; fi
if can_apt && "$here/build_python.sh" "$own" >&2 && find_python; then exit 0; fi
die 'Python 3.12, 3.13 or 3.14 is needed and none was found. Install one (pyenv install 3.12, uv python install 3.12, or apt-get install python3 on Ubuntu 24.04 or Debian 13), or name one: make PYTHON=/path/to/python3.12'
