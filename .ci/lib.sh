# shellcheck shell=bash
# What the scripts here share. Source it; it starts nothing.

# Container images often set this: each of the suite's many processes would then compile its imports anew.
unset PYTHONDONTWRITEBYTECODE

log() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
# Return whether the engine $1 must be there; where it need not, what needs it is skipped with a reason.
is_required() { [[ ,${HARBOR_GYM_REQUIRE:-}, == *,$1,* ]]; }
has() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" -eq 0 ]; }
can_apt() { is_root && has apt-get; }

# Run apt-get unattended; its output is shown only when it fails.
apt() {
  local output
  output=$(DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" 2>&1 </dev/null) && return 0
  printf '%s\n' "$output" | tail -n 20 >&2
  return 1
}

# Refresh apt's lists once per process tree.
apt_update() {
  [ -z "${HARBOR_GYM_APT_UPDATED:-}" ] || return 0
  apt update || log 'apt-get update failed; going on with the lists that are there'
  export HARBOR_GYM_APT_UPDATED=1
}

apt_install() {
  apt_update
  apt install --no-install-recommends "$@"
}

# The version that apt would install, empty if there is none.
apt_candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([^(].*\)/\1/p'; }

apt_has() { [ -n "$(apt_candidate "$1")" ]; }

# The major version of what apt would install, 0 if there is none.
apt_major() {
  local version
  version=$(apt_candidate "$1")
  version=${version#*:}
  version=${version%%[!0-9]*}
  printf '%s\n' "${version:-0}"
}

# Prepare apt for a newer suite of this distribution, at the mirror that this machine's own sources name, with lists of
# its own under the directory $1. Fills the array newer_suite with apt's options. $2 is deb or deb-src. $3 is a suite of
# Debian's, taken wherever this is, from HARBOR_GYM_DEBIAN_MIRROR or Debian's own where the sources name no mirror of it.
apt_newer_suite() {
  local work=$1 kind=$2 named=${3:-} label suite keyring mirror distribution
  distribution=${named:+debian}
  # shellcheck disable=SC1091  # the system's own description of itself
  case ${distribution:=$(. /etc/os-release && echo "$ID")} in
    debian) label=Debian suite=${named:-trixie} keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
    ubuntu) label=Ubuntu suite=noble keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
    *) return 1 ;;
  esac
  # shellcheck disable=SC2016  # apt expands the fields, not the shell
  mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' "Origin: $label" | sed -n "s/^$label //p")
  mirror=${mirror%%$'\n'*}
  if [ -n "$named" ]; then
    mirror=${HARBOR_GYM_DEBIAN_MIRROR:-${mirror:-http://deb.debian.org/debian}}
    [ -e "$keyring" ] || ! can_apt || apt_install debian-archive-keyring
  fi
  [ -n "$mirror" ] || return 1
  mkdir -p "$work"/{lists/partial,cache/archives/partial}
  echo "$kind [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
  # shellcheck disable=SC2034  # for the caller
  newer_suite=(
    -o "Dir::Etc::sourcelist=$work/sources.list" -o 'Dir::Etc::sourceparts=-'
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o 'APT::Sandbox::User=root'
  )
  apt "${newer_suite[@]}" update
}
