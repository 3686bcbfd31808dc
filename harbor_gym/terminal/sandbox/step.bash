# Type each command, wait for it as long as it takes, then show the screen. One call is one step.
# Arguments: the frame's nonce, the byte limit of a frame, then three per command: wait in ms as <busy>/<idle>, kind, payload.
#   kind "keys": payload is a tmux key name; "hex": bytes as hex words; "base64": bytes in base64; "file": the name of a
#   file with bytes in base64, sent ahead; "none": type nothing.
# Some environments merge the error stream into the answer, and the policy may delete any file at any moment.
exec 2>/dev/null
dir=${BASH_SOURCE[0]%/*}
nonce=$1 limit=$2
shift 2
quiet_ms=120 settle_sec=0.015
case $HOSTTYPE in
    x86_64) sys_read=0 sys_select=' 23 270 ' sys_poll=' 7 271 ' sys_epoll=' 232 281 ' ;;
    aarch64 | arm64) sys_read=63 sys_select=' 72 ' sys_poll=' 73 ' sys_epoll=' 22 ' ;;
    *) sys_read=none sys_select='' sys_poll='' sys_epoll='' ;;
esac

tm() { tmux -u -S "$dir/socket" "$@"; }
nap() { read -rt "$1" -u 9 || :; }
read_clock() {
    local up
    read -r up _ </proc/uptime
    up=${up/./}
    now=$((10#$up * 10))
}

# Sets state, group, terminal_group of a process; false when it is gone or a zombie.
read_stat() {
    local stat
    IFS= read -r -d '' stat <"/proc/$1/stat" 2>/dev/null
    [ -n "$stat" ] || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086
    set -- $stat
    state=$1 group=$3 terminal_group=$6
    [[ $state != [ZX] ]]
} 2>/dev/null

read_mark() {
    local line
    read -r line <"$dir/prompt" && [ -n "$line" ] && mark=$line
} 2>/dev/null

# The kernel's word on what a process waits for; false where it may not be read.
read_syscall() {
    call=
    read -r call first second _ fourth _ <"/proc/$1/syscall" && [ -n "$call" ]
} 2>/dev/null

is_terminal() { [ "/proc/$1/fd/$(($2))" -ef "$tty" ] || [ "/proc/$1/fd/$(($2))" -ef /dev/tty ]; }
is_raw() { [[ $(stty -F "$tty" -a 2>/dev/null) == *-icanon* ]]; }
is_forever() { [[ $1 == 0xffffffff || $1 == 0xffffffffffffffff ]]; }

reads_terminal() {
    read_syscall "$1" || return 1
    if [ "$call" = "$sys_read" ]; then
        is_terminal "$1" "$first"
    elif [[ $sys_select == *" $call "* ]]; then
        [ "$first" = 0x1 ] && is_terminal "$1" 0
    elif [[ $sys_poll == *" $call "* ]]; then
        [ "$second" = 0x1 ] && is_terminal "$1" 0 && is_raw
    elif [[ $sys_epoll == *" $call "* ]]; then
        is_forever "$fourth" && is_terminal "$1" 0 && is_raw
    else
        return 1
    fi
}

# Sets members: the processes of the terminal's foreground group.
find_foreground() {
    local pid child children queue=("$shell")
    members=("$foreground")
    for ((i = 0; i < ${#queue[@]} && i < 200; i++)); do
        pid=${queue[i]}
        children=
        read -r children <"/proc/$pid/task/$pid/children"
        for child in $children; do
            queue+=("$child")
            read_stat "$child" && [ "$group" = "$foreground" ] && [ "$child" != "$foreground" ] && members+=("$child")
        done
    done
} 2>/dev/null

foreground_runs() {
    local pid
    for pid in "${members[@]}"; do
        read_stat "$pid" && [[ $state == [RD] ]] && return 0
    done
    return 1
}

foreground_reads() {
    local pid
    for pid in "${members[@]}"; do reads_terminal "$pid" && has_run "$pid" && return 0; done
    return 1
}

# The time a process has spent on a processor: the proof that it woke up for what was typed.
note_runtimes() {
    local pid
    runtimes=()
    foreground=$terminal_group
    find_foreground
    for pid in "${members[@]}"; do read_runtime "$pid" && runtimes[pid]=$runtime; done
}

read_runtime() { read -r runtime _ <"/proc/$1/schedstat"; } 2>/dev/null

has_run() { [ -z "${runtimes[$1]}" ] || { read_runtime "$1" && [ "$runtime" != "${runtimes[$1]}" ]; }; }

foreground_has_run() {
    local pid
    for pid in "${members[@]}"; do has_run "$pid" && return 0; done
    return 1
}

# True when the shell has printed a new prompt and sleeps on its input, with nothing left to draw.
at_prompt() {
    read_mark
    [ "$mark" != "$typed" ] && shell_is_idle || return 1
    local seen=$mark
    nap "$settle_sec"
    read_mark
    [ "$mark" = "$seen" ] && shell_is_idle && read_stat "$server" && [ "$state" = S ]
}

shell_is_idle() {
    read_stat "$shell" && [ "$group" = "$terminal_group" ] && [ "$state" = S ] || return 1
    read_syscall "$shell" || return 0
    [ "$call" = "$sys_read" ] || [[ $sys_select == *" $call "* ]] || [ "$sys_read" = none ]
}

read_screen() {
    screen=$(tm display-message -p -t %0 '#{alternate_on} #{pane_dead} #{cursor_x} #{cursor_y} #{history_size}' \; \
        capture-pane -p -t %0 2>/dev/null) || screen='0 1'
}

# Looks at the screen; sets why when it has been quiet and the foreground program tells that it waits.
look() {
    read_screen
    case $screen in
        [01]' 1'*)
            await_dead_pane
            return
            ;;
    esac
    read_clock
    if [ "$screen" != "$last_screen" ]; then
        last_screen=$screen
        quiet_since=$now
    fi
    ((now - quiet_since >= quiet_ms)) && read_stat "$shell" || return
    local verdict=
    foreground=$terminal_group
    find_foreground
    if [[ $screen == 1* ]]; then
        ! foreground_runs && foreground_has_run && verdict=fullscreen
    elif foreground_reads; then
        verdict=tty_read
    elif [ -n "$editing" ] && [ "$foreground" = "$shell" ] && ! read_syscall "$shell" && shell_is_idle; then
        verdict=tty_read
    fi
    [ -n "$verdict" ] || return
    # A command may have ended since the screen was read: what was seen must still hold.
    read_screen
    read_mark
    [ "$screen" = "$last_screen" ] && [ "$mark" = "$typed" ] && why=$verdict
}

# The session is over: give tmux a moment to notice, for it holds the last output and the exit code.
await_dead_pane() {
    local turn pane
    why=ended
    for ((turn = 0; turn < 200; turn++)); do
        pane=$(tm display-message -p -t %0 '#{pane_dead} #{pane_dead_status}#{pane_dead_signal}' 2>/dev/null) || return
        case $pane in
            1\ ?*) return ;;
            # Before 3.3 tmux keeps no signal: what has no status yet may never get one.
            1*) ((turn < 170)) && turn=170 ;;
        esac
        # tmux 3.3 was seen to miss the signal and to leave a zombie; another one makes it look again.
        ((turn % 170 > 5)) && kill -CHLD "$server"
        nap 0.01
    done
}

# Waits at most $1 ms. $2 is set when nothing can end the wait early but the end of the session.
wait_until_done() {
    local end next_look started
    why=
    last_screen=
    read_clock
    started=$now
    quiet_since=$now
    end=$((now + $1))
    next_look=$((now + 30))
    while [ -z "$why" ]; do
        if ! read_stat "$shell"; then
            await_dead_pane
        elif [ -z "$2" ] && at_prompt; then
            why=prompt
        else
            read_clock
            if ((now >= end)); then
                why=deadline
                if [ -n "$2" ] || { [ -n "$editing" ] && [ "$group" = "$terminal_group" ]; }; then why=idle; fi
            elif ((now >= next_look)); then
                if [ -z "$2" ]; then look; fi
                next_look=$((now + (now - started < 500 ? 40 : 100)))
            fi
        fi
        if [ -z "$why" ]; then
            if ((now - started < 40)); then nap 0.004; elif ((now - started < 5000)); then nap 0.01; else nap 0.03; fi
        fi
    done
}

type_keys() {
    # shellcheck disable=SC2086  # hex words are one argument each
    case $1 in
        keys) tm send-keys -t %0 "$2" ;;
        hex) tm send-keys -t %0 -H $2 ;;
        base64) printf %s "$2" | base64 -d | paste_keys ;;
        file) base64 -d <"$dir/$2" | paste_keys && rm -f "$dir/$2" ;;
    esac
}

paste_keys() {
    local flags=
    [ -e "$dir/paste-flags" ] && read -r flags <"$dir/paste-flags"
    # shellcheck disable=SC2086
    tm load-buffer -b keys - \; paste-buffer -d -r $flags -b keys -t %0
}

run_command() {
    local idle=
    editing=
    read_mark
    read_stat "$shell"
    runtimes=()
    if [ "$2" = none ]; then
        read -r typed <"$dir/typed"
        if [ "$mark" != "$typed" ] && [ "$group" = "$terminal_group" ]; then
            idle=1
        elif [ "$group" = "$terminal_group" ] && reads_terminal "$shell"; then
            idle=1
        fi
    else
        case "$2 $3" in
            hex*0d* | hex*03* | hex*04* | hex*1a* | base64* | file* | 'keys C-'* | 'keys Enter') ;;
            *) read_stat "$shell" && [ "$group" = "$terminal_group" ] && editing=1 ;;
        esac
        note_runtimes
        typed=$mark
        printf '%s\n' "$typed" >"$dir/typed"
        type_keys "$2" "$3" 2>/dev/null || { why=ended && return; }
    fi
    local wait_ms=${1%/*}
    [ -n "$idle" ] && wait_ms=${1#*/}
    wait_until_done "$wait_ms" "$idle"
}

show_screen() {
    tm display-message -p -t %0 \
        "$nonce pane #{pane_dead} #{pane_dead_status} . #{alternate_on} #{cursor_y} #{history_size} #{pane_height}" \; \
        if-shell -F -t %0 '#{alternate_on}' 'capture-pane -p -t %0' \
        "capture-pane -p -J -S - -t %0 ; clear-history -t %0 ; display-message -p '$nonce visible' ; capture-pane -p -J -t %0" \
        >"$dir/frame" 2>/dev/null || { printf '%s gone\n' "$nonce" && return; }
    local size lines
    size=$(wc -c <"$dir/frame")
    if ((size <= 2 * limit)); then
        cat "$dir/frame"
    else
        lines=$(wc -l <"$dir/frame")
        head -c "$limit" "$dir/frame"
        printf '\n%s cut %s %s\n' "$nonce" "$lines" "$size"
        tail -c "$limit" "$dir/frame"
    fi
    : >"$dir/frame"
}

exec 9<>"$dir/nap"
read -r shell server tty <"$dir/pane"
read_mark
typed=$mark waits="" why=""
while (($#)); do
    if [ "$why" != ended ]; then run_command "$1" "$2" "$3"; fi
    waits+=,$why
    shift 3
done
read_mark
printf '%s step %s %s\n' "$nonce" "${waits:-,}" "$mark"
show_screen
printf '%s end\n' "$nonce"
