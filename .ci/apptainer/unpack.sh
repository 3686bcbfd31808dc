#!/usr/bin/env bash
# Unpacks Apptainer of Debian's unstable suite, with the libraries and FUSE programs of that suite, into a folder that
# the checkout does not track; nothing of the system is installed or replaced. It needs apt, and no root.
#   unpack.sh [DIRECTORY]
# HARBOR_GYM_DEBIAN_MIRROR names another mirror than this machine's own sources do.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/../lib.sh"
cd "$here/../.."

version=1.4.5-2
directory=${1:-build/engines/apptainer}
programs=(apptainer squashfuse_ll fuse-overlayfs mksquashfs unsquashfs)
# What the closure holds and none of the programs needs.
unwanted='^(ca-certificates|containernetworking-plugins|debconf|gcc-.*-base|libc-gconv-modules-extra|libsystemd0|mount|openssl|openssl-provider-legacy|uidmap|libssl3t64)_'

if [ "$(cat "$directory/.installed" 2>/dev/null)" = "$version $PWD/$directory" ]; then
  exit 0
fi
{ has apt-get && has dpkg-deb; } || die "apptainer is missing and can't be unpacked without apt: install it by your system's means"
log "unpacking apptainer $version into $directory"
unpack_programs "$directory" sid "$unwanted" apptainer squashfuse fuse-overlayfs
root=$(cd "$directory" && pwd)
if [ "$unpacked_version" != "$version" ]; then
  log "Debian unstable has moved from the pinned apptainer $version to $unpacked_version: taking that. Change the pin in ${BASH_SOURCE[0]}"
fi
# Apptainer looks for these relative to its own program.
ln -sfn ../etc "$root/usr/etc"
mkdir -p "$root"/usr/{,lib/}var/lib/apptainer/mnt/session "$root/bin"
ln -sfn ../../etc "$root/usr/lib/etc"
for program in "${programs[@]}"; do ln -sfn "../usr/bin/$program" "$root/bin/$program"; done
"$root/bin/apptainer" version >/dev/null || die "apptainer $unpacked_version was unpacked, and does not start"
echo "$version $PWD/$directory" >"$root/.installed"
log "apptainer $unpacked_version is in $directory/bin: put that into PATH (tests find it by themselves)"
