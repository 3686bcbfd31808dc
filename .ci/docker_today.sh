#!/usr/bin/env bash
# Runs a command with a Docker of today as DOCKER_HOST, which ends with it. The daemon is that of Debian's unstable,
# unpacked with its libraries. It has a network namespace of its own: in the machine's it would delete docker0. Its base
# image is that of the machine's Docker.
#   docker_today.sh .venv/bin/python -m pytest tests/integration/images/test_as_docker.py
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=.ci/lib.sh
. "$here/lib.sh"

image=debian:bookworm-slim
root=$here/../build/engines/docker_today
unwanted='^(adduser|base-passwd|ca-certificates|debconf|gcc-.*-base|init-system-helpers|iptables|login.defs|openssl.*|passwd|systemd.*)_'
if [ ! -x "$root/usr/sbin/dockerd" ]; then
  log "unpacking Docker of Debian's unstable"
  unpack_programs "$root" unstable "$unwanted" docker.io
fi
PATH=$(cd "$root" && pwd)/usr/bin:$root/usr/sbin:$PATH
work=$(mktemp -d)
"$here/docker_base.sh" "$image"
docker save "$image" -o "$work/base.tar"
export DOCKER_HOST=unix://$work/socket
echo '{"features": {"containerd-snapshotter": false}}' >"$work/daemon.json"
# shellcheck disable=SC2016  # the inner shell expands them
unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
  ip link set lo up && exec dockerd --host "$DOCKER_HOST" --data-root "$0/data" --exec-root "$0/exec" \
    --pidfile "$0/pid" --config-file "$0/daemon.json"' "$work" >"$work/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || :; rm -rf "$work"' EXIT
for _ in $(seq 120); do
  ! docker version >/dev/null 2>&1 || break
  kill -0 $daemon 2>/dev/null || break
  sleep 0.5
done
docker load --quiet --input "$work/base.tar" >&2 || die "no daemon answers: $(tail -n 5 "$work/log")"
log "Docker $(docker version --format '{{.Server.Version}}')"
"$@"
