#!/usr/bin/env bash
# Compiles the static program that local sandboxes start from: writes machine_code.py beside launcher.c.
# Needs gcc and gcc-aarch64-linux-gnu. The other architectures' files are the same on every machine.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"
room=$here/../harbor_gym/sandboxes/supervisor/program/kernel
flags=(-Os -static -nostdlib -ffreestanding -fno-builtin -fno-stack-protector -fno-asynchronous-unwind-tables -fno-pie
  -no-pie -Wall -Wextra -Werror -s "-Wl,--build-id=none,-n,-z,noseparate-code,-z,noexecstack")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  # shellcheck disable=SC2016  # Python's text, not the shell's
  echo '"""The static program ``launcher.c``, compiled. Made by: .ci/build_launcher.sh."""'
  echo
  echo 'PROGRAMS = {'
  for machine in x86_64 aarch64; do
    compiler=$machine-linux-gnu-gcc
    has "$compiler" || die "no $compiler: apt-get install -y gcc gcc-aarch64-linux-gnu"
    "$compiler" "${flags[@]}" -o "$work/$machine" "$room/launcher.c"
    echo "    \"$machine\": ("
    base64 -w 110 "$work/$machine" | sed 's/.*/        "&"/'
    echo '    ),'
  done
  echo '}'
  # shellcheck disable=SC2016  # as above
  echo '"""``uname -m`` → a static ELF executable in base64, about 1 KB."""'
} >"$work/machine_code.py"
mv "$work/machine_code.py" "$room/machine_code.py"
