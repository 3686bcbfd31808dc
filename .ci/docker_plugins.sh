#!/usr/bin/env bash
# Debian 12 has no Compose v2: takes compose and buildx from Debian 13, whose builds run here (libc6 >= 2.34).
# The mirror is the one that this machine's own apt sources name; apt checks Debian's signature as always.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

plugins=/usr/local/lib/docker/cli-plugins

can_apt || die 'installing Docker plugins takes root and apt'
apt_update
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log 'taking compose and buildx from a newer suite'
apt_newer_suite "$work" deb || die "no Compose v2 in this distribution's packages; install Docker's own: docker-compose-plugin docker-buildx-plugin"
(cd "$work" && apt "${newer_suite[@]}" download docker-compose docker-buildx)
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
mkdir -p "$plugins"
install -m 755 "$work"/unpacked/usr/libexec/docker/cli-plugins/* "$plugins/"
