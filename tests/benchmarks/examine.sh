#!/usr/bin/env bash
# What one examination by the step script costs in CPU time, in multiples of starting and ending the smallest program.
#   examine.sh PROGRAM...    each runs in a tmux of this machine; examined when it has printed nothing new for a second
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
times=100
socket=examine-$$
trap 'tmux -L "$socket" kill-server 2>/dev/null || true' EXIT
script=$(.venv/bin/python -c 'from harbor_gym.terminal.scripts import read_script; print(read_script("step"))')

spent() { awk '{ print ($14 + $15 + $16 + $17) * 10 }' "/proc/$$/stat"; } # ms: this shell's and its children's

for program; do
  socket+=-
  tmux -L "$socket" -f /dev/null new-session -d -x 160 -y 40 'bash --norc -i'
  tmux -L "$socket" send-keys "$program" Enter
  before='' now=' '
  while [ "$before" != "$now" ]; do before=$now && sleep 1 && now=$(tmux -L "$socket" capture-pane -p); done
  eval "$(tmux -L "$socket" display -p 'shell=#{pane_pid} tty=#{pane_tty} server=#{pid}')"
  # shellcheck disable=SC2154
  bash <<END
set -- load
$script
exec 2>&1
proc=/proc shell=$shell tty=$tty server=$server
$(declare -f spent)
examine thorough || echo "$program does not wait for input"
before=\$(spent)
for ((i = 0; i < $times; i++)); do examine thorough; done
between=\$(spent)
for ((i = 0; i < $times; i++)); do (exec /bin/true); done
after=\$(spent)
echo "$program \$((between - before)) \$((after - between))" |
  awk '{ printf "%s: %.1f ms, %.1f times the start of a program\n", \$1, \$2 / $times, \$2 / \$3 }'
END
  tmux -L "$socket" kill-server
done
