#!/usr/bin/env bash
# Debian 12 has no Compose v2: takes compose and buildx from Debian 13, whose builds run here (libc6 >= 2.34).
# The mirror is the one that this machine's own apt sources name; apt checks Debian's signature as always.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

suite=trixie
plugins=/usr/local/lib/docker/cli-plugins

can_apt || die 'installing Docker plugins takes root and apt'
apt_update
# shellcheck disable=SC2016  # apt expands the fields, not the shell
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | sed -n 's/^Debian //p')
mirror=${mirror%%$'\n'*}
[ -n "$mirror" ] || die "no Compose v2 in this distribution's packages; install Docker's own: docker-compose-plugin docker-buildx-plugin"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,unpacked}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
options=(
  -o "Dir::Etc::sourcelist=$work/sources.list" -o 'Dir::Etc::sourceparts=-'
  -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o 'APT::Sandbox::User=root'
)
say "taking compose and buildx from Debian $suite"
apt "${options[@]}" update
(cd "$work" && apt "${options[@]}" download docker-compose docker-buildx)
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
mkdir -p "$plugins"
install -m 755 "$work"/unpacked/usr/libexec/docker/cli-plugins/* "$plugins/"
