#!/usr/bin/env bash
# Unpacks CRIU of Debian's unstable suite, with the libraries of that suite, into a folder that the checkout does not
# track; nothing of the system is installed or replaced. It needs apt, and no root.
#   unpack.sh [DIRECTORY]
# HARBOR_GYM_DEBIAN_MIRROR names another mirror than this machine's own sources do.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/../lib.sh"
cd "$here/../.."

version=4.2.1-1
directory=$(realpath -m "${1:-build/engines/criu}")
# What the closure holds and CRIU does not need.
unwanted='^(ca-certificates|debconf|gcc-.*-base|iptables|libc-gconv-modules-extra|libssl3t64|libsystemd0|mount|openssl.*)_'

if [ "$(cat "$directory/.installed" 2>/dev/null)" = "$version $directory" ]; then
  exit 0
fi
{ has apt-get && has dpkg-deb; } || die "criu is missing and can't be unpacked without apt: install CRIU 4.2 or later by your system's means"
log "unpacking criu $version into $directory"
unpack_programs "$directory" sid "$unwanted" criu
if [ "$unpacked_version" != "$version" ]; then
  log "Debian unstable has moved from the pinned criu $version to $unpacked_version: taking that. Change the pin in ${BASH_SOURCE[0]}"
fi
"$directory/usr/sbin/criu" --version >/dev/null || die "criu $unpacked_version was unpacked, and does not start"
echo "$version $directory" >"$directory/.installed"
log "criu $unpacked_version is in $directory/usr/sbin: put that into PATH (tests find it by themselves)"
