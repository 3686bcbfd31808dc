# What the kernel tells of the processes in the terminal.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Sets state, group, terminal_group, threads of a process; false when it is gone or a zombie.
read_stat() {
    local stat
    IFS= read -r -d '' stat <"/proc/$1/stat"
    [ -n "$stat" ] || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086
    set -- $stat
    state=$1 group=$3 terminal_group=$6 threads=${18}
    [[ $state != [ZX] ]]
}

read_mark() {
    local line
    read -r line <"$dir/prompt" && [ -n "$line" ] && mark=$line
}

# The kernel's word on what a process waits for; false where it may not be read.
read_syscall() {
    call=
    read -r call first second third fourth fifth _ <"/proc/$1/syscall" && [ -n "$call" ]
}

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
}

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

read_runtime() { read -r runtime _ <"/proc/$1/schedstat"; }
has_run() { [ -z "${runtimes[$1]}" ] || { read_runtime "$1" && [ "$runtime" != "${runtimes[$1]}" ]; }; }

foreground_has_run() {
    local pid
    for pid in "${members[@]}"; do has_run "$pid" && return 0; done
    return 1
}

shell_is_idle() {
    read_stat "$shell" && [ "$group" = "$terminal_group" ] && [ "$state" = S ] || return 1
    read_syscall "$shell" || return 0
    [ "$call" = "$sys_read" ] || [[ $sys_select == *" $call "* ]] || [ "$sys_read" = none ]
}
