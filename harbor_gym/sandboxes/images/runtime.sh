#!/bin/sh
# The runtime of a build's commands. Each RUN gets a network of its own, as under Docker, and loses names that begin with
# `.wh.` when it ends: buildah's commit takes them for deletions, which Docker's does not, or fails for them. ACLs that it
# set are noted in attributes, which the commit keeps, and are there again for the next RUN. The networks
# lead out through slirp4netns, which stays in the machine's, and not to the machine's loopback. All end with the build's
# PID namespace.
#
#   sh runtime.sh FOLDER own|shared PYTHON PROGRAM COMMAND...  the command, whose BUILDAH_RUNTIME is this script; networks of its own or not
#   FOLDER/runtime/runtime WORD...              the runtime itself
#   FOLDER/runtime/enter NAME COMMAND...        the command, when the network that it is in leads out
set -eu

# Each line of the FIFO is a process, whose network gets a slirp4netns, and the network's name.
start_programs() {
  while read -r process name; do
    slirp4netns --configure --mtu=65520 --disable-host-loopback --ready-fd=3 --netns-type=path \
      "/proc/$process/ns/net" tap0 </dev/null 3>"$place/$name.ready" >"$place/$name.log" 2>&1 &
    echo $! >"$place/$name.pid"
  done <>"$place/wanted"
}

enter() {
  mkfifo "$place/$1.ready"
  echo "$$ $1" >"$place/wanted"
  read -r ready <"$place/$1.ready" || [ -n "$ready" ] || {
    echo "slirp4netns gives the build no network:" && cat "$place/$1.log" && exit 1
  } >&2
  shift
  exec "$@"
}

run() {
  for container; do :; done
  case " $* " in
    *" create "*)
      find_home
      [ ! -e "$home/../../harbor-gym-acls" ] || "$place/acls" restore "$home/merged"
      [ ! -e "$place/wanted" ] || exec unshare --net "$place/enter" "$container" "$place/real" "$@"
      ;;
    *" delete "*)
      find_home
      [ ! -e "$place/$container.pid" ] || kill "$(cat "$place/$container.pid")" 2>&- || :
      if [ -d "$home/diff" ]; then
        drop_names
        ! may_have_acls || "$place/acls" note "$home/diff"
      fi
      ;;
  esac
  exec "$place/real" "$@"
}

# buildah is in the container's bundle here. Its store has what the RUN wrote in `diff`, beside the overlay's mount.
find_home() {
  home=/nonexistent device=$(mountpoint -d mnt/rootfs 2>&-) || return 0
  home=$(sed -n "s|^[0-9]* [0-9]* $device / \(/.*\)/merged .*|\1|p" /proc/self/mountinfo)
}

may_have_acls() {
  # shellcheck disable=SC2010  # the names are not read
  [ -e "$home/../../harbor-gym-acls" ] || LC_ALL=C ls -lnAR "$home/diff" | grep -q '^[^ ]\{10\}+'
}

drop_names() {
  (cd "$home/diff" && find . -name '.wh.*' -prune -print0) | (cd mnt/rootfs && xargs -0r rm -rf --)
}

build() {
  place=$1/runtime networks=$2 python=$3 program=$4
  shift 4
  # In memory, as the folder may be mounted noexec.
  mkdir "$place" && mount -t tmpfs tmpfs "$place"
  cp "$0" "$place/runtime" && chmod +x "$place/runtime" && ln "$place/runtime" "$place/enter"
  ln -s "$BUILDAH_RUNTIME" "$place/real"
  printf '#!/bin/sh\nexec "%s" -I -S "%s" "$@"\n' "$python" "$program" >"$place/acls" && chmod +x "$place/acls"
  export BUILDAH_RUNTIME="$place/runtime"
  [ "$networks" = own ] || exec "$@"
  mkfifo "$place/wanted"
  start_programs >/dev/null 2>&1 &
  { grep -E '^(search|options)' /etc/resolv.conf || :; } >"$place/resolv.conf"
  echo nameserver 10.0.2.3 >>"$place/resolv.conf" # slirp4netns answers there for the machine's own resolver
  mount --bind "$place/resolv.conf" /etc/resolv.conf
  exec unshare --net "$place/enter" builder "$@"
}

place=${0%/*}
case ${0##*/} in
  enter) enter "$@" ;;
  runtime) run "$@" ;;
  *) build "$@" ;;
esac
