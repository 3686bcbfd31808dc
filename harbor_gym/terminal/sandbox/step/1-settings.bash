# Type each command, wait for it as long as it takes, then show the screen: that is a step.
# `step STEP` takes one; `again STEP` takes one that another process may have begun; `serve NONCE` takes steps from
# standard input, a line each, until it ends or is to become another script; `load` leaves it to others to call what is
# defined here, in their own directory.
# STEP is the frame's nonce, the byte limit of a frame, the number of the first command, then three words per command:
# wait in ms as <busy>/<idle>, or with =<ms> exactly that long; kind; payload.
#   kind "keys": payload is a tmux key name; "hex": bytes as hex words with commas between; "base64": bytes in base64;
#   "file": the name of a file with bytes in base64, sent ahead; "none": type nothing.
# Some environments merge the error stream into the answer, and the policy may delete any file at any moment.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole
exec 2>/dev/null
LC_ALL=C
[ "$1" = load ] || dir=${BASH_SOURCE[0]%/*}
signed=-1 answer=() to='' from='' client='' is_resident='' can_drain=1 asked=0
quiet_ms=120 settle_sec=0.015 patience_sec=0.04
case $HOSTTYPE in
    x86_64) sys_read=0 sys_select=' 23 270 ' sys_poll=' 7 271 ' sys_epoll=' 232 281 ' sys_wait=' 61 247 130 ' ;;
    aarch64 | arm64) sys_read=63 sys_select=' 72 ' sys_poll=' 73 ' sys_epoll=' 22 ' sys_wait=' 260 95 133 ' ;;
    *) sys_read=none sys_select='' sys_poll='' sys_epoll='' sys_wait='' ;;
esac

tm() { tmux -u -S "$dir/socket" "$@"; }

# Waits for so many seconds, or for the shell's next prompt; false when that came.
sleep_through() {
    read -rt "$1" -u 9 || return 0
    while read -rt 0 -u 9; do read -rt 0.001 -u 9; done
    return 1
}

nap() { sleep_through "$1" || return 0; }

# True when whoever asked for this step has gone, or asks for the next one.
is_abandoned() { [ -n "$is_resident" ] && read -rt 0; }

# Shows every second that this process is alive to whoever asked for the step.
give_sign() {
    [ -n "$is_resident" ] && ((SECONDS != signed)) || return
    signed=$SECONDS
    printf '%s .\n' "$nonce"
}

read_clock() {
    local up
    read -r up _ </proc/uptime
    up=${up/./}
    now=$((10#$up * 10))
}
