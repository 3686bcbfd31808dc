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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log "unpacking apptainer $version into $directory"
apt_newer_suite "$work" deb sid || die 'the packages of Debian unstable can not be listed: set HARBOR_GYM_DEBIAN_MIRROR, or install apptainer'
# Against an empty list of installed packages: the programs bring all of their libraries.
: >"$work/status"
newer_suite+=(-o "Dir::State::status=$work/status" -o 'Dir::Etc::preferencesparts=-' -o 'Dir::Etc::preferences=-')
found=$(apt-cache "${newer_suite[@]}" policy apptainer 2>/dev/null | sed -n 's/^  Candidate: \([^(].*\)/\1/p')
[ -n "$found" ] || die "Debian unstable has no apptainer for $(dpkg --print-architecture): install it by your system's means"
if [ "$found" != "$version" ]; then
  log "Debian unstable has moved from the pinned apptainer $version to $found: taking that. Change the pin in ${BASH_SOURCE[0]}"
fi
apt "${newer_suite[@]}" --no-install-recommends --download-only install apptainer squashfuse fuse-overlayfs patchelf

rm -rf "$directory"
mkdir -p "$directory"
root=$(cd "$directory" && pwd)
for package in "$work"/cache/archives/*.deb; do
  [[ ${package##*/} =~ $unwanted ]] || dpkg-deb -x "$package" "$root"
done
rm -rf "${root:?}"/usr/{share,sbin,include}
libraries=$(dirname "$root"/usr/lib/*-linux-gnu/libc.so.6)
loader=$(echo "$libraries"/ld-linux-*.so.*)
cp "$root/usr/bin/patchelf" "$work/patchelf"
for program in "$root"/usr/bin/* "$libraries/apptainer/bin/starter"; do
  if [ -L "$program" ] || [ "$(head -c 4 "$program" | tail -c 3)" != ELF ]; then continue; fi
  "$loader" --library-path "$libraries" "$work/patchelf" \
    --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program" 2>"$work/log" \
    || grep -q 'cannot find section .interp' "$work/log" || die "$(cat "$work/log")"
done
# Apptainer looks for these relative to its own program.
ln -sfn ../etc "$root/usr/etc"
mkdir -p "$root"/usr/{,lib/}var/lib/apptainer/mnt/session "$root/bin"
ln -sfn ../../etc "$root/usr/lib/etc"
for program in "${programs[@]}"; do ln -sfn "../usr/bin/$program" "$root/bin/$program"; done
"$root/bin/apptainer" version >/dev/null || die "apptainer $found was unpacked, and does not start"
echo "$version $PWD/$directory" >"$root/.installed"
log "apptainer $found is in $directory/bin: put that into PATH (tests find it by themselves)"
