# Type each command, wait for it as long as it takes, then show the screen: that is a step.
# `step STEP` takes one; `again STEP` takes one that another process may have begun; `serve NONCE` takes steps from
# standard input, a line each, until it ends.
# STEP is the frame's nonce, the byte limit of a frame, the number of the first command, then three words per command:
# wait in ms as <busy>/<idle>, or with =<ms> exactly that long; kind; payload.
#   kind "keys": payload is a tmux key name; "hex": bytes as hex words with commas between; "base64": bytes in base64;
#   "file": the name of a file with bytes in base64, sent ahead; "none": type nothing.
# Some environments merge the error stream into the answer, and the policy may delete any file at any moment.
exec 2>/dev/null
LC_ALL=C
dir=${BASH_SOURCE[0]%/*}
nonce='' signed=-1 answer=() to='' from='' client='' is_resident='' can_drain=1
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

# A control client saves a fork for every word with tmux.
connect() {
    local line
    tmux=$(type -P tmux)
    coproc CONTROL { exec tmux -u -S "$dir/socket" -C attach-session -t main; }
    # shellcheck disable=SC2153
    client=$CONTROL_PID
    exec {from}<&"${CONTROL[0]}" {to}>&"${CONTROL[1]}" || return
    eval "exec ${CONTROL[0]}<&- ${CONTROL[1]}>&-"
    while IFS= read -rt 10 -u "$from" line; do
        if [[ $line == %session-changed* ]]; then
            ask refresh-client -F no-output && return
            break
        fi
    done
    disconnect
}

disconnect() {
    [ -n "$to" ] && exec {to}>&- {from}<&-
    to='' from=''
}

# Runs tmux commands through the control client; sets answer to the lines they print.
# It goes no further than a client of its own could: a session that only this process can still reach is over.
ask() {
    local word text='' line block='' left=1
    answer=()
    [ -n "$to" ] && [ -e "$dir/socket" ] && [ -x "$tmux" ] || return
    for word; do
        case $word in
            ';') text+=' ;' && left=$((left + 1)) ;;
            # It answers with as many blocks as it likes: the end is what a last command says.
            if-shell) text+=' if-shell' && left=1000 ;;
            *"'"*) text+=" \"$word\"" ;;
            *) text+=" '$word'" ;;
        esac
    done
    ((left < 1000)) || text+=" ; display-message -p '$nonce.'"
    printf '%s\n' "${text# }" >&"$to"
    while IFS= read -rt 20 -u "$from" line; do
        # Every line costs time: first what most of them are.
        if [[ $line != [%@]* && -n $block ]]; then
            answer+=("$line")
        elif [ -z "$block" ]; then
            [[ $line == '%begin '* ]] && block=${line#%begin }
        elif [ "$line" = "%end $block" ]; then
            block='' left=$((left - 1))
            ((left)) || return 0
        elif [ "$line" = "%error $block" ]; then
            return 1
        elif [ "$line" = "$nonce." ]; then
            return 0
        else
            answer+=("$line")
        fi
    done
    disconnect
    return 1
}

# The same, by a client of its own where there is no control client.
query() {
    local text
    if [ -n "$to" ]; then ask "$@" && return; fi
    [ -z "$to" ] && text=$(tm "$@") && mapfile -t answer <<<"$text"
}
read_clock() {
    local up
    read -r up _ </proc/uptime
    up=${up/./}
    now=$((10#$up * 10))
}

# Sets state, group, terminal_group, threads of a process; false when it is gone or a zombie.
read_stat() {
    local stat
    IFS= read -r -d '' stat <"/proc/$1/stat" 2>/dev/null
    [ -n "$stat" ] || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086
    set -- $stat
    state=$1 group=$3 terminal_group=$6 threads=${18}
    [[ $state != [ZX] ]]
} 2>/dev/null

read_mark() {
    local line
    read -r line <"$dir/prompt" && [ -n "$line" ] && mark=$line
} 2>/dev/null

# The kernel's word on what a process waits for; false where it may not be read.
read_syscall() {
    call=
    read -r call first second third fourth fifth _ <"/proc/$1/syscall" && [ -n "$call" ]
} 2>/dev/null

is_terminal() { [ "/proc/$1/fd/$(($2))" -ef "$tty" ] || [ "/proc/$1/fd/$(($2))" -ef /dev/tty ]; }
is_raw() { modes=$(stty -F "$tty" -a) && [[ $modes == *-icanon* ]]; }
is_forever() { [[ $1 == 0xffffffff || $1 == 0xffffffffffffffff ]]; }

# True where the process waits for the terminal's input and for nothing else but, perhaps, time.
# Sets patience: "forever", or "limited" when time ends the wait, too.
reads_only_terminal() {
    read_syscall "$1" || return 1
    if [ "$call" = "$sys_read" ]; then
        patience=forever
        is_terminal "$1" "$first"
    elif [[ $sys_select == *" $call "* ]]; then
        patience=limited
        if [ "$fifth" = 0x0 ]; then patience=forever; fi
        [ "$first" = 0x1 ] && is_terminal "$1" 0
    else
        return 1
    fi
}

# The same, or as likely as the kernel lets one tell.
reads_terminal() {
    reads_only_terminal "$1" && return
    if [ -z "$call" ]; then
        return 1
    elif [[ $sys_poll == *" $call "* ]]; then
        [ "$second" = 0x1 ] && is_terminal "$1" 0 && is_raw || return
        is_forever "$third" || [ "$third" = 0x0 ] || ! holds_socket "$1"
    elif [[ $sys_epoll == *" $call "* ]]; then
        is_forever "$fourth" && is_terminal "$1" 0 && is_raw && ! holds_socket "$1" "$first"
    else
        return 1
    fi
}

# True where a process has a socket open, or where the given epoll descriptor looks after one.
holds_socket() {
    local path line
    if [ -z "$2" ]; then
        for path in "/proc/$1/fd/"*; do [ -S "$path" ] && return; done
        return 1
    fi
    while read -r line; do
        [[ $line =~ ^tfd:\ +([0-9]+) ]] && [ -S "/proc/$1/fd/${BASH_REMATCH[1]}" ] && return
    done <"/proc/$1/fdinfo/$(($2))"
    return 1
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

# Sets evidence to what proves that every process in the foreground waits for input, or for one that does; sets
# patience as the least patient one's. False without such a proof. Where threads share the work, there is none.
find_evidence() {
    local pid least=''
    evidence=
    read_stat "$shell" && foreground=$terminal_group
    find_foreground
    for pid in "${members[@]}"; do
        read_stat "$pid" || continue
        [ "$state" = S ] && [ "$threads" = 1 ] && read_runtime "$pid" || return
        if reads_only_terminal "$pid"; then
            has_run "$pid" || return
            [ "$least" = limited ] || least=$patience
        else
            [ -n "$call" ] && [[ $sys_wait == *" $call "* ]] || return
        fi
        evidence+="$pid $call $first $runtime,"
    done
    patience=$least
    [ -n "$patience" ]
}

# True when all that was typed has been taken in, answered and drawn: nobody did anything since, and nobody will before
# more is typed. One who reads for a limited time only has other things to do, but in a full-screen program that is
# waited for no longer than a few ticks of its clock.
has_settled() {
    local before wanted
    find_evidence || return
    before=$evidence wanted=$patience
    if [ "$wanted" = limited ]; then
        query display-message -p -t %0 '#{alternate_on}' && [ "${answer[0]}" = 1 ] && sleep_through "$patience_sec"
    else
        sleep_through "$settle_sec"
    fi || return
    find_evidence && [ "$evidence" = "$before" ] && [ "$patience" = "$wanted" ] || return
    # A read that comes back after a while, although nothing was typed, is a way to look whether something was.
    if [[ $evidence == *" $sys_read "* ]] && is_raw && ! [[ $modes == *'min = 1; time = 0;'* ]]; then return 1; fi
    read_stat "$server" && [ "$state" = S ] || return
    read_screen
    read_mark
    [ "$mark" = "$typed" ] && [[ $screen != [01]' 1'* ]] || return
    why=tty_read
    if [[ $screen == 1* ]]; then why=fullscreen; fi
}

# The kernel says nothing about a program with more rights than ours, like sudo. But who reads a password turns the
# echo off for just so long, and works on whole lines still.
reads_secret() {
    [ "$foreground" != "$shell" ] && ! read_syscall "$foreground" && has_run "$foreground" || return
    ! is_raw && [[ $modes == *[[:space:]]-echo[[:space:]]* ]]
}

# The time a process has spent on a processor: the proof that it woke up for what was typed.
note_runtimes() {
    local pid
    runtimes=()
    foreground=$terminal_group
    find_foreground
    for pid in "${members[@]}"; do read_runtime "$pid" && runtimes[pid]=$runtime; done
}

sum_runtimes() {
    local pid
    for pid in "${members[@]}"; do read_runtime "$pid" && spent+="$pid $runtime,"; done
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
    history=
    read_mark
    [ "$mark" != "$typed" ] && shell_is_idle || return 1
    local seen=$mark is_drawn=''
    [ -n "$call" ] && drain && is_drawn=1
    # More input may be on its way than the line that brought this prompt.
    if [ -z "$is_drawn" ] || [ -n "$types_ahead" ]; then nap "$settle_sec"; fi
    read_mark
    [ "$mark" = "$seen" ] && shell_is_idle || return 1
    [ -n "$is_drawn" ] || { read_stat "$server" && [ "$state" = S ]; }
}

# Makes sure that tmux has drawn all that was written to the pane: a path that no one looks at is written behind it.
# Under a stopped output (C-s) the write would hang.
drain() {
    local turn
    [ -n "$to" ] && [ -n "$can_drain" ] || return
    drains=$((drains + 1))
    printf '\033]7;%s\a' "$nonce$drains" >"$tty" || return
    for ((turn = 0; turn < 100; turn++)); do
        ask display-message -p -t %0 '#{history_size} #{pane_path}' || return
        history=${answer[0]%% *}
        [ "${answer[0]#* }" = "$nonce$drains" ] && return
        ((turn < 3)) || nap 0.001
    done
    can_drain=''
    return 1
}

shell_is_idle() {
    read_stat "$shell" && [ "$group" = "$terminal_group" ] && [ "$state" = S ] || return 1
    read_syscall "$shell" || return 0
    [ "$call" = "$sys_read" ] || [[ $sys_select == *" $call "* ]] || [ "$sys_read" = none ]
}

read_screen() {
    query display-message -p -t %0 '#{alternate_on} #{pane_dead} #{cursor_x} #{cursor_y} #{history_size}' \; \
        capture-pane -p -t %0 && printf -v screen '%s\n' "${answer[@]}" || screen='0 1'
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
    read_stat "$shell" || return
    foreground=$terminal_group
    find_foreground
    # A program that looks for input now and then, while it works, is quiet on its screen alone.
    local verdict='' spent=''
    [[ $screen == 1* ]] || sum_runtimes
    if [ "$screen$spent" != "$last_screen$last_spent" ]; then
        last_screen=$screen last_spent=$spent
        quiet_since=$now
    fi
    ((now - quiet_since >= quiet_ms)) || return
    if [[ $screen == 1* ]]; then
        ! foreground_runs && foreground_has_run && verdict=fullscreen
    elif foreground_reads || reads_secret; then
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
    local turn
    why=ended
    for ((turn = 0; turn < 200; turn++)); do
        query display-message -p -t %0 '#{pane_dead} #{pane_dead_status}#{pane_dead_signal}' || return
        case ${answer[0]} in
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
    local end next_look started tries=0 dozes=0
    why=
    last_screen='' last_spent=''
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
        elif [ -z "$2" ] && [ -n "$can_settle" ] && ((dozes)) && has_settled; then
            break
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
        if [ -z "$why" ]; then doze "$2" && dozes=$((dozes + 1)); fi
        give_sign
        if is_abandoned; then why=abandoned; fi
    done
}

# Until the next moment at which there could be news. The prompt's hook wakes us up; what follows it takes a moment.
# $1 is set when nothing can end the wait early but the end of the session.
doze() {
    local left=$((next_look < end ? next_look - now : end - now))
    if [ "$mark" != "$typed" ] && ((++tries < 30)); then
        nap 0.0005
    elif [ -z "$1" ] && [ -n "$can_settle" ] && ((now - started >= 40 && now - started < 200)); then
        nap 0.01
    elif [ -n "$1" ] || ((now - started >= 40)); then
        ((left < 10)) && left=10
        ((left > 50)) && left=50
        nap "0.0$left"
    else
        nap 0.004
    fi
}

# tmux notes the command's number in the same breath as it types, so that nothing is ever typed twice.
type_keys() {
    local noted=(\; set-option -p -t %0 @typed "$number")
    case $1 in
        keys) type_words "$2" ;;
        hex)
            # shellcheck disable=SC2086  # hex words are one argument each
            type_words -H ${2//,/ }
            ;;
        text) type_text "$2" ;;
        base64) printf %s "$2" | base64 -d | paste_keys ;;
        file) base64 -d <"$dir/$2" | paste_keys && rm -f "$dir/$2" ;;
    esac
}

type_words() {
    if [ -n "$to" ]; then
        ask send-keys -t %0 "$@" "${noted[@]}" && return
        [ -z "$to" ] || return
        # The control client went away with the keys, or before.
        read_noted && ((noted_number >= number)) && return
    fi
    # A client's command line reads a final semicolon as the end of a command.
    tm send-keys -t %0 "${@/%;/\\;}" "${noted[@]}"
}

# What tmux is to read by itself: newlines and quotes have no place in a line for the control client.
type_text() {
    local text to=''
    printf -v text %b "\\x${1//,/\\x}"
    type_words -- "$text"
}

paste_keys() {
    local flags=
    [ -e "$dir/paste-flags" ] && read -r flags <"$dir/paste-flags"
    # The keys take their time to get there: another process may have typed them meanwhile.
    tm load-buffer -b keys - \; if-shell -F -t %0 "#{!=:#{@typed},$number}" \
        "paste-buffer -d -r $flags -b keys -t %0 ; set-option -p -t %0 @typed $number"
}

read_noted() {
    query display-message -p -t %0 '#{@typed}' && noted_number=${answer[0]:-0}
}

run_command() {
    local idle=
    history=
    editing='' types_ahead='' can_settle=''
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
    elif ((number <= noted_number)); then
        read -r typed <"$dir/typed"
        types_ahead=1
    else
        case "$2 $3" in
            hex*0d* | hex*03* | hex*04* | hex*1a* | base64* | file* | 'keys C-'* | 'keys Enter') ;;
            # Keys that tmux reads by itself: line feeds and controls, C-…, ^… and Enter.
            text*0[34ad]* | text*1a* | 'text 43,2d'* | 'text 5e'* | 'text 45,6e,74,65,72') ;;
            *) [ "$group" = "$terminal_group" ] && editing=1 ;;
        esac
        case "$2 $3" in hex*13* | 'keys C-s' | text*13* | 'text 43,2d,73' | base64* | file*) can_drain='' ;; esac
        case "$2 $3" in hex*0d,* | text*0[ad],* | base64* | file*) types_ahead=1 ;; esac
        [ "$2" = keys ] || [ "$group" = "$terminal_group" ] || types_ahead=1
        # What begins with an escape may go on: many a program waits a moment for more of it.
        case "$2 $3" in 'keys Escape' | *1b | 'text 45,73,63,61,70,65' | base64* | file*) ;; *) can_settle=1 ;; esac
        note_runtimes
        typed=$mark
        printf '%s\n' "$typed" >"$dir/typed"
        type_keys "$2" "$3" || { why=ended && return; }
    fi
    if [[ $1 == =* ]]; then
        wait_exactly "${1#=}"
    elif [ -n "$idle" ]; then
        wait_until_done "${1#*/}" idle
    else
        wait_until_done "${1%/*}" ''
    fi
}

# Sleeps, and says then what there is to see.
wait_exactly() {
    wait_until_done "$1" exact
    [ "$why" = idle ] || return
    why=deadline
    read_stat "$shell"
    foreground=$terminal_group
    find_foreground
    if at_prompt; then
        why=prompt
    elif read_screen && [[ $screen == 1* ]]; then
        why=fullscreen
    elif foreground_reads; then
        why=tty_read
    fi
}

# The frame stays in tmux, taken in one breath, so that it can be had again if this answer is lost.
show_screen() {
    read_mark
    printf '%s step %s %s\n' "$nonce" "${waits:-,}" "$mark"
    local commands=(
        set-option -p -F -t %0 @frame
        "$nonce pane #{pane_dead} #{pane_dead_status} . #{alternate_on} #{cursor_y} #{history_size} #{pane_height}" \;
        set-option -p -t %0 @step "$nonce step ${waits:-,} $mark" \;
        display-message -p -t %0 '#{@frame}' \;
        if-shell -F -t %0 '#{alternate_on}' 'capture-pane -b text -t %0 ; capture-pane -p -t %0'
        "capture-pane -b text -J -S - -t %0 ; capture-pane -p -J -S - -t %0 ; clear-history -t %0 ; \
capture-pane -b visible -J -t %0 ; display-message -p '$nonce visible' ; capture-pane -p -J -t %0"
    )
    if [ -n "$to" ] && [ -z "$history" ] && ask display-message -p -t %0 '#{history_size}'; then history=${answer[0]}; fi
    if [ -n "$to" ] && [ -n "$history" ] && ((history < 200)); then
        ask "${commands[@]}" && show_answer && return
    fi
    tm "${commands[@]}" >"$dir/frame" && show_file || printf '%s gone\n' "$nonce"
}

show_answer() {
    local text
    printf -v text '%s\n' "${answer[@]}"
    if ((${#text} <= 2 * limit)); then
        printf %s "$text"
    else
        printf '%s\n%s cut %s %s\n' "${text::limit}" "$nonce" "${#answer[@]}" "${#text}"
        printf %s "${text: -limit}"
    fi
}

show_file() {
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

# Stops the process that served this session. True when it had already looked at the screen for this very step.
take_over() {
    local pid turn
    read -r pid client <"$dir/channel" && [ -n "$pid" ] || return
    for ((turn = 0; turn < 500; turn++)); do
        if [[ $(tr '\0' ' ' <"/proc/$pid/cmdline") == *"$dir/step serve"* ]]; then
            kill_tree "$pid"
        elif [[ " $(tm list-clients -F '#{client_pid}' | tr '\n' ' ')" == *" $client "* ]]; then
            # What it had not yet read of its commands is lost with it.
            kill -KILL "$client"
        else
            break
        fi
        nap 0.002
    done
    : >"$dir/channel"
    query display-message -p -t %0 '#{@step}' && [[ ${answer[0]} == "$nonce step "* ]]
}

kill_tree() {
    local child children=''
    kill -STOP "$1"
    read -r children <"/proc/$1/task/$1/children"
    kill -KILL "$1"
    for child in $children; do kill_tree "$child"; done
}

# One call for each buffer: tmux 3.3 loses output where show-buffer is not the last command.
show_again() {
    printf '%s\n' "${answer[0]}"
    query display-message -p -t %0 '#{@frame}' &&
        {
            printf '%s\n' "${answer[0]}" && tm show-buffer -b text &&
                { [[ ${answer[0]#* . } == 1* ]] || { printf '%s visible\n' "$nonce" && tm show-buffer -b visible; }; }
        } >"$dir/frame" && show_file || printf '%s gone\n' "$nonce"
}

take_step() {
    nonce=$1 limit=$2 number=$3
    shift 3
    exec 9<>"$dir/nap"
    read -r shell server tty <"$dir/pane"
    read_mark
    typed=$mark waits='' why='' noted_number=0 drains=0 history=''
    if [ "$mode" = again ] && take_over; then
        show_again
    else
        [ "$mode" = again ] && read_noted
        while (($#)); do
            if [ "$why" != ended ]; then run_command "$1" "$2" "$3"; fi
            [ "$why" = abandoned ] && return
            waits+=,$why number=$((number + 1))
            shift 3
        done
        show_screen
    fi
    printf '%s end\n' "$nonce"
    exec 9<&-
}

serve() {
    local words
    is_resident=1 nonce=$1
    trap '' PIPE
    [ -e "$dir/path" ] && read -r PATH <"$dir/path"
    exec 9<>"$dir/nap"
    connect
    printf '%s %s\n' $$ "$client" >"$dir/channel"
    printf '%s ready\n' "$nonce"
    while read -ra words; do
        case ${words[0]} in
            put)
                printf %s "${words[2]}" >>"$dir/${words[1]}"
                signed=-1
                give_sign
                ;;
            step)
                if [ -r "$dir/step" ] && [ -x "$BASH" ]; then
                    take_step "${words[@]:1}"
                else
                    printf '%s step , 0:0:0\n%s gone\n%s end\n' "${words[1]}" "${words[1]}" "${words[1]}"
                fi
                ;;
        esac
    done
    disconnect
}

mode=$1
shift
case $mode in
    serve) serve "$@" ;;
    *) take_step "$@" ;;
esac
