# The kernel's reports on the processes in the terminal.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Sets state, group, terminal, terminal_group, threads of a process or thread; false when it is gone or a zombie.
read_stat() {
    local parts
    state=
    # The name may hold any character; after it there is no bracket. Removing it by a pattern takes five times as long.
    IFS=')' read -r -d '' -a parts <"$proc/$1/stat"
    ((${#parts[@]})) || return 1
    # shellcheck disable=SC2086
    set -- ${parts[${#parts[@]}-1]}
    state=$1 group=$3 terminal=$5 terminal_group=$6 threads=${18}
    [[ $state != [ZX] ]]
}

shell_lives() { read_stat "$shell" || { [[ -z $state ]] && kill -0 "$shell"; }; }

# True if the words $2 are in process $1's command line. A process that is ending has none any more.
is_called_with() {
    local word line=' '
    [[ $1 =~ ^[1-9][0-9]{0,9}$ ]] || return
    while IFS= read -r -d '' word; do line+="$word "; done <"$proc/$1/cmdline"
    [[ $line == *"$2 "* ]]
}

# Sets call and its arguments to the system call that a process waits in; false if it may not be read.
read_syscall() {
    call=
    read -r call first second third fourth fifth _ <"$proc/$1/syscall" && [ -n "$call" ]
}

# The same, read as the process's owner, if that is another user and we are root; sets terminals, too.
read_syscall_as_owner() {
    local line uid='' gid=''
    ((EUID == 0)) || return
    while read -r line; do
        # shellcheck disable=SC2086
        case $line in
            Uid:*) set -- "$1" $line && uid=$3 ;;
            Gid:*) set -- "$1" $line && gid=$3 ;;
        esac
    done <"$proc/$1/status"
    ((uid)) || return
    # shellcheck disable=SC2016
    line=$(tty=$tty exec chroot --userspec="$uid:$gid" / "$BASH" -c 'read -r line <"/proc/$0/syscall" || exit
for fd in 0 1 2; do [ "/proc/${0%%/*}/fd/$fd" -ef "$tty" ] && echo -n " $fd"; done; echo " / $line"' "$1")
    terminals=${line%%/*}
    # shellcheck disable=SC2086
    set -- ${line#*/}
    call=$1 first=$2 second=$3 third=$4 fourth=$5 fifth=$6
    [ -n "$call" ]
}

is_terminal() {
    if [ -n "$terminals" ]; then
        [[ $terminals == *" $2 "* ]]
    else
        is_same_terminal "$proc/$1/fd/$2"
    fi
}
is_same_terminal() { [ "$1" -ef "$tty" ] || [ "$1" -ef /dev/tty ]; }
read_modes() { modes=$(stty -F "$tty" -a) && [ -n "$modes" ]; }
is_raw() { read_modes && [[ $modes == *-icanon* ]]; }
is_forever() { [[ $1 == 0xffffffff || $1 == 0xffffffffffffffff ]]; }

# Sets members to the processes of the terminal's foreground group, or to none if the kernel does not report it; descendants
# to the shell and all processes below it, with their parents; and strangers to those of them that have another terminal,
# or none.
find_foreground() {
    local pid child children list i own
    members=() descendants=("$shell") thread_counts=() parents=() strangers=()
    read_stat "$shell" || return
    foreground=$terminal_group own=$terminal
    thread_counts[shell]=$threads
    [[ $group == "$foreground" ]] && members+=("$shell")
    for ((i = 0; i < ${#descendants[@]} && i < 200; i++)); do
        pid=${descendants[i]}
        find_tasks "$pid"
        for list in "${tasks[@]}"; do
            children=
            read -r children <"$list/children"
            for child in $children; do
                descendants+=("$child")
                parents[child]=$pid
                if read_stat "$child"; then
                    if [[ $terminal != "$own" ]]; then strangers+=("$child"); elif [[ $group == "$foreground" ]]; then members+=("$child"); fi
                fi
                thread_counts[child]=$threads
            done
        done
    done
    # The leader may descend from another process than the shell.
    ((foreground <= 0)) || [[ " ${members[*]} " == *" $foreground "* ]] || {
        read_stat "$foreground" && members+=("$foreground") thread_counts[foreground]=$threads
    }
}

# Sets tasks to the paths of process $1's threads, by what `find_foreground` has counted: to list them takes twice as long
# as to read from the only one.
find_tasks() {
    if ((thread_counts[$1] == 1)); then tasks=("$proc/$1/task/$1"); else tasks=("$proc/$1/task/"*); fi
}

foreground_runs() {
    local pid
    for pid in "${members[@]}"; do
        read_stat "$pid" && [[ $state == [RD] ]] && return 0
    done
    return 1
}

# Sets runtimes to the processor time of each descendant: a later increase proves that it woke up for the keys.
note_runtimes() {
    local pid
    runtimes=()
    find_foreground
    for pid in "${descendants[@]}"; do read_runtime "$pid" && runtimes[pid]=$runtime; done
}

sum_runtimes() {
    local pid
    spent=0
    for pid in "${members[@]}"; do read_runtime "$pid" && spent=$((spent + runtime + pid)); done
}

read_runtime() {
    local list spent_there
    runtime=0
    find_tasks "$1"
    for list in "${tasks[@]}"; do
        read -r spent_there _ <"$list/schedstat" && runtime=$((runtime + spent_there))
    done
    ((runtime))
}

has_run() { [ -z "$needs_run" ] || [ -z "${runtimes[$1]}" ] || { read_runtime "$1" && [ "$runtime" != "${runtimes[$1]}" ]; }; }

foreground_has_run() {
    local pid
    for pid in "${members[@]}"; do has_run "$pid" && return 0; done
    ((${#members[@]} == 0))
}

# True if nothing shows that the shell does anything but read its input.
shell_is_idle() {
    read_stat "$shell" || return 0
    [ "$state" = S ] && { ((terminal_group <= 0)) || [ "$group" = "$terminal_group" ]; } || return 1
    read_syscall "$shell" || return 0
    [ "$call" = "$sys_read" ] || [[ $sys_select == *" $call "* ]] || [ "$sys_read" = none ]
}

# Prints words of process $1's memory at address $2 ($3 of them), as unsigned numbers of four bytes.
read_memory() { dd "if=$proc/$1/mem" bs=4 skip=$(($2 / 4)) count="$3" | od -An -v -tu4; }

# Sets limit to the time in ms after which the system call that was read last returns: $1 is the process.
read_limit() {
    local place words milliseconds='' per_ms=1000000
    if [[ $sys_select == *" $call "* ]]; then
        place=$fifth
        [ "$call" != 23 ] || per_ms=1000
    elif [[ $sys_timespec == *" $call "* ]]; then
        place=$third
    elif [ "$call" = "$sys_futex" ]; then
        place=$fourth
    elif [[ $sys_poll == *" $call "* ]]; then
        milliseconds=$third
    else
        milliseconds=$fourth
    fi
    if [ -n "$milliseconds" ]; then
        limit=$((milliseconds))
    else
        # shellcheck disable=SC2207  # numbers
        words=($(read_memory "$1" "$place" 4))
        limit=$((${words[0]:-0} * 1000 + ${words[2]:-0} / per_ms))
    fi
}

# Sets fds to the descriptors that a thread waits for, from the system call that was read last: $1 is the process. False
# if they can't be read.
find_awaited() {
    local words word bit i
    fds=''
    case " $call " in
        " $sys_read " | " $sys_write ") fds=$((first)) ;;
        *)
            if [[ $sys_select == *" $call "* ]]; then
                # A call that waits for the first descriptor alone is known without reading memory.
                [ "$first" = 0x1 ] && fds=0 && return
                ((first > 0 && first <= 1024)) || return 0
                words=$(read_memory "$1" "$second" $(((first + 31) / 32))) && [ -n "$words" ] || return
                i=0
                for word in $words; do
                    for ((bit = 0; bit < 32 && i + bit < first; bit++)); do ((word >> bit & 1)) && fds+=" $((i + bit))"; done
                    i=$((i + 32))
                done
            elif [[ $sys_poll == *" $call "* ]]; then
                ((second > 0 && second <= 64)) || return 0
                words=$(read_memory "$1" "$first" $((2 * second))) && [ -n "$words" ] || return
                i=0
                for word in $words; do
                    # Every second word holds the events; a negative descriptor is ignored.
                    ((i++ % 2)) || { ((word < 1 << 31)) && fds+=" $word"; }
                done
            else
                while read -r word i _; do
                    [ "$word" = tfd: ] && fds+=" $i"
                done <"$proc/$1/fdinfo/$((first))"
            fi
            ;;
    esac
    return 0
}

# True if only the foreground's members can make a descriptor ready, or processes below process $1 where $3 is set: $2 is the
# descriptor.
is_internal() {
    local line path pid
    path=$proc/$1/fd/$2
    if [ -p "$path" ]; then
        for pid in "$proc"/[0-9]*; do
            [[ " ${members[*]} " == *" ${pid#"$proc"/} "* ]] && continue
            [ -z "$3" ] || ! is_below "$1" "${pid#"$proc"/}" || ! rests "${pid#"$proc"/}" || continue
            for line in "$pid/fd/"*; do [ -p "$line" ] && [ "$line" -ef "$path" ] && return 1; done
        done
        return 0
    fi
    [ -S "$path" ] && { is_own_pair "$1" "$2" "$3"; return; }
    while read -r line; do
        case $line in eventfd-count:* | sigmask:* | inotify* | SqMask:* | 'it_value: (0, 0)') return 0 ;; esac
    done <"$proc/$1/fdinfo/$2"
    return 1
}

# True if a descriptor is the other side of a terminal: $1 is the process, $2 the descriptor.
is_master() {
    local line
    while read -r line; do [[ $line == tty-index:* ]] && return; done <"$proc/$1/fdinfo/$2"
    return 1
}

# True for an eventfd, which has no other side: $1 is the process, $2 the descriptor.
is_counter() {
    local line
    while read -r line; do [[ $line == eventfd-count:* ]] && return; done <"$proc/$1/fdinfo/$2"
    return 1
}

# True if process $2 descends from $1.
is_below() {
    local ancestor=$2
    while [ "$ancestor" != "$1" ]; do ancestor=${parents[ancestor]} && [ -n "$ancestor" ] || return; done
}

# True if process $1 waits without a limit, or until there is something to read.
rests() {
    local call first second third fourth fifth is_limited
    read_stat "$1" && [ "$state" = S ] && read_syscall "$1" || return
    [[ $sys_wait == *" $call "* ]] || { awaits_descriptors && [ -z "$is_limited" ]; }
}

# True for a socket if only process $1 has its two ends, whose inode numbers are consecutive: $2 is the descriptor. Where $3
# is set, processes below it may have the other one.
is_own_pair() {
    local path number other pid
    number=$(stat -Lc %i "$proc/$1/fd/$2") && [ -n "$number" ] || return
    for pid in "$proc"/[0-9]*; do
        for path in "$pid/fd/"*; do
            [ -S "$path" ] || continue
            if [ "$pid" = "$proc/$1" ] || { [ -n "$3" ] && is_below "$1" "${pid#"$proc"/}" && rests "${pid#"$proc"/}"; }; then
                [[ " $((number - 1)) $((number + 1)) " == *" $(stat -Lc %i "$path") "* ]] && other=1
            elif [ "$path" -ef "$proc/$1/fd/$2" ]; then
                return 1
            fi
        done
    done
    [ -n "$other" ]
}
