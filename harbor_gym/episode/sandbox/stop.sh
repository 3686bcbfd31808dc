# shellcheck shell=sh disable=SC2154  # common.sh stands before
# Kill what was started here after clock tick $1. Spared: what ran before, what those processes started meanwhile
# (a server's workers), and this script. $2 to $4 are the caller's boot id, pid and start: never kill where it is seen.
# Answer with the number killed, the number left, the memory limit's victims so far, 1 where others run on or 0, and for
# each directory after $4 with "empty" or "-". Where others run on, none counts as empty: they may yet write there.
# POSIX sh and builtins: the policy may have broken or removed the image's programs.
began=$1 boot=$2 caller=$3 born=$4
shift 4
passes=100 stopped=0 seen=' ' victims='' others=1 again=''

# Set state, parent and start of process $1; fail where it is gone.
look() {
    stat=
    while IFS= read -r line || [ -n "$line" ]; do stat="$stat$line "; done <"/proc/$1/stat"
    [ -n "$stat" ] || return 1
    # shellcheck disable=SC2086  # the fields after the name, which may hold anything
    set -- ${stat##*) }
    state=$1 parent=$2 threads=${18} start=${20}
}

# Whether process $1, younger than the phase, descends from one that is older and not the sandbox's first.
is_of_a_service() {
    above=$1
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        eval "above=\${parent_$above:-0}"
        [ "$above" -gt 1 ] || return 1
        eval "born=\${start_$above:-}"
        [ -n "$born" ] || return 1
        [ "$born" -le "$began" ] && return 0
    done
    return 1
}

stop_all() {
    own=" $$ "
    pid=$$
    while look "$pid" && [ "$parent" -gt 1 ]; do
        pid=$parent
        look "$pid" && [ "$start" -gt "$began" ] && own="$own$pid "
    done

    while :; do
        pids='' victims='' others=0
        for path in /proc/[0-9]*; do
            pid=${path#/proc/}
            look "$pid" || continue
            # A process whose first thread has ended looks dead, and its others run on.
            case $state in Z | X) [ "$threads" -gt 1 ] || continue ;; esac
            pids="$pids $pid"
            eval "parent_$pid=$parent start_$pid=$start"
        done
        for pid in $pids; do
            [ "$pid" = 1 ] && continue
            case $own in *" $pid "*) continue ;; esac
            eval "start=\$start_$pid"
            if [ "$start" -le "$began" ] || is_of_a_service "$pid"; then
                others=1
                continue
            fi
            victims="$victims $pid"
            case $seen in *" $pid:$start "*) ;; *) stopped=$((stopped + 1)) seen="$seen$pid:$start " ;; esac
        done
        for pid in $pids; do unset "parent_$pid" "start_$pid"; done
        passes=$((passes - 1))
        # Everyone at once, where there is nobody to spare: no process can outrun that by forking, or stay unseen while
        # it hands over to the next. Then one more look; not more, for whom nobody has collected yet is killed again.
        if [ "$others" = 0 ] && [ "$own" = " $$ " ] && kill -s KILL -- -1 && [ -z "$victims$again" ]; then
            again=1
            sleep 0.02
            continue
        fi
        if [ -z "$victims" ] || [ "$passes" = 0 ]; then break; fi
        # shellcheck disable=SC2086  # a list
        kill -s KILL $victims
        sleep 0.02
    done
}

sees_the_caller() {
    read -r here </proc/sys/kernel/random/boot_id
    [ "$here" = "$boot" ] && look "$caller" && [ "$start" = "$born" ]
}

sees_the_caller || stop_all
left=0
for pid in $victims; do left=$((left + 1)); done
answer="stop $stopped $left $kills $others"
for directory; do
    if [ "$others" = 0 ] && [ -d "$directory" ] && [ ! -L "$directory" ] && [ -r "$directory" ] && ! find_left "$directory"
    then
        answer="$answer empty"
    else
        answer="$answer -"
    fi
done
echo "$answer"
