#!/usr/bin/env bash
# Unpacks buildah of a newer Debian, with the libraries of that suite, and puts it before the distribution's own on the
# PATH; nothing of the system is replaced. The package of the distribution stays for its configuration.
#   unpack.sh [DIRECTORY [PREFIX]]
# HARBOR_GYM_DEBIAN_MIRROR names another mirror than this machine's own sources do.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/../lib.sh"

suite=trixie
directory=${1:-/usr/local/lib/harbor-gym/buildah}
prefix=${2:-/usr/local}
# What the closure holds and buildah does not need.
unwanted='^(adduser|base-passwd|containernetworking-plugins|debconf|dirmngr|gcc-.*-base|gnupg.*|gpg.*|init-system-helpers|iptables|libdb5.3t64|libldap2|libpam-modules.*|libsasl2.*|libssl3t64|login.defs|netbase|openssl.*|passwd|pinentry-curses|readline-common|uidmap)_'

log "unpacking buildah of Debian's $suite into $directory"
unpack_programs "$directory" "$suite" "$unwanted" buildah netavark
root=$(cd "$directory" && pwd)
"$root/usr/bin/buildah" --version >/dev/null || die "buildah $unpacked_version was unpacked, and does not start"
mkdir -p "$prefix/bin" "$prefix/libexec/podman"
ln -sfn "$root/usr/bin/buildah" "$prefix/bin/buildah"
# It runs no network of its own here, and wants to see what would make one.
ln -sfn "$root/usr/lib/podman/netavark" "$prefix/libexec/podman/netavark"
log "buildah $unpacked_version is in $prefix/bin"
