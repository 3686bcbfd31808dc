#!/bin/sh
# Networks of a build: one for the builder, and one for each RUN, as under Docker. They lead out through slirp4netns,
# which stays in the machine's network, and not to the machine's loopback. All end with the build's PID namespace.
#
#   sh run_networks.sh FOLDER COMMAND...   the command, whose BUILDAH_RUNTIME is this script
#   FOLDER/networks/runtime WORD...        the runtime itself, each container that it creates in a network of its own
#   FOLDER/networks/enter NAME COMMAND...  the command, when the network that it is in leads out
set -eu

# Each line of the FIFO is a process, whose network gets a slirp4netns, and the network's name.
start_programs() {
  while read -r process name; do
    slirp4netns --configure --mtu=65520 --disable-host-loopback --ready-fd=3 --netns-type=path \
      "/proc/$process/ns/net" tap0 </dev/null 3>"$networks/$name.ready" >"$networks/$name.log" 2>&1 &
    echo $! >"$networks/$name.pid"
  done <>"$networks/wanted"
}

enter() {
  mkfifo "$networks/$1.ready"
  echo "$$ $1" >"$networks/wanted"
  read -r ready <"$networks/$1.ready" || [ -n "$ready" ] || {
    echo "slirp4netns gives the build no network:" && cat "$networks/$1.log" && exit 1
  } >&2
  shift
  exec "$@"
}

run() {
  for container; do :; done
  case " $* " in
    *" create "*) exec unshare --net "$networks/enter" "$container" "$networks/real" "$@" ;;
    *" delete "*) [ ! -e "$networks/$container.pid" ] || kill "$(cat "$networks/$container.pid")" 2>&- || : ;;
  esac
  exec "$networks/real" "$@"
}

build() {
  networks=$1/networks
  shift
  # In memory, as the folder may be mounted noexec.
  mkdir "$networks" && mount -t tmpfs tmpfs "$networks"
  cp "$0" "$networks/runtime" && chmod +x "$networks/runtime" && ln "$networks/runtime" "$networks/enter"
  ln -s "$BUILDAH_RUNTIME" "$networks/real"
  mkfifo "$networks/wanted"
  start_programs >/dev/null 2>&1 &
  { grep -E '^(search|options)' /etc/resolv.conf || :; } >"$networks/resolv.conf"
  echo nameserver 10.0.2.3 >>"$networks/resolv.conf" # slirp4netns answers there for the machine's own resolver
  mount --bind "$networks/resolv.conf" /etc/resolv.conf
  export BUILDAH_RUNTIME="$networks/runtime"
  exec unshare --net "$networks/enter" builder "$@"
}

networks=${0%/*}
case ${0##*/} in
  enter) enter "$@" ;;
  runtime) run "$@" ;;
  *) build "$@" ;;
esac
