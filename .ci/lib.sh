# shellcheck shell=bash
# What the scripts here share. Source it; it starts nothing.

# Container images often set this: each of the suite's many processes would then compile its imports anew.
unset PYTHONDONTWRITEBYTECODE

log() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
# Return whether the engine $1 must be there; where it need not, what needs it is skipped with a reason.
is_required() { [[ ,${HARBOR_GYM_REQUIRE:-}, == *,$1,* ]]; }
# Its many small objects outlive Node's own small space for new ones: to move them would take a fifth of its time.
pyright() { NODE_OPTIONS=--max-semi-space-size=256 .venv/bin/pyright "$@"; }
# Check and test, in the environment of the framework $1, what needs it: $2 are pytest's marks, the rest its arguments.
test_framework() {
  local name=$1 marks=$2 environment
  shift 2
  environment=$(.ci/environment.sh "$name")
  pyright -p ".ci/$name" --venvpath "$(dirname "$environment")"
  export HARBOR_GYM_REQUIRE="${HARBOR_GYM_REQUIRE:+$HARBOR_GYM_REQUIRE,}$name"
  exec "$environment/bin/python" -m pytest -m "$marks" "$@"
}
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

# Unpack packages of a Debian suite with all of their libraries into the directory $1; nothing of the system is installed
# or replaced. $2 is the suite, $3 the pattern of packages of the closure that no program needs, then the packages. The
# programs find their libraries there. Sets unpacked_version to that of the first package.
unpack_programs() {
  local root=$1 suite=$2 unwanted=$3 work libraries loader package program change
  shift 3
  work=$(mktemp -d)
  apt_newer_suite "$work" deb "$suite" || die "the packages of Debian's $suite can not be listed: set HARBOR_GYM_DEBIAN_MIRROR"
  # Against an empty list of installed packages: the programs bring all of their libraries.
  : >"$work/status"
  newer_suite+=(-o "Dir::State::status=$work/status" -o 'Dir::Etc::preferencesparts=-' -o 'Dir::Etc::preferences=-')
  unpacked_version=$(apt-cache "${newer_suite[@]}" policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([^(].*\)/\1/p')
  [ -n "$unpacked_version" ] || die "Debian's $suite has no $1 for $(dpkg --print-architecture): install it by your system's means"
  apt "${newer_suite[@]}" --no-install-recommends --download-only install "$@" patchelf

  rm -rf "$root"
  mkdir -p "$root"
  root=$(cd "$root" && pwd)
  for package in "$work"/cache/archives/*.deb; do
    [[ ${package##*/} =~ $unwanted ]] || dpkg-deb -x "$package" "$root"
  done
  rm -rf "${root:?}"/usr/{share,include}
  libraries=$(dirname "$root"/usr/lib/*-linux-gnu/libc.so.6)
  loader=$(echo "$libraries"/ld-linux-*.so.*)
  cp "$root/usr/bin/patchelf" "$work/patchelf"
  find "$root/usr" -type f -perm -u+x ! -name '*.so' ! -name '*.so.*' -print0 >"$work/programs"
  while IFS= read -r -d '' program; do
    if [ "$(head -c 4 "$program" | tail -c 3)" != ELF ]; then continue; fi
    # One after the other: both at once break programs that Go links at a fixed place.
    for change in "--force-rpath --set-rpath $libraries" "--set-interpreter $loader"; do
      # shellcheck disable=SC2086  # words
      "$loader" --library-path "$libraries" "$work/patchelf" $change "$program" 2>"$work/log" \
        || grep -q 'cannot find section' "$work/log" || die "$(cat "$work/log")"
    done
  done <"$work/programs"
  rm -rf "$work"
}
