# Decides whether a wait is over, and why.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Examines every thread of the terminal's foreground. True if all of them sleep, none by a timer, each until there is input
# or until another one of them acts, and at least one until there is input: nothing happens before more is typed.
# Sets evidence to the system calls in which they wait, and
#   patience   "forever"; "limited" if a reader wakes up after a while although there is no input, "long" if that is
#              seconds away; "timed" if it waits for other things as well, and the time may be for one of them
#   is_mixed   if a thread waits for others beside the terminal, too: a socket, a pipe from outside
#   is_tended  if a thread wakes up by itself for the program's internal work: "by itself" if another process reads the
#              terminal
#   is_go      if that thread is of Go's runtime: it has timers and children in the same place as its input
#   is_relayed if a terminal multiplexer reads in place of the foreground; "unseen" if the kernel does not report that of a
#              program around another terminal
#   has_peers  if another thread or process may have an end of what is waited for beside the terminal
#   is_hidden  if the kernel does not report what one of them waits for: then the others were examined. "within" if that is
#              in a terminal of its own below them
#   timer      the longest of the times, in ms, after which one of them wakes up by itself, if it is short
# $1 is set for an examination that may take milliseconds: of the programs' memory.
examine() {
    local pid thread tender='' is_reading=''
    reader='' blocker='' is_asleep=''
    evidence='' patience=forever is_mixed='' has_peers='' is_hidden='' is_relayed='' is_tended='' is_go='' timer=0
    # If its leader runs, there is no need to find the others.
    read_stat "$shell" && foreground=$terminal_group
    ((foreground > 0)) || { is_hidden=1 && return; }
    { [[ $foreground == "$shell" ]] || read_stat "$foreground"; } && [[ $state != S ]] && return 1
    find_foreground
    for pid in "${members[@]}"; do
        # What is stopped does nothing until another one lets it go on.
        read_stat "$pid" && [ "$state" != T ] || continue
        [ "$state" = S ] && read_runtime "$pid" || return
        evidence+="$pid $runtime,"
        if is_multiplexer "$pid"; then
            [ -n "$1" ] && examine_panes "$1" || return
            is_reading=1 is_relayed=1 reader=$pid
            continue
        fi
        if ((threads == 1)); then
            examine_thread "$pid" "$pid" "$1" || return
        else
            [ -n "$1" ] || return
            for thread in "$proc/$pid/task/"*; do
                read_stat "$pid/task/${thread##*/}" || continue
                [ "$state" = S ] && examine_thread "$pid" "$pid/task/${thread##*/}" "$1" || return
            done
        fi
    done
    [ -n "$is_reading$is_hidden" ] || { [ -n "$1" ] && examine_strays "$1"; } || return
    if [ -n "$tender" ] && [ "$tender" != "$reader" ]; then is_tended='by itself'; fi
    [ -n "$is_reading" ] || [ -n "$is_hidden" ]
}

# The same if all of the foreground wait for their children, as su does: examines their descendants in sessions of their
# own, which have no controlling terminal and still read this one.
examine_strays() {
    local pid
    for pid in "${descendants[@]}"; do
        if ! read_stat "$pid" || ((terminal_group >= 0)); then continue; fi
        [ "$state" = S ] && read_runtime "$pid" && ((threads == 1)) || return
        evidence+="$pid $runtime,"
        examine_thread "$pid" "$pid" "$1" || return
    done
    [ -n "$is_reading" ]
}

# Sets terminals_within to the terminals that processes below $1 have, each after the first process that has it. A process
# without a controlling terminal has the one that is its input.
find_within() {
    local pid path seen=' '
    terminals_within=()
    for pid in "${strangers[@]}"; do
        path=''
        if ! is_below "$1" "$pid" || ! read_stat "$pid"; then continue; fi
        if ((terminal)); then
            path=$pts/$((terminal & 0xff | terminal >> 12 & 0xfff00))
        else
            for path in "$pts"/[0-9]* ''; do [ -n "$path" ] && [ "$proc/$pid/fd/0" -ef "$path" ] && break; done
            ! [ "$path" -ef "$tty" ] || path=''
        fi
        [ -n "$path" ] && [[ $seen != *" $path "* ]] || continue
        seen+="$path " terminals_within+=("$pid" "$path")
    done
}

# The same for the terminals within process $1, which passes on what is typed: the foreground of each must wait for input.
# Sets within to 1 if there is one, or to "hidden" if the kernel does not report what is awaited there.
examine_within() {
    local terminals_within inner modes is_reading='' reader='' tender='' seen=$evidence needs_run_there
    local patience_here=$patience is_mixed_here=$is_mixed is_tended_here=$is_tended is_hidden_here=$is_hidden
    within=''
    find_within "$1"
    set -- "$2" "${terminals_within[@]}"
    local foreground members descendants thread_counts parents strangers
    while (($# > 1)); do
        inner=$3 needs_run_there=$needs_run
        # Between line ends the terminal itself echoes for a program that reads lines.
        [ -n "$keys_end_line" ] || tty=$inner is_raw || needs_run_there=''
        if read_stat "$2"; then
            within=${within:-1}
            # A shell that has stopped itself leaves its terminal to the program around it.
            if [ "$state" = T ]; then
                is_reading=1
            else
                shell=$2 tty=$inner needs_run=$needs_run_there examine_terminal "$1" || return
                [ -z "$is_hidden" ] || within=hidden
                [ "$patience" != limited ] || [ "$is_full" = 1 ] || tty=$inner is_raw || return
                [ "$patience_here" != forever ] || patience_here=$patience
                seen+=$evidence is_mixed_here=${is_mixed:-$is_mixed_here} is_tended_here=${is_tended:-$is_tended_here}
            fi
        fi
        set -- "$1" "${@:4}"
    done
    evidence=$seen patience=$patience_here is_mixed=$is_mixed_here is_tended=$is_tended_here is_hidden=$is_hidden_here
    has_peers=1
}

# The same for a terminal that may have no foreground.
examine_terminal() {
    if ((terminal)); then
        examine "$1"
    else
        evidence='' patience=forever is_mixed='' is_hidden='' is_tended='' is_reading=''
        find_foreground
        examine_strays "$1"
    fi
}

# The programs that a terminal multiplexer's client shows belong to its server, which also reads the terminal.
is_multiplexer() {
    local name=''
    read -r name <"$proc/$1/comm"
    [ "$name" = 'tmux: client' ] || [ "$name" = screen ]
}

holds_terminal() {
    local path
    for path in "$1/fd/"*; do is_same_terminal "$path" && return; done
    return 1
}

# The same for the foreground of every terminal below a server that has this one, too.
examine_panes() {
    local server_there name child children list foreground members thread_counts parents strangers is_found='' seen=$evidence
    for list in "$proc"/[0-9]*/comm; do
        name='' server_there=${list%/comm}
        read -r name <"$list"
        [ "$name" = 'tmux: server' ] || [ "$name" = screen ] || continue
        holds_terminal "$server_there" || continue
        children=
        read -r children <"$server_there/task/${server_there##*/}/children"
        for child in $children; do
            read -r name <"$proc/$child/comm"
            [ "$name" != screen ] || continue
            shell=$child tty=$proc/$child/fd/0 examine "$1" && [ -z "$is_hidden" ] || return
            seen+=$evidence is_found=1
        done
    done
    evidence=$seen has_peers=1
    [ -n "$is_found" ]
}

# $1 is the process, $2 the thread's path in /proc, $3 as $1 of examine. False for a thread that goes on by itself.
examine_thread() {
    local fd fds limit is_limited reads='' terminals='' has_master='' outside='' within=''
    if ! read_syscall "$2" && ! { [ -n "$3" ] && read_syscall_as_owner "$2"; }; then
        examine_name "$1" "$2" "$3"
        return
    fi
    evidence+="$call $first $second,"
    if [[ $sys_wait == *" $call "* ]]; then
        return 0
    elif [ "$call" = "$sys_futex" ]; then
        [ "$fourth" = 0x0 ] || is_go_watching "$3" || return
        return 0
    elif [ "$call" = "$sys_sigwait" ]; then
        [ "$third" = 0x0 ]
        return
    elif ! awaits_descriptors; then
        note_blocker "$1" asleep
        return 1
    fi
    [ -n "$3" ] || [ "$call" = "$sys_read" ] || { [[ $sys_select == *" $call "* ]] && [ "$first" = 0x1 ]; } ||
        { note_blocker "$1" && return 1; }
    find_awaited "$1" || { is_hidden=1 && return; }
    for fd in $fds; do
        if is_terminal "$1" "$fd"; then
            [ "$call" != "$sys_write" ] && reads=1
        elif [ -z "$3" ]; then
            note_blocker "$1"
            return 1
        elif is_master "$1" "$fd"; then
            has_master=1
        elif ! is_internal "$1" "$fd"; then
            [ "$call" != "$sys_read" ] && [ "$call" != "$sys_write" ] || return
            outside+=" $fd"
        elif ((threads > 1 || ${#members[@]} > 1)) || ! is_counter "$1" "$fd"; then
            has_peers=1
        fi
    done
    if [ -n "$3" ] && [ -n "$is_limited" ] && { [ -n "$reads" ] || ((is_full && threads > 1)); }; then note_timer "$1"; fi
    if [ -n "$has_master" ] && { [ -z "$reads" ] || [ -n "$is_limited" ]; }; then is_mixed=1 has_master=''; fi
    for fd in $outside; do [ -n "$has_master" ] && is_internal "$1" "$fd" below || is_mixed=1; done
    if [ -n "$reads" ]; then
        has_run "$1" || return
        if [ -n "$has_master" ]; then
            examine_within "$1" "$3" && [ -n "$within" ] || return
            [ "$within" = 1 ] || is_hidden=$within
        fi
        is_reading=1 reader=$1
        if [ -n "$is_limited" ] && [[ ${fds# } == *' '* ]]; then
            patience=timed
        elif [ -n "$is_limited" ] && [ "$patience" = forever ]; then
            patience=limited
            # It began to wait after the keys.
            if [ -n "$3" ] && ((${#runtimes[@]} && limit - (now - started) >= long_ms)); then patience=long; fi
        fi
    elif [ -n "$is_limited" ]; then
        # One of several threads may only do the program's internal work, as in V8.
        ((threads > 1)) && [[ $sys_epoll == *" $call "* ]] && is_tended=1 tender=$1
    fi
}

# True if the system call that was read last waits for descriptors; sets is_limited if it returns after a while all the same.
awaits_descriptors() {
    is_limited=''
    if [[ $sys_select == *" $call "* ]]; then
        [ "$fifth" = 0x0 ] || is_limited=1
    elif [[ $sys_poll == *" $call "* ]]; then
        if [[ $sys_timespec == *" $call "* ]]; then [ "$third" = 0x0 ]; else is_forever "$third"; fi || is_limited=1
    elif [[ $sys_epoll == *" $call "* ]]; then
        is_forever "$fourth" || is_limited=1
    else
        [ "$call" = "$sys_read" ] || [ "$call" = "$sys_write" ]
    fi
}

# Sets blocker to a single-threaded process whose wait makes `examine` false, and blocker_ran to its processor time from
# before that was read: until it has run again, nothing changes. $2 is set if a thorough examination is false, too.
note_blocker() {
    ((threads > 1)) || blocker=$1 blocker_ran=$runtime is_asleep=$2
}

# True if the blocker still makes `examine` false: it has not run, and is in the terminal's foreground.
is_blocked() {
    local ran=''
    if [[ -n $blocker ]] && read_stat "$shell"; then
        foreground=$terminal_group
        read_stat "$blocker" && [ "$state $group $terminal_group" = "S $foreground $foreground" ] &&
            read -r ran _ <"$proc/$blocker/task/$blocker/schedstat" && [ "$ran" = "$blocker_ran" ] && return
    fi
    blocker='' is_asleep=''
    return 1
}

# True for the monitoring thread of Go's runtime, the only one with a relative time-out. Another thread has the program's
# own timers, if there are any.
is_go_watching() {
    [ -n "$1" ] && ((threads > 1 && (second & 0x7f) == 0)) && is_tended=1 is_go=1
}

# Sets limit to the time in ms after which the system call that was read last returns, and counts it as timer if it is short.
note_timer() {
    read_limit "$1"
    ((limit >= long_ms || limit <= timer)) || timer=$limit
}

# The same for a thread whose system call may not be read: the kernel function in which it sleeps shows less.
examine_name() {
    local name path
    read -r name <"$proc/$2/wchan"
    case $name in
        wait_woken | n_tty_read)
            is_terminal "$1" 0 && has_run "$1" || return
            # A reader of a socket sleeps there, too.
            for path in "$proc/$1/fd/"*; do [ -S "$path" ] && is_hidden=1; done
            is_reading=1 evidence+="$sys_read 0 0,"
            ;;
        do_wait | do_wait4 | sigsuspend) evidence+="$name," ;;
        *nanosleep | *pipe_read | pipe_wait) return 1 ;;
        *)
            if [ -z "$3" ]; then
                is_hidden=1
            else
                examine_unseen "$1"
            fi
            ;;
    esac
}

# The same for one of which the kernel reports nothing at all: what it waits for is then what the terminals below it wait for,
# or its children in the foreground.
examine_unseen() {
    local pid within=''
    # It may look up often, for its own sake.
    evidence=${evidence%"$1 $runtime,"}$1,
    examine_within "$1" thorough || return
    case $within in
        1) is_relayed=unseen is_reading=1 ;;
        hidden) is_hidden=within ;;
        *)
            # One that has no terminal may write to it through a pipe.
            for pid in "${strangers[@]}"; do
                if ! is_below "$1" "$pid" || ! read_syscall "$pid"; then continue; fi
                rests "$pid" || return
            done
            for pid in "${members[@]}"; do [[ ${parents[pid]} != "$1" ]] || return 0; done
            is_hidden=${is_hidden:-1}
            ;;
    esac
}

# True when all keys have been read, answered and drawn: no process has acted since, and none will before more is typed.
# A reader with a time-out has other work to do, which is waited for only briefly, and only in a full-screen program.
has_settled() {
    local before wanted settling=$settle_next
    settle_next=$settle_sec
    ! is_blocked && examine '' && [ -z "$is_hidden" ] || return
    before=$evidence wanted=$patience
    if [ "$wanted" = limited ]; then
        read_mark && [ "$is_full" = 1 ] && rests_long
    else
        sleep_quietly "$settling"
    fi || return
    # A read that returns after a while without input is polling.
    if [[ ,$evidence == *",$sys_read "* ]] && is_raw && ! [[ $modes == *'min = 1; time = 0;'* ]]; then return 1; fi
    read_stat "$server" && [ "$state" = S ] || return
    read_screen
    [ "$is_dead" = 0 ] || return
    if at_new_prompt; then
        is_complete
        return
    fi
    # The terminal's own echo comes from a thread of the kernel, which may be late on a busy machine.
    [ "$screen" != "$untyped" ] || return
    # The verdict holds only if every thread is still in the same system call.
    examine '' && [ "$evidence" = "$before" ] && [ "$patience" = "$wanted" ] || return
    why=tty_read
    if [ "$is_full" = 1 ]; then why=fullscreen; fi
}

# True if no news comes for a moment, in which another process finds that the reader's wait is a long one.
rests_long() {
    local limit=0 found='' is_quiet=''
    exec {found}< <(read_limit "$reader" && echo "$limit")
    sleep_quietly "$patience_sec" && is_quiet=1
    read -r limit <&"$found"
    exec {found}<&-
    [ -n "$is_quiet" ] && ((limit >= long_ms))
}

# False when news came meanwhile.
sleep_quietly() {
    await_news "$1"
    [ -z "$news" ]
}

# True when the shell has printed a new prompt completely: it writes the mark last.
at_prompt() {
    news=''
    ask_or_capture '' && at_new_prompt && is_complete
}

# The same for the new mark that was read last.
is_complete() {
    news=''
    if [[ -n $types_ahead ]]; then
        # More input may be on its way than the line that brought this prompt.
        local seen=$mark
        await_news "$soon_sec"
        if ! shell_is_idle && [ "${mark%%:*}" = "$shell" ]; then
            news=1
            return 1
        fi
        read_mark && [ "$mark" = "$seen" ] || { news=1 && return 1; }
    fi
    why=prompt
    if [[ $kind == m ]]; then why=tty_read; fi
}

# True while the line editor of a shell or another interpreter reads: the terminal is then raw. Programs that only pass
# keys on keep it raw all the time.
edits_hidden() {
    local pid name
    for pid in "${members[@]}"; do
        read -r name <"$proc/$pid/comm"
        case $name in sudo | su | doas | runuser | script | ssh | tmux* | screen | docker* | podman | kubectl | socat | telnet | nc | expect) return 1 ;; esac
    done
    is_raw
}

# The kernel reports nothing about a program with more rights than ours, like sudo. But a program that reads a password
# turns the echo off meanwhile, and stays in line mode.
reads_secret() { read_modes && [[ $modes == *[[:space:]]icanon* && $modes == *[[:space:]]-echo[[:space:]]* ]]; }

# Looks at the screen; sets why when it has been quiet and the foreground program shows that it waits.
look() {
    local verdict='' spent='' quiet
    read_screen
    if [ "$is_dead" = 1 ]; then
        await_dead_pane
        return
    fi
    if at_new_prompt; then
        is_complete
        return
    fi
    find_foreground
    read_clock
    # A program that works, and polls for input now and then, has a quiet screen but runs.
    sum_runtimes
    if [ "$screen" != "$last_screen" ] || is_busy; then
        quiet_since=$now idle_since=$now spent_then=$spent raw_looks=0 polls=0
    elif [ "$spent" != "$last_spent" ]; then
        idle_since=$now polls=$((polls + 1))
    fi
    last_screen=$screen last_spent=$spent
    quiet=$((now - quiet_since))
    ((quiet >= quiet_ms)) || return
    judge || return
    # A process may have acted since: the verdict must still hold.
    sum_runtimes
    [ "$spent" = "$last_spent" ] || [[ $is_full$patience$is_relayed != 0@(forever|long) ]] || return
    read_screen
    if at_new_prompt; then
        is_complete
    elif [ "$screen" = "$last_screen" ]; then
        why=$verdict
    fi
}

# True if more than a hundredth of the quiet time was spent on a processor: polling for input needs less.
is_busy() { [ "$is_full" = 0 ] && ((spent < spent_then || (spent - spent_then) / 10000 > now - quiet_since + 40)); }

# Sets verdict for a screen that has been quiet for $quiet ms.
judge() {
    if examine thorough; then
        if [ "$is_full" = 1 ]; then
            { [ -z "$is_go" ] || { [ -z "$is_mixed" ] && ((quiet >= polling_ms)); }; } && ! foreground_runs &&
                { [ -n "$is_relayed" ] || foreground_has_run; } && timer_is_over && waits_within && verdict=fullscreen
        elif [ -n "$is_hidden" ]; then
            judge_hidden
        elif [ "$is_relayed" = unseen ]; then
            # What passes keys on may look up often: those behind it must be as quiet as the screen.
            [ "$evidence" = "$last_evidence" ] || last_evidence=$evidence evidence_since=$now
            [ -z "$is_mixed" ] && [[ $patience == @(forever|long) ]] && ((now - evidence_since >= polling_ms)) &&
                is_raw && still_waits && verdict=tty_read
        elif [ -n "$is_mixed" ]; then
            : # Input from elsewhere may end the program's wait: only a prompt ends ours.
        elif [ "$patience" = forever ]; then
            # The program must be as quiet as its screen.
            ((now - idle_since >= quiet_ms)) && { [ -z "$is_tended" ] || is_tended_quietly; } && still_waits && verdict=tty_read
        elif [ "$patience" = long ]; then
            ((now - idle_since >= polling_ms)) && still_waits && verdict=tty_read
        elif [ "$patience" = timed ] && ((now - idle_since >= tended_ms)); then
            # V8 has a timer of eight seconds, of no consequence, after each piece of work.
            { asks || { is_raw && draws_itself; }; } && still_waits && verdict=tty_read
        else
            # Outside a line editor a program polls for input between two pieces of its work.
            # With a time-out for something else it acts when the time is over, and does not poll repeatedly.
            ((quiet >= polling_ms)) && { [ "$patience" = limited ] || ((polls >= 3)); } && is_raw && still_waits &&
                verdict=tty_read
        fi
    fi
    if [ -z "$verdict$is_hidden" ] && ((quiet >= polling_ms)) && [ "$is_full" = 0 ] &&
        { at_same_prompt || { ((quiet >= tended_ms)) && asks; }; }; then
        reads_beside && verdict=tty_read
    fi
    [ -n "$verdict" ]
}

# True if no timer can change a full screen any more that was there after the keys: of those that start anew, such as a
# cursor's, one end has been seen.
timer_is_over() {
    ((timer)) || return 0
    due=${due:-$((now + timer))}
    ((now >= due && now - started >= tended_ms))
}

# True if the programs in the terminals below the foreground wait as well, if there are any.
waits_within() {
    local pid within all=("${members[@]}")
    ((${#strangers[@]})) || return 0
    for pid in "${all[@]}"; do examine_within "$pid" thorough || return; done
    [ -z "$is_hidden" ] || ((quiet >= polling_ms))
}

# True if the text before the cursor ends as prompts do.
asks() {
    read_prompt
    [[ $prompt =~ [:?'>$#%)]'\ ?$ ]]
}

# True if there is any text before the cursor, or a program hides it to draw its own.
draws_itself() {
    local flag=${screen%%|*}
    flag=${flag%%$'\n'*}
    [ -n "$prompt" ] || [[ $flag == *' 0' ]]
}

# True if nothing changed while each process was examined. The peer of a socket may send and end before its descriptors
# are read: the socket then seems to be the reader's alone, and the reader, woken, may still wait for a processor.
# A reader without peers, such as irb, may have polled meanwhile: on a busy machine more often than it is examined.
still_waits() {
    local seen=$evidence
    examine thorough && { [[ $patience$has_peers == @(limited*|timed) ]] || [ "$evidence" = "$seen" ]; }
}

# True in a line editor that was quiet for a while; elsewhere only if the timers belong to another process than the
# reader, and were silent for long.
is_tended_quietly() {
    if is_raw; then ((quiet >= polling_ms)); else [ "$is_tended" = 'by itself' ] && ((now - idle_since >= tended_ms)); fi
}

# Sets prompt to the text before the cursor on the screen that was read last; and if that asks for the rest of a statement,
# statement to the line on which the statement begins.
read_prompt() {
    local head=${screen%%$'\n'*} row column words line
    prompt='' statement=''
    head=${head%|*}
    # shellcheck disable=SC2086
    set -- $head
    column=$3 row=$4
    split $'\n' "${screen#*$'\n'}"
    line=${words[row]}
    printf -v line "%-${column}s" "${line::column}"
    [[ $line == *[![:space:]]* ]] && prompt=$line || return
    is_continuation "$prompt" || return 0
    while ((row > 0)) && is_continuation "${words[row]%%[! .|]*} "; do statement=${words[--row]}; done
}

# True for the prompts of Python and node before the further lines of a statement.
is_continuation() { [[ $1 == '...'*(.)' '*(\ ) || $1 == '| '*(\ ) ]]; }

# True if the cursor is behind the same prompt as before the keys, or the prompt at which the statement began that the keys
# complete, or behind one that asks for the rest of a statement: the program wants the next line, whatever else it, or a
# child of it, has to do.
at_same_prompt() {
    [ -n "$prompt_before" ] && [ "$screen" != "$screen_before" ] || return
    read_prompt
    [ "$prompt" = "$prompt_before" ] || is_continuation "$prompt" ||
        { [ -n "$prompt" ] && [[ $statement_before == "$prompt"* ]]; }
}

# True if all of the foreground sleep, at least one until there is input.
reads_beside() {
    local pid thread reader='' tender='' is_reading=''
    for pid in "${members[@]}"; do
        for thread in "$proc/$pid/task/"*; do
            read_stat "$pid/task/${thread##*/}" || continue
            [[ $state == [ST] ]] || return
            examine_thread "$pid" "$pid/task/${thread##*/}" thorough
        done
    done
    [ -n "$is_reading" ]
}

judge_hidden() {
    [ "$foreground" != "$shell" ] && foreground_has_run && reads_secret && verdict=tty_read && return
    # The terminal is in the shell's own modes before the shell has read the keys, and again just before its prompt. Who
    # passes keys on holds it raw as well, and works meanwhile: a line editor is idle, or shows its prompt again.
    if { [ "$kind" = r ] || [ -z "$keys_end_line" ]; } && { { at_same_prompt && is_raw; } ||
        { [ "$is_hidden" != within ] && ((now - idle_since >= polling_ms)) && edits_hidden; }; }; then
        ((++raw_looks < 3)) || verdict=tty_read
    else
        raw_looks=0
    fi
}
